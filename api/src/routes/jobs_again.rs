//! Running a finished job again, as a new one.

use axum::extract::{Path, State};
use axum::response::Response;
use domain::audit;
use domain::ids::JobId;
use domain::queue;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use wire::{Job, Problem, Reason};

use super::jobs::{found, place, traceparent, with_current};
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::precondition;
use crate::door::repeat::Repeatable;
use crate::{App, convert};

/// What one call asks for.
struct Asked<'a> {
    caller: &'a Caller,
    call: Repeatable,
    id: JobId,
    reason: Option<String>,
    if_revision: Option<i64>,
    traceparent: Option<&'a str>,
}

/// Enqueues what a finished job was once more: a new job, due now.
///
/// It has the kind, queue, arguments, priority, tags, keys and limits of the old one, and none of its history; the old
/// one stays as it is. A job that is not over is a conflict (409), and so is one whose unique key a live job carries:
/// `current` is that job. Arguments that the kind takes no longer are refused (422).
#[utoipa::path(post, path = "/v1/jobs/{id}/run-again", tag = "jobs", operation_id = "run_job_again",
    request_body(content = Option<Reason>),
    params(
        ("id" = uuid::Uuid, Path, description = "The finished job"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days"),
        ("If-Match" = Option<String>, Header, description = "The revision that was seen, in quotation marks")),
    responses(
        (status = 201, description = "The new job", body = Job),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn run_again(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let id: JobId = id.parse().map_err(|_| Failure::not_found())?;
    let Reason { reason } = body.parse_or_default()?;
    let reason = super::check_reason(reason)?;
    // The reason as it counts: none at all and an empty one are the same request.
    let plain = serde_json::json!({ "reason": reason });
    let asked = Asked {
        caller: &caller,
        call: Repeatable::new(&headers, &caller, format!("POST /v1/jobs/{id}/run-again"), &plain)?,
        id,
        reason,
        if_revision: precondition::expected(&headers)?,
        traceparent: traceparent(&headers),
    };
    match domain::db::retry_races(|| run_again_once(&app, &asked), Failure::is_race).await {
        Err(failure) => Err(with_current(&app, id, failure).await?),
        told => told,
    }
}

async fn run_again_once(app: &App, asked: &Asked<'_>) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = asked.call.begin(&mut tx).await? {
        return precondition::mark_again(answer, |id| Some(place(id))).await;
    }
    let old = queue::get(&mut tx, asked.id).await?.ok_or_else(Failure::not_found)?;
    if old.state.is_final() {
        app.catalogue().admit_again(&old)?;
    }
    let again = JobId::generate();
    match queue::run_again(&mut tx, asked.id, again, asked.traceparent, asked.if_revision).await {
        Ok(()) => {}
        Err(error @ queue::Error::KeyTaken { holder, .. }) => {
            let holder = queue::get(&mut tx, holder).await?.map(|job| serde_json::json!(convert::job(job)));
            return Err(Failure::from(error).with_current(holder));
        }
        Err(error) => return Err(error.into()),
    }
    let job = found(&mut tx, again).await?;
    let event = audit::Event {
        actor: asked.caller.actor(),
        action: "job.run_again",
        subject_kind: "job",
        subject: asked.id.to_string(),
        reason: asked.reason.as_deref(),
        detail: serde_json::json!({ "kind": job.kind, "queue": job.queue, "new_job": job.id }),
    };
    audit::record(&mut tx, &event).await?;
    let mut response = asked.call.finish(&mut tx, StatusCode::CREATED, &job, &job).await?;
    tx.commit().await?;
    app.enqueued().add(&job.queue, &job.kind, 1);
    app.hints().add(&old.queue, 1);
    if let Ok(place) = HeaderValue::from_str(&place(&job.id.to_string())) {
        response.headers_mut().insert(LOCATION, place);
    }
    precondition::mark(response.headers_mut(), job.revision);
    Ok(response)
}
