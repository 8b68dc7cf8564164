//! Whether an instance runs, and why it is where it is.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use domain::instances;
use wire::{Instance, InstanceWhy, Problem};

use super::instances::{answer, visible, with_record};
use crate::door::auth::Caller;
use crate::door::failure::Failure;
use crate::door::precondition;
use crate::{App, convert};

/// Longest statement of an answer to why an instance is where it is.
const WHY_LIMIT: Duration = Duration::from_secs(5);

/// Parks an instance: its box stops its process, which nobody starts until it is woken.
///
/// Its data stays where it is, and a move goes on and wakes nobody. What is parked already stays so.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/park", tag = "instances", operation_id = "park_instance",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host")),
    responses(
        (status = 200, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn park(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
) -> Result<Response, Failure> {
    set_parked(&app, &caller, &name, &host, true).await
}

/// Lets a parked instance run again: its box starts it within seconds.
///
/// While it is cut or landing it starts when the target serves it, and not before.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/wake", tag = "instances", operation_id = "wake_instance",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host")),
    responses(
        (status = 200, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn wake(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
) -> Result<Response, Failure> {
    set_parked(&app, &caller, &name, &host, false).await
}

/// Has an instance's process end and another start, with the environment that it has now.
///
/// Its box does so within seconds; edges answer 503 with `Retry-After` in between. One that is parked, or whose route is
/// closed for a cut, starts no sooner for it.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/restart", tag = "instances", operation_id = "restart_instance",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn restart(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let if_revision = precondition::expected(&headers)?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        instances::restart(&mut conn, (&owner, &host), if_revision, caller.actor()).await?;
        let record = instances::get(&mut conn, &owner, &host).await?.ok_or_else(Failure::not_found)?;
        Ok(conn.done(record).await?)
    };
    let told = domain::db::retry_races(act, Failure::is_race).await.map(|record| answer(&caller, record));
    with_record(&app, &caller, (&owner, &host), told).await
}

async fn set_parked(app: &App, caller: &Caller, name: &str, host: &str, parked: bool) -> Result<Response, Failure> {
    let (owner, host) = visible(caller, name, host)?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        instances::set_parked(&mut conn, &owner, &host, parked, caller.actor()).await?;
        let record = instances::get(&mut conn, &owner, &host).await?.ok_or_else(Failure::not_found)?;
        Ok(conn.done(record).await?)
    };
    Ok(answer(caller, domain::db::retry_races(act, Failure::is_race).await?))
}

/// Why an instance is where it is, and what holds its move, its cut or its landing up.
///
/// Each reason has a stable `code`, a sentence for people, and what to do; the one to act on first stands first.
#[utoipa::path(get, path = "/v1/apps/{app}/instances/{host}/why", tag = "instances", operation_id = "why_instance",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host")),
    responses(
        (status = 200, description = "At least one reason", body = InstanceWhy),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn why(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
) -> Result<Json<InstanceWhy>, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    // One snapshot: a step that ends in between would be told beside what it has overcome.
    let mut snapshot = domain::db::begin_read(app.pool(), WHY_LIMIT).await?;
    let why = instances::why_of(&mut snapshot, &owner, &host).await?.ok_or_else(Failure::not_found)?;
    snapshot.rollback().await?;
    Ok(Json(convert::instance_why(why)))
}
