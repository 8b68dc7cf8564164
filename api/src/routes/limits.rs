//! Limits and pauses of queues, and pauses of kinds.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::ids::{Kind, QueueName};
use domain::queue::{self, Limits, Paused};
use http::{HeaderMap, StatusCode, Uri};
use serde_json::json;
use wire::{Code, KindPause, LimitsRequest, Page, Pause, Problem, QueueLimits, Reason, Resumed};

use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::repeat::Repeatable;
use crate::door::{page, precondition};
use crate::operating::Verb;
use crate::{App, convert, operating};

/// The limits of a queue.
///
/// Of one that nobody limited, too, whether or not anything names it: at revision 0.
#[utoipa::path(get, path = "/v1/queues/{name}/limits", tag = "queues", operation_id = "get_queue_limits",
    params(("name" = String, Path, description = "The queue")),
    responses(
        (status = 200, description = "The limits; their revision is the ETag", body = QueueLimits),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(app): State<App>, Path(name): Path<String>) -> Result<Response, Failure> {
    let name = queue_name(name)?;
    let mut conn = domain::db::session(app.pool()).await?;
    Ok(told(queue::limits(&mut conn, &name).await?))
}

fn told(limits: queue::LimitsView) -> Response {
    let revision = limits.revision;
    let mut response = Json(convert::queue_limits(limits)).into_response();
    precondition::mark(response.headers_mut(), revision);
    response
}

/// Sets the limits of a queue, in place of all those that it has.
///
/// They count on all workers together, and hold for every lease from then on; jobs that run already go on, also beyond a
/// lower limit. A queue need not have jobs yet.
#[utoipa::path(put, path = "/v1/queues/{name}/limits", tag = "queues", operation_id = "put_queue_limits",
    request_body = LimitsRequest,
    params(
        ("name" = String, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "The limits; their revision is the ETag", body = QueueLimits),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let name = queue_name(name)?;
    let if_revision = precondition::expected(&headers)?;
    let (_, asked) = body.parse::<LimitsRequest>()?;
    let reason = reason(asked.reason.as_deref())?;
    let limits = operating::limits(&asked);
    limits.check()?;
    let act = || put_once(&app, &caller, &name, &limits, reason, if_revision);
    match domain::db::retry_races(act, Failure::is_race).await {
        Err(failure) if failure.code() == Code::StaleRevision => {
            let mut conn = domain::db::session(app.pool()).await?;
            let current = convert::queue_limits(queue::limits(&mut conn, &name).await?);
            Err(failure.with_current(Some(json!(current))))
        }
        told => told,
    }
}

async fn put_once(
    app: &App,
    caller: &Caller,
    name: &QueueName,
    limits: &Limits,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let done = operating::limit(&mut tx, caller, name, limits, reason, if_revision).await;
    let set = domain::db::finish(tx, done).await?;
    app.hints().freed(name);
    Ok(told(set))
}

