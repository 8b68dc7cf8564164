//! Enqueueing, cancelling and retrying jobs.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use domain::audit;
use domain::ids::{JobId, QueueName};
use domain::queue::{self, Enqueued};
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use sqlx::PgConnection;
use wire::{Batch, BatchItem, Batched, Code, Job, MAX_BATCH_JOBS, NewJob, Problem, Reason};

use crate::door::auth::Caller;
use crate::door::body::{Body, MAX_BATCH_BYTES};
use crate::door::failure::Failure;
use crate::door::precondition;
use crate::door::repeat::Repeatable;
use crate::{App, convert};

/// Enqueues one job.
///
/// Where a live job of the kind carries the same `unique_key`, that job is the answer, with 200.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", operation_id = "create_job", request_body = NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 201, description = "Enqueued", body = Job),
        (status = 200, description = "A live job carries the unique key", body = Job),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (plain, asked) = body.parse::<NewJob>()?;
    let call = Repeatable::new(&headers, &caller, "POST /v1/jobs", &plain)?;
    let new = app.catalogue().admit(&caller, &asked, traceparent(&headers), "")?;
    domain::db::retry_races(|| create_once(&app, &call, &new), Failure::is_race).await
}

async fn create_once(app: &App, call: &Repeatable, new: &queue::NewJob) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return precondition::mark_again(answer, |id| Some(place(id))).await;
    }
    let made = queue::enqueue(&mut tx, new).await?;
    let job = found(&mut tx, made.job()).await?;
    let status = match made {
        Enqueued::Created(_) | Enqueued::Scheduled(_) => StatusCode::CREATED,
        Enqueued::Existing(_) => StatusCode::OK,
    };
    let mut response = call.finish(&mut tx, status, &job, &job).await?;
    tx.commit().await?;
    if status == StatusCode::CREATED {
        app.enqueued().add(new.queue.as_str(), new.kind.as_str(), 1);
        if made.is_due() {
            app.hints().add(&new.queue, 1);
        }
        if let Ok(place) = HeaderValue::from_str(&place(&job.id.to_string())) {
            response.headers_mut().insert(LOCATION, place);
        }
    }
    precondition::mark(response.headers_mut(), job.revision);
    Ok(response)
}

/// Enqueues up to 10,000 jobs: all of them, or none.
///
/// Every rule is the same as for one. Jobs whose unique key a live job carries, or an earlier job of the same batch,
/// fail nothing: their item names the other job.
#[utoipa::path(post, path = "/v1/jobs/batch", tag = "jobs", operation_id = "create_jobs", request_body = Batch,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 200, description = "What became of each job, in their order", body = Batched),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_batch(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    request: axum::extract::Request,
) -> Result<Response, Failure> {
    // The place is taken before the body is read: it bounds the memory that bodies hold.
    let _place = app.batches().acquire().await.map_err(|closed| Failure::internal(&closed))?;
    let body = <Body<MAX_BATCH_BYTES> as axum::extract::FromRequest<App>>::from_request(request, &app).await?;
    let (plain, batch) = body.parse::<Batch>()?;
    if !(1..=MAX_BATCH_JOBS).contains(&batch.jobs.len()) {
        return Err(Failure::field("/jobs", format!("must have 1 to {MAX_BATCH_JOBS} items")));
    }
    let call = Repeatable::new(&headers, &caller, "POST /v1/jobs/batch", &plain)?;
    drop(plain);
    let trace = traceparent(&headers);
    let new: Vec<queue::NewJob> = batch
        .jobs
        .iter()
        .enumerate()
        .map(|(i, asked)| app.catalogue().admit(&caller, asked, trace, &format!("/jobs/{i}")))
        .collect::<Result<_, _>>()?;
    domain::db::retry_races(|| create_batch_once(&app, &call, &new), Failure::is_race).await
}

async fn create_batch_once(app: &App, call: &Repeatable, new: &[queue::NewJob]) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return Ok(answer);
    }
    let made = queue::enqueue_many(&mut tx, new).await?;
    let item = |made: &Enqueued| BatchItem { id: made.job().0, created: made.is_new() };
    let batched = Batched { items: made.iter().map(item).collect() };
    let response = call.finish(&mut tx, StatusCode::OK, &batched, &batched).await?;
    tx.commit().await?;
    let mut counts: HashMap<(&str, &str), i64> = HashMap::new();
    for (new, made) in new.iter().zip(&made) {
        if made.is_new() {
            *counts.entry((new.queue.as_str(), new.kind.as_str())).or_default() += 1;
        }
        if made.is_due() {
            app.hints().add(&new.queue, 1);
        }
    }
    for ((queue, kind), total) in counts {
        app.enqueued().add(queue, kind, total);
    }
    Ok(response)
}

