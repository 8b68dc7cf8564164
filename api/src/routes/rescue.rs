//! Operators' doors for nights when a region is gone: each wants the host typed again, and a reason.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use domain::ids::Host;
use domain::instances::rescue;
use http::{HeaderMap, StatusCode};
use wire::{GivenUp, Move, PointRequest, Pointed, Problem, UnstickRequest};

use super::instances::{visible, with_record};
use super::moves::accepted;
use crate::App;
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::precondition;

/// Points an instance to a region by hand; its boxes land what that region has of it.
///
/// For when a landing cannot end, or a region is gone: what was written elsewhere since is lost. Refused while a move is in
/// flight, and while a box that lives serves the instance. The answer tells the move whose landing is given up, and the
/// transaction that its cut had proven.
#[utoipa::path(put, path = "/v1/apps/{app}/instances/{host}/region", tag = "moves", operation_id = "point_instance",
    request_body = PointRequest,
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 202, description = "What was given up", body = Pointed),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn point(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let (_, asked) = body.parse::<PointRequest>()?;
    let reason = confirmed(&host, &asked.host, &asked.reason)?;
    let if_revision = precondition::expected(&headers)?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        let at = (&owner, &host);
        let done = rescue::set_region(&mut conn, at, &asked.region, caller.actor(), &reason, if_revision).await?;
        let done = conn.done(done).await?;
        app.hints().add(&done.queue, 1);
        let given_up = done.given_up.map(|(move_id, txid)| GivenUp { move_id: move_id.0, txid });
        let pointed = Pointed { from: done.from.into(), to: done.to.into(), given_up };
        let mut response = (StatusCode::ACCEPTED, Json(pointed)).into_response();
        precondition::mark(response.headers_mut(), done.revision);
        Ok(response)
    };
    with_record(&app, &caller, (&owner, &host), domain::db::retry_races(act, Failure::is_race).await).await
}

/// Takes back a cut that hangs, before it deletes anything: the move is aborted, and the source serves again.
///
/// Once the source's database may be gone there is no way back: `move_past_recall`.
#[utoipa::path(post, path = "/v1/apps/{app}/instances/{host}/move/unstick", tag = "moves", operation_id = "unstick_move",
    request_body = UnstickRequest,
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 202, description = "The record's move, which is being aborted", body = Move),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn unstick(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let (_, asked) = body.parse::<UnstickRequest>()?;
    let reason = confirmed(&host, &asked.host, &asked.reason)?;
    let if_revision = precondition::expected(&headers)?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        let done = rescue::unstick(&mut conn, (&owner, &host), caller.actor(), &reason, if_revision).await?;
        let done = conn.done(done).await?;
        Ok(accepted(&app, done.id, done.queue.as_ref(), &done.moving, &done.record))
    };
    with_record(&app, &caller, (&owner, &host), domain::db::retry_races(act, Failure::is_race).await).await
}

/// Whoever does this has typed the host, and said why.
fn confirmed(host: &Host, typed: &str, reason: &str) -> Result<String, Failure> {
    if typed != host.as_str() {
        return Err(Failure::field("/host", format!("type the host of the instance once more: {host}")));
    }
    super::check_reason(Some(reason.to_owned()))?
        .ok_or_else(|| Failure::field("/reason", "say why: it stands in the audit trail"))
}
