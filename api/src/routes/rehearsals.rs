//! Dry runs of moves.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::ids::{AppName, Host, JobId};
use domain::instances::moves::Wish;
use domain::instances::moves::rehearsal;
use http::HeaderValue;
use http::header::LOCATION;
use wire::{MoveLook, Problem};

use super::instances::visible;
use crate::door::auth::Caller;
use crate::door::failure::Failure;
use crate::{App, convert};

/// Tells what a move would meet: `POST …/move` with `dry_run`.
pub(super) async fn rehearse(
    app: &App,
    owner: &AppName,
    host: &Host,
    region: &str,
    wish: Wish,
) -> Result<Response, Failure> {
    let ask = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        let told = rehearsal::rehearse(&mut conn, owner, host, region, wish).await?;
        Ok(conn.done(told).await?)
    };
    let told = domain::db::retry_races(ask, Failure::is_race).await?;
    let place = told.look.as_ref().map(|look| {
        app.hints().add(&look.queue, 1);
        format!("/v1/apps/{owner}/instances/{host}/move/rehearsals/{}", look.job)
    });
    let mut response = Json(convert::rehearsal(owner, host, told)).into_response();
    if let Some(place) = place.and_then(|place| HeaderValue::from_str(&place).ok()) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// What the source's box found when it looked at what a move would copy.
///
/// A look is asked for by `POST …/move` with `"dry_run": true`. It is a job of the box that serves the instance: it lists
/// both sides and changes nothing. What it found is kept as long as its job.
#[utoipa::path(get, path = "/v1/apps/{app}/instances/{host}/move/rehearsals/{id}", tag = "moves",
    operation_id = "get_move_look",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("id" = uuid::Uuid, Path, description = "The look's job")),
    responses(
        (status = 200, description = "How far it is, and what it found", body = MoveLook),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn look(
    State(app): State<App>,
    caller: Caller,
    Path((name, host, id)): Path<(String, String, String)>,
) -> Result<Json<MoveLook>, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let id: JobId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let (to, told) = rehearsal::look(&mut conn, &owner, &host, id).await?.ok_or_else(Failure::not_found)?;
    Ok(Json(convert::look(id, to, told)))
}
