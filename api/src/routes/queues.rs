//! What stands around the jobs: kinds, queues, workers, refused writes, throughput.

use axum::Json;
use axum::extract::{Path, State};
use domain::ids::{JobId, QueueName, WorkerId};
use domain::queue;
use http::Uri;
use serde::Deserialize;
use wire::{FencedWrite, Kind, Page, Problem, Queue, ThroughputPoint, Worker};

use crate::door::failure::Failure;
use crate::door::{page, query};
use crate::{App, convert};

/// Minutes of throughput where the caller names none, and the most.
const DEFAULT_MINUTES: u16 = 60;
const MAX_MINUTES: u16 = 1440;

/// The kinds of job that this system knows, by name.
#[utoipa::path(get, path = "/v1/kinds", tag = "queues", operation_id = "list_kinds",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Kind>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn kinds(State(app): State<App>, uri: Uri) -> Result<Json<Page<Kind>>, Failure> {
    let (limit, after) = page::read::<String>(&uri)?;
    let kinds = app.catalogue().iter();
    Ok(Json(page::held(kinds, after.as_deref(), limit, |spec| spec.kind.to_string(), convert::kind)))
}

/// Queues that have live jobs, a live worker, a limit or a pause, by name.
///
/// Where more than 10,000 jobs wait for their time, only those that are due first are looked at: `waiting_at_least` says
/// so, and a queue that has only others is not listed.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", operation_id = "list_queues",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Queue>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<Page<Queue>>, Failure> {
    let (limit, after) = page::read::<String>(&uri)?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::queues_after(&mut conn, after.as_deref(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |queue| queue.name.clone(), convert::queue)))
}

/// One queue.
///
/// A queue that no live worker names, that is neither limited nor paused, of which nothing is due or runs, and whose jobs
/// all wait behind the first 20,000 that become due, is not found.
#[utoipa::path(get, path = "/v1/queues/{name}", tag = "queues", operation_id = "get_queue",
    params(("name" = String, Path, description = "The queue")),
    responses(
        (status = 200, description = "The queue", body = Queue),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Queue>, Failure> {
    let name = QueueName::new(name).map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::queue(&mut conn, name.as_str()).await?;
    found.map(convert::queue).map(Json).ok_or_else(Failure::not_found)
}

#[derive(Debug, Deserialize)]
struct Minutes {
    minutes: Option<i64>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Where a page of counts begins: behind this minute, queue, kind and outcome.
struct Point {
    minute: domain::clock::Timestamp,
    queue: String,
    kind: String,
    outcome: String,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.minute.to_rfc3339(), self.queue, self.kind, self.outcome)
    }
}

impl std::str::FromStr for Point {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // None of the parts has a space.
        let mut parts = text.split(' ').map(str::to_owned);
        let mut part = || parts.next().ok_or(());
        let minute = part()?.parse().map_err(|_| ())?;
        Ok(Self { minute, queue: part()?, kind: part()?, outcome: part()? })
    }
}

/// What was done, by minute, queue, kind and outcome, oldest first.
#[utoipa::path(get, path = "/v1/throughput", tag = "queues", operation_id = "list_throughput",
    params(
        ("minutes" = Option<u16>, Query, description = "1…1440 minutes back, 60 where not named"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<ThroughputPoint>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn throughput(State(app): State<App>, uri: Uri) -> Result<Json<Page<ThroughputPoint>>, Failure> {
    let Minutes { minutes, limit, cursor } = query::read(&uri)?;
    let minutes = u16::try_from(minutes.unwrap_or_else(|| DEFAULT_MINUTES.into()))
        .ok()
        .filter(|minutes| (1..=MAX_MINUTES).contains(minutes))
        .ok_or_else(|| Failure::parameter("minutes", format!("must be between 1 and {MAX_MINUTES}")))?;
    let limit = page::limit(limit)?;
    let after = page::cursor::<Point>(cursor.as_deref())?;
    let after = after.as_ref().map(|at| (at.minute, at.queue.as_str(), at.kind.as_str(), at.outcome.as_str()));
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::throughput_after(&mut conn, minutes, after, limit + 1).await?;
    let place = |point: &queue::ThroughputPoint| {
        let point = point.clone();
        Point { minute: point.minute, queue: point.queue, kind: point.kind, outcome: point.outcome }.to_string()
    };
    Ok(Json(page::of(found, limit, place, convert::throughput)))
}

/// Worker processes that were heard within the last day, newest first.
#[utoipa::path(get, path = "/v1/workers", tag = "workers", operation_id = "list_workers",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Worker>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn workers(State(app): State<App>, uri: Uri) -> Result<Json<Page<Worker>>, Failure> {
    let (limit, before) = page::read::<WorkerId>(&uri)?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::workers_before(&mut conn, before, limit + 1).await?;
    Ok(Json(page::of(found, limit, |worker| worker.id.to_string(), convert::worker)))
}

/// One worker process.
#[utoipa::path(get, path = "/v1/workers/{id}", tag = "workers", operation_id = "get_worker",
    params(("id" = uuid::Uuid, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker", body = Worker),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn worker(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Worker>, Failure> {
    let id: WorkerId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    queue::worker(&mut conn, id).await?.map(convert::worker).map(Json).ok_or_else(Failure::not_found)
}

#[derive(Debug, Deserialize)]
struct Refused {
    job_id: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Writes that the fence refused, newest first.
#[utoipa::path(get, path = "/v1/fenced-writes", tag = "jobs", operation_id = "list_fenced_writes",
    params(
        ("job_id" = Option<uuid::Uuid>, Query, description = "Only of this job"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<FencedWrite>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn fenced_writes(State(app): State<App>, uri: Uri) -> Result<Json<Page<FencedWrite>>, Failure> {
    let asked: Refused = query::read(&uri)?;
    let job = asked
        .job_id
        .map(|text| text.parse::<JobId>().map_err(|_| Failure::parameter("job_id", "must be a job's id")))
        .transpose()?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<i64>(asked.cursor.as_deref())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::recent_refused(&mut conn, job, before, limit + 1).await?;
    Ok(Json(page::of(found, limit, |write| write.id.to_string(), convert::fenced_write)))
}