/// Pauses a queue with all of its kinds: jobs that run go on, no other begins.
///
/// Paused already, it stays as it was: the answer is the pause that stands, and says `already`. A queue need not have
/// jobs yet.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", operation_id = "pause_queue",
    request_body = Reason,
    params(
        ("name" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 200, description = "The pause", body = Pause),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pause_queue(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    because(&app, &caller, &headers, Paused::Queue(queue_name(name)?), Verb::Pause, body).await
}

/// Resumes a queue: its jobs are leased again. One that is not paused stays as it is.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues", operation_id = "resume_queue",
    request_body = Reason,
    params(
        ("name" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 200, description = "It is not paused any more", body = Resumed),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resume_queue(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    because(&app, &caller, &headers, Paused::Queue(queue_name(name)?), Verb::Resume, body).await
}

/// Pauses a kind on all queues: jobs that run go on, no other begins.
///
/// Paused already, it stays as it was: the answer is the pause that stands, and says `already`. A kind that the API does
/// not know is refused unless `allow_unknown_kind` says that only newer workers know it.
#[utoipa::path(post, path = "/v1/kinds/{kind}/pause", tag = "queues", operation_id = "pause_kind",
    request_body = KindPause,
    params(
        ("kind" = String, Path, description = "The kind"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 200, description = "The pause", body = Pause),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pause_kind(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let kind = kind(name)?;
    let KindPause { reason: why, allow_unknown_kind } = body.parse_or_default()?;
    if !allow_unknown_kind {
        app.catalogue().check_kind(&kind)?;
    }
    operate(&app, &caller, &headers, Paused::Kind(kind), Verb::Pause, reason(why.as_deref())?).await
}

/// Resumes a kind: its jobs are leased again. One that is not paused stays as it is, known or not.
#[utoipa::path(post, path = "/v1/kinds/{kind}/resume", tag = "queues", operation_id = "resume_kind",
    request_body = Reason,
    params(
        ("kind" = String, Path, description = "The kind"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 200, description = "It is not paused any more", body = Resumed),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resume_kind(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    because(&app, &caller, &headers, Paused::Kind(kind(name)?), Verb::Resume, body).await
}

/// For a reason, which is all that the body says.
async fn because(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    what: Paused,
    verb: Verb,
    body: Body,
) -> Result<Response, Failure> {
    let Reason { reason: why } = body.parse_or_default()?;
    operate(app, caller, headers, what, verb, reason(why.as_deref())?).await
}

async fn operate(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    what: Paused,
    verb: Verb,
    reason: &str,
) -> Result<Response, Failure> {
    let word = match verb {
        Verb::Pause => "pause",
        Verb::Resume => "resume",
    };
    let route = format!("POST /v1/{}s/{}/{word}", what.scope(), what.name());
    let call = Repeatable::new(headers, caller, route, &json!({ "reason": reason }))?;
    let act = || operate_once(app, caller, &call, &what, verb, reason);
    domain::db::retry_races(act, Failure::is_race).await
}

async fn operate_once(
    app: &App,
    caller: &Caller,
    call: &Repeatable,
    what: &Paused,
    verb: Verb,
    reason: &str,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return Ok(answer);
    }
    let response = match verb {
        Verb::Pause => {
            let (pause, new) = operating::pause(&mut tx, caller, what, reason).await?;
            let pause = Pause { already: !new, ..convert::pause(pause) };
            call.finish(&mut tx, StatusCode::OK, &pause, &pause).await?
        }
        Verb::Resume => {
            let ended = operating::resume(&mut tx, caller, what, reason).await?.map(convert::pause);
            let resumed = Resumed { scope: what.scope().to_owned(), name: what.name().to_owned(), ended };
            call.finish(&mut tx, StatusCode::OK, &resumed, &resumed).await?
        }
    };
    tx.commit().await?;
    if verb == Verb::Resume {
        app.hints().resumed(what);
    }
    Ok(response)
}

/// Where a page of pauses begins: behind this scope and name.
struct Place {
    scope: String,
    name: String,
}

impl std::str::FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (scope, name) = text.split_once(' ').ok_or(())?;
        Ok(Self { scope: scope.to_owned(), name: name.to_owned() })
    }
}

/// What is paused, by whom, since when and why: kinds, then queues, each by name.
#[utoipa::path(get, path = "/v1/pauses", tag = "queues", operation_id = "list_pauses",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Pause>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pauses(State(app): State<App>, uri: Uri) -> Result<Json<Page<Pause>>, Failure> {
    let (limit, after) = page::read::<Place>(&uri)?;
    let after = after.as_ref().map(|place| (place.scope.as_str(), place.name.as_str()));
    let mut conn = domain::db::session(app.pool()).await?;
    let found = queue::pauses_after(&mut conn, after, limit + 1).await?;
    Ok(Json(page::of(found, limit, |pause| format!("{} {}", pause.scope, pause.name), convert::pause)))
}

fn queue_name(name: String) -> Result<QueueName, Failure> {
    QueueName::new(name).map_err(|error| Failure::parameter("name", error.rule))
}

fn kind(name: String) -> Result<Kind, Failure> {
    Kind::new(name).map_err(|error| Failure::parameter("kind", error.rule))
}

fn reason(text: Option<&str>) -> Result<&str, Failure> {
    operating::reason(text).map_err(|rule| Failure::field("/reason", rule))
}