/// Asks a job to end.
///
/// One that does not run ends at once (200). One that runs is asked at its next renewal, within a third of its lease
/// (202).
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    request_body(content = Option<Reason>),
    params(
        ("id" = uuid::Uuid, Path, description = "The job"),
        ("If-Match" = Option<String>, Header, description = "The revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "It ended", body = Job),
        (status = 202, description = "It runs and is asked to end", body = Job),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    operate(&app, &caller, &id, &headers, body, Verb::Cancel).await
}

/// Brings a job back now: one that waits, or one that was cancelled or discarded.
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    request_body(content = Option<Reason>),
    params(
        ("id" = uuid::Uuid, Path, description = "The job"),
        ("If-Match" = Option<String>, Header, description = "The revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "It is due", body = Job),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    operate(&app, &caller, &id, &headers, body, Verb::Retry).await
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Cancel,
    Retry,
}

async fn operate(
    app: &App,
    caller: &Caller,
    id: &str,
    headers: &HeaderMap,
    body: Body,
    verb: Verb,
) -> Result<Response, Failure> {
    let id: JobId = id.parse().map_err(|_| Failure::not_found())?;
    let Reason { reason } = body.parse_or_default()?;
    let reason = super::check_reason(reason)?;
    let if_revision = precondition::expected(headers)?;
    let act = || operate_once(app, caller, id, reason.as_deref(), if_revision, verb);
    match domain::db::retry_races(act, Failure::is_race).await {
        Err(failure) => Err(with_current(app, id, failure).await?),
        told => told,
    }
}

/// A refusal for what the job is now, with that job. Call it when the refused transaction is over: what the caller
/// should know is read outside of it.
///
/// # Errors
/// Only the database's.
pub(super) async fn with_current(app: &App, id: JobId, failure: Failure) -> Result<Failure, Failure> {
    let of_the_job = matches!(failure.code(), Code::JobConflict | Code::StaleRevision);
    if !of_the_job || failure.problem().current.is_some() {
        return Ok(failure);
    }
    let mut conn = domain::db::session(app.pool()).await?;
    let current = queue::get(&mut conn, id).await?.map(|job| serde_json::json!(convert::job(job)));
    Ok(failure.with_current(current))
}

async fn operate_once(
    app: &App,
    caller: &Caller,
    id: JobId,
    reason: Option<&str>,
    if_revision: Option<i64>,
    verb: Verb,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let (action, status) = match verb {
        Verb::Cancel => match queue::cancel(&mut tx, id, reason.unwrap_or_default(), if_revision).await? {
            queue::Cancelled::AtOnce => ("job.cancel", StatusCode::OK),
            queue::Cancelled::Requested => ("job.cancel", StatusCode::ACCEPTED),
        },
        Verb::Retry => {
            queue::retry(&mut tx, id, if_revision).await?;
            ("job.retry", StatusCode::OK)
        }
    };
    let job = found(&mut tx, id).await?;
    let event = audit::Event {
        actor: caller.actor(),
        action,
        subject_kind: "job",
        subject: id.to_string(),
        reason,
        detail: serde_json::json!({ "kind": job.kind, "queue": job.queue, "revision": job.revision }),
    };
    audit::record(&mut tx, &event).await?;
    tx.commit().await?;
    if let (Verb::Retry, Ok(queue)) = (verb, QueueName::new(job.queue.as_str())) {
        app.hints().add(&queue, 1);
    }
    let mut response = (status, Json(&job)).into_response();
    precondition::mark(response.headers_mut(), job.revision);
    Ok(response)
}

pub(super) fn place(id: &str) -> String {
    format!("/v1/jobs/{id}")
}

pub(super) async fn found(conn: &mut PgConnection, id: JobId) -> Result<Job, Failure> {
    queue::get(conn, id).await?.map(convert::job).ok_or_else(Failure::not_found)
}

/// The W3C trace context of the caller; one that is malformed is no reason to refuse work and is left out.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let hexadecimal = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    match parts.as_slice() {
        ["00", trace, parent, flags] => {
            let sized = trace.len() == 32 && parent.len() == 16 && flags.len() == 2;
            let plain = hexadecimal(trace) && hexadecimal(parent) && hexadecimal(flags);
            (sized && plain && !zero(trace) && !zero(parent)).then_some(text)
        }
        _ => None,
    }
}
