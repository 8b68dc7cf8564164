//! Reading jobs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use domain::ids::{JobId, Kind, QueueName};
use domain::queue::{self, Filter, JobState};
use http::Uri;
use serde::Deserialize;
use wire::{Attempt, Job, LogLine, Page, Problem, Step, Why};

use crate::door::failure::Failure;
use crate::door::{page, precondition, query};
use crate::{App, convert};

/// Longest statement of an answer to why a job does not run.
const WHY_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
struct Asked {
    state: Option<String>,
    kind: Option<String>,
    queue: Option<String>,
    tag: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Jobs that match, newest first.
///
/// A page looks at some 200,000 live and as many finished jobs at most: where few match, it may hold fewer than `limit`,
/// or none, and name a `next_cursor` all the same.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs",
    params(
        ("state" = Option<wire::JobState>, Query, description = "Only this state"),
        ("kind" = Option<String>, Query, description = "Only this kind"),
        ("queue" = Option<String>, Query, description = "Only this queue"),
        ("tag" = Option<String>, Query, description = "Only jobs with this tag"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Job>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<Page<Job>>, Failure> {
    let asked: Asked = query::read(&uri)?;
    let states = || JobState::ALL.map(JobState::as_str).join(", ");
    let state = asked
        .state
        .map(|text| {
            JobState::parse(&text).ok_or_else(|| Failure::parameter("state", format!("must be one of {}", states())))
        })
        .transpose()?;
    let named = |name: &str, error: domain::ids::InvalidName| Failure::parameter(name, error.rule);
    let filter = Filter {
        state,
        kind: asked.kind.map(Kind::new).transpose().map_err(|error| named("kind", error))?,
        queue: asked.queue.map(QueueName::new).transpose().map_err(|error| named("queue", error))?,
        tag: asked.tag,
        before: page::cursor::<JobId>(asked.cursor.as_deref())?,
    };
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::list(&mut conn, &filter, page::limit(asked.limit)?).await?;
    Ok(Json(Page {
        items: found.items.into_iter().map(convert::job).collect(),
        next_cursor: found.next.map(page::next),
    }))
}

/// One job, live or finished.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(("id" = uuid::Uuid, Path, description = "The job")),
    responses(
        (status = 200, description = "The job", body = Job),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(app): State<App>, Path(id): Path<String>) -> Result<Response, Failure> {
    let job = find(&app, &id).await?;
    let revision = job.revision;
    let mut response = Json(convert::job(job)).into_response();
    precondition::mark(response.headers_mut(), revision);
    Ok(response)
}

/// Why a job does not run; what it does instead of waiting where it does.
///
/// Each reason has a stable `code`, a sentence for people and its facts; the one to act on first stands first. Jobs ahead
/// are counted up to 1,000.
#[utoipa::path(get, path = "/v1/jobs/{id}/why", tag = "jobs", operation_id = "why_job",
    params(("id" = uuid::Uuid, Path, description = "The job")),
    responses(
        (status = 200, description = "At least one reason", body = Why),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn why(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Why>, Failure> {
    let id: JobId = id.parse().map_err(|_| Failure::not_found())?;
    // One snapshot: a job that begins to run in between would be told as held back by what no longer holds it.
    let mut snapshot = domain::db::begin_read(app.pool(), WHY_LIMIT).await?;
    let job = queue::get(&mut snapshot, id).await?.ok_or_else(Failure::not_found)?;
    let why = queue::why(&mut snapshot, job).await?;
    snapshot.rollback().await?;
    Ok(Json(convert::why(why)))
}

/// A job's attempts that did not end it, newest first.
#[utoipa::path(get, path = "/v1/jobs/{id}/attempts", tag = "jobs", operation_id = "list_job_attempts",
    params(
        ("id" = uuid::Uuid, Path, description = "The job"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Attempt>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn attempts(
    State(app): State<App>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Page<Attempt>>, Failure> {
    let (limit, place) = page::read::<i64>(&uri)?;
    let job = find(&app, &id).await?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::attempts_before(&mut conn, job.id, place, limit + 1).await?;
    Ok(Json(page::of(found, limit, |attempt| attempt.last_fence.to_string(), convert::attempt)))
}

/// A job's steps, from the first. A job keeps at most 10,000.
#[utoipa::path(get, path = "/v1/jobs/{id}/steps", tag = "jobs", operation_id = "list_job_steps",
    params(
        ("id" = uuid::Uuid, Path, description = "The job"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Step>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn steps(
    State(app): State<App>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Page<Step>>, Failure> {
    let (limit, place) = page::read::<i32>(&uri)?;
    let job = find(&app, &id).await?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::steps_after(&mut conn, job.id, place.unwrap_or_default(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |step| step.seq.to_string(), convert::step)))
}

/// A job's log, from the oldest kept line. A job keeps its newest 1,000.
#[utoipa::path(get, path = "/v1/jobs/{id}/log", tag = "jobs", operation_id = "list_job_log",
    params(
        ("id" = uuid::Uuid, Path, description = "The job"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<LogLine>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn log(
    State(app): State<App>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Page<LogLine>>, Failure> {
    let (limit, place) = page::read::<i32>(&uri)?;
    let job = find(&app, &id).await?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::logs_after(&mut conn, job.id, place.unwrap_or_default(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |line| line.seq.to_string(), convert::log_line)))
}

async fn find(app: &App, id: &str) -> Result<queue::Job, Failure> {
    // What is no id names nothing: the same answer as for a job that does not exist.
    let id: JobId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    queue::get(&mut conn, id).await?.ok_or_else(Failure::not_found)
}
