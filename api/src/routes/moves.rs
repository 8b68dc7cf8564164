//! Moves between regions.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use domain::authority::IdentityKind;
use domain::ids::{AppName, Host, MoveId, QueueName, RegionCode};
use domain::instances::moves::{self, CutWish, Filter, MoveState, Wish};
use domain::instances::{self, Record, RecordMove};
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use wire::{Code, CutRequest, Move, MoveReceipt, MoveRehearsal, MoveRequest, MoveStep, MoveView, Page, Problem};

use super::instances::{known, visible, with_record};
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::{page, precondition, query};
use crate::{App, convert};

/// Begins to move an instance to another region.
///
/// Its data is copied in rounds until a fresh listing shows no difference: then the move is `ready`. The instance serves
/// all the while. The answer's `Location` is where the rounds can be watched.
///
/// With `dry_run` nothing is begun, and the answer is 200: what the move would meet. Its `Location` is where the look of
/// the source's box into the stores can be read.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/move", tag = "moves", operation_id = "move_instance",
    request_body = MoveRequest,
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 202, description = "The record's move", body = Move),
        (status = 200, description = "With `dry_run`: what it would meet", body = MoveRehearsal),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn start(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    known(&app, &owner, &host).await?;
    let (_, MoveRequest { region, cut, freeze_budget, dry_run }) = body.parse()?;
    if region.is_empty() {
        return Err(Failure::new(Code::MalformedRequest, "Name the target region in `region`; it is empty."));
    }
    let wish = Wish {
        if_revision: precondition::expected(&headers)?,
        cut_auto: cut == Some(wire::Cut::Auto),
        freeze_budget: freeze_budget.map(|seconds| Duration::from_secs(seconds.into())),
    };
    if dry_run {
        let told = super::rehearsals::rehearse(&app, &owner, &host, &region, wish).await;
        return with_record(&app, &caller, (&owner, &host), told).await;
    }
    let begin = || start_once(&app, &caller, &owner, &host, &region, wish);
    with_record(&app, &caller, (&owner, &host), domain::db::retry_races(begin, Failure::is_race).await).await
}

/// Lets a ready move be cut: the source stops the instance, proves that everything is staged, and gives it to the target.
///
/// Freeze the application's writes before: that is not verified, and what is written while the source stops may be refused
/// to its writer. From here on the move goes forward by itself: only operators take it back, with `…/move/unstick`, until the
/// source's database may be gone. A move whose predicted freeze is over its `freeze_budget` is refused with
/// `freeze_over_budget`, unless `force` is true.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/move/cut", tag = "moves", operation_id = "cut_move",
    request_body(content = Option<CutRequest>),
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 202, description = "The record's move", body = Move),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cut(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (owner, seen) = visible(&caller, &name, &host)?;
    known(&app, &owner, &seen).await?;
    let CutRequest { force } = body.parse_or_default()?;
    steer(&app, &caller, (&name, &host), &headers, Steer::Cut { force }).await
}

/// Ends a move that is not being cut: everything that is staged is deleted, twice, and then the record has no move.
///
/// The instance serves all the while.
#[utoipa::path(delete, path = "/v1/apps/{app}/instances/{host}/move", tag = "moves", operation_id = "abort_move",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 202, description = "The record's move", body = Move),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn abort(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    steer(&app, &caller, (&name, &host), &headers, Steer::Abort).await
}

/// A verb on a move in flight.
#[derive(Debug, Clone, Copy)]
enum Steer {
    Cut { force: bool },
    Abort,
}

async fn steer(
    app: &App,
    caller: &Caller,
    (name, host): (&str, &str),
    headers: &HeaderMap,
    verb: Steer,
) -> Result<Response, Failure> {
    let (owner, host) = visible(caller, name, host)?;
    let if_revision = precondition::expected(headers)?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        let done = match verb {
            Steer::Cut { force } => {
                moves::cut_if(&mut conn, &owner, &host, caller.actor(), CutWish { if_revision, force }).await?
            }
            Steer::Abort => moves::abort(&mut conn, &owner, &host, caller.actor(), if_revision).await?,
        };
        let done = conn.done(done).await?;
        Ok(accepted(app, done.id, done.queue.as_ref(), &done.moving, &done.record))
    };
    with_record(app, caller, (&owner, &host), domain::db::retry_races(act, Failure::is_race).await).await
}

/// The answer to a verb that was taken: the record's move, where it can be watched, and the record's revision.
pub(super) fn accepted(
    app: &App,
    id: MoveId,
    queue: Option<&QueueName>,
    moving: &RecordMove,
    record: &Record,
) -> Response {
    if let Some(queue) = queue {
        app.hints().add(queue, 1);
    }
    let mut response = (StatusCode::ACCEPTED, Json(moving)).into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/moves/{id}")) {
        response.headers_mut().insert(LOCATION, place);
    }
    precondition::mark(response.headers_mut(), record.revision.unwrap_or_default());
    response
}

async fn start_once(
    app: &App,
    caller: &Caller,
    owner: &AppName,
    host: &Host,
    region: &str,
    wish: Wish,
) -> Result<Response, Failure> {
    let mut conn = domain::db::session(app.pool()).await?;
    let started = moves::start_if(&mut conn, owner, host, region, caller.actor(), wish).await?;
    let started = conn.done(started).await?;
    Ok(accepted(app, started.id, Some(&started.queue), &started.moving, &started.record))
}

#[derive(Debug, Deserialize)]
struct Paged {
    limit: Option<i64>,
    cursor: Option<String>,
}

/// An instance's moves, newest first.
#[utoipa::path(get, path = "/v1/apps/{app}/instances/{host}/moves", tag = "moves", operation_id = "list_instance_moves",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<MoveView>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn history(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    uri: Uri,
) -> Result<Json<Page<MoveView>>, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let asked: Paged = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<MoveId>(asked.cursor.as_deref())?;
    let mut conn = domain::db::session(app.pool()).await?;
    if instances::get(&mut conn, &owner, &host).await?.is_none() {
        return Err(Failure::not_found());
    }
    let found = moves::of_instance(&mut conn, &owner, &host, before, limit + 1).await?;
    Ok(Json(page::of(found, limit, |found| found.id.to_string(), convert::move_view)))
}

#[derive(Debug, Deserialize)]
struct Asked {
    open: Option<String>,
    state: Option<String>,
    region: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Moves that match, newest first.
#[utoipa::path(get, path = "/v1/moves", tag = "moves", operation_id = "list_moves",
    params(
        ("open" = Option<bool>, Query, description = "true: only moves in flight; false: only those that are over"),
        ("state" = Option<String>, Query, description = "Only this state"),
        ("region" = Option<String>, Query, description = "Only moves from or to this region"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<MoveView>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Json<Page<MoveView>>, Failure> {
    let asked: Asked = query::read(&uri)?;
    let open = match asked.open.as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(Failure::parameter("open", "must be true or false")),
    };
    let states = || MoveState::ALL.map(MoveState::as_str).join(", ");
    let state = asked
        .state
        .map(|text| {
            MoveState::parse(&text).ok_or_else(|| Failure::parameter("state", format!("must be one of {}", states())))
        })
        .transpose()?;
    let region = asked
        .region
        .map(|code| RegionCode::new(code).map_err(|error| Failure::parameter("region", error.rule)))
        .transpose()?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<MoveId>(asked.cursor.as_deref())?;
    let filter = Filter { open, state, region, apps: seen_apps(&caller), before };
    let mut conn = domain::db::session(app.pool()).await?;
    let found = moves::list(&mut conn, &filter, limit).await?;
    Ok(Json(Page {
        items: found.items.into_iter().map(convert::move_view).collect(),
        next_cursor: found.next.map(page::next),
    }))
}

/// The applications that the caller sees; `None` is all of them. As [`Caller::sees_app`] says it of one.
fn seen_apps(caller: &Caller) -> Option<Vec<String>> {
    match (&caller.scopes.app, caller.kind) {
        (Some(apps), _) => Some(apps.iter().cloned().collect()),
        (None, IdentityKind::Person | IdentityKind::Node) => None,
        (None, IdentityKind::App | IdentityKind::Instance) => Some(Vec::new()),
    }
}

/// One move: how far it is, and what its newest round came to.
#[utoipa::path(get, path = "/v1/moves/{id}", tag = "moves", operation_id = "get_move",
    params(("id" = uuid::Uuid, Path, description = "The move")),
    responses(
        (status = 200, description = "The move", body = MoveView),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<MoveView>, Failure> {
    find(&app, &caller, &id).await.map(convert::move_view).map(Json)
}

/// A move's journal, newest first.
#[utoipa::path(get, path = "/v1/moves/{id}/steps", tag = "moves", operation_id = "list_move_steps",
    params(
        ("id" = uuid::Uuid, Path, description = "The move"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<MoveStep>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn steps(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Page<MoveStep>>, Failure> {
    let asked: Paged = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<i64>(asked.cursor.as_deref())?;
    let found = find(&app, &caller, &id).await?;
    let mut conn = domain::db::session(app.pool()).await?;
    let steps = moves::steps(&mut conn, found.id, before, limit + 1).await?;
    Ok(Json(page::of(steps, limit, |step| step.id.to_string(), convert::move_step)))
}

/// What a move did and left: its proof, when each thing was done, its journal without the rounds, the old replica.
///
/// A move that is not over has less to show.
#[utoipa::path(get, path = "/v1/moves/{id}/receipt", tag = "moves", operation_id = "get_move_receipt",
    params(("id" = uuid::Uuid, Path, description = "The move")),
    responses(
        (status = 200, description = "The receipt", body = MoveReceipt),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn receipt(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<MoveReceipt>, Failure> {
    let found = find(&app, &caller, &id).await?;
    let mut conn = domain::db::session(app.pool()).await?;
    let receipt = instances::receipt_of(&mut conn, found.id).await?.ok_or_else(Failure::not_found)?;
    Ok(Json(convert::receipt(receipt)))
}

async fn find(app: &App, caller: &Caller, id: &str) -> Result<moves::Move, Failure> {
    let id: MoveId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = moves::get(&mut conn, id).await?.ok_or_else(Failure::not_found)?;
    if caller.sees_app(found.app.as_str()) { Ok(found) } else { Err(Failure::not_found()) }
}
