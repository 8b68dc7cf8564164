//! What nodes report that they own, and what a rebuilt node is given.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::ids::NodeId;
use domain::nodes::proof::Session;
use domain::nodes::reports::{self, Report, Taken, View};
use wire::{Code, NewNodeReport, NodeRebuild, NodeReport, Problem, TakenNodeReport};

use crate::door::auth::{self, Caller, Proven};
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::{App, convert};

/// Takes a node's report of all that it owns: the node's own, by its session.
///
/// A report of `applied` replaces the record whole. One of `refused` or `partial` moves the moment at which the node was last
/// heard and nothing else, as does one that is refused for what it says. Of two reports the one of the later incarnation, then
/// of the higher `seq` stands, in whichever order they come. Nothing decides from what is reported.
#[utoipa::path(put, path = "/v1/nodes/{id}/report", tag = "nodes", operation_id = "put_node_report",
    request_body = NewNodeReport,
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "What became of it", body = TakenNodeReport),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    proven: Option<Proven>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let session = of_itself(&app, &caller, proven, id).await?;
    let read = body
        .parse::<NewNodeReport>()
        .and_then(|(_, sent)| convert::report(sent).map_err(|invalid| Failure::field(invalid.pointer, invalid.rule)));
    let report = match read {
        Ok(report) => report,
        Err(failure) => {
            // What is wrong is the report, not the node that sent it.
            domain::db::retry_races(|| heard(&app, &session), Failure::is_race).await?;
            return Err(failure);
        }
    };
    match domain::db::retry_races(|| take(&app, &session, &report), Failure::is_race).await? {
        Taken::Replaced { at } => Ok(Json(TakenNodeReport { replaced: true, received_at: at }).into_response()),
        Taken::Kept { at } => Ok(Json(TakenNodeReport { replaced: false, received_at: at }).into_response()),
        Taken::Stale { incarnation, kept } => {
            let current = serde_json::json!({ "incarnation": incarnation,
                "record": kept.map(|kept| serde_json::json!({ "incarnation": kept.incarnation, "seq": kept.seq })) });
            let detail = "A later report of the node is known, or another machine is the node now; `current` tells which. \
                          Send what the node owns now, under a higher seq than the record's.";
            Err(Failure::new(Code::StaleReport, detail).with_current(Some(current)))
        }
        Taken::Ahead { incarnation } => {
            let rule = format!("must be the incarnation that the session told: the node is at {incarnation}");
            Err(Failure::field("/incarnation", rule))
        }
        Taken::Ended => Err(auth::ended()),
    }
}

/// The caller's session, where it is of this node.
async fn of_itself(app: &App, caller: &Caller, proven: Option<Proven>, id: NodeId) -> Result<Session, Failure> {
    match proven {
        Some(Proven(session)) if session.node == id => Ok(session),
        // Of another node it learns nothing.
        Some(_) => Err(Failure::not_found()),
        None => {
            let mut conn = domain::db::session(app.pool()).await?;
            super::nodes::visible(&mut conn, caller, id).await?;
            Err(Failure::new(
                Code::PermissionDenied,
                "Only the node itself reports what it owns, by a session that it opened with its own key.",
            ))
        }
    }
}

async fn take(app: &App, session: &Session, report: &Report) -> Result<Taken, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let taken = reports::put(&mut tx, session, report).await?;
    // Whatever became of it: the node was heard.
    tx.commit().await?;
    Ok(taken)
}

async fn heard(app: &App, session: &Session) -> Result<(), Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let live = reports::heard(&mut tx, session).await?;
    tx.commit().await?;
    if live { Ok(()) } else { Err(auth::ended()) }
}

/// What a node reported last, and how long ago.
///
/// `never_reported` is another answer than a report of nothing: it has no `items`.
#[utoipa::path(get, path = "/v1/nodes/{id}/report", tag = "nodes", operation_id = "get_node_report",
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "The record", body = NodeReport),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<NodeReport>, Failure> {
    let (_, view) = view(&app, &caller, &id).await?;
    Ok(Json(convert::node_report(view)))
}

/// What a rebuilt node is given: what is wanted of it, and what it reported last, both of one moment.
///
/// What the record names, and the declaration does not, is left of before, where its kind is one of `declared_kinds`. Remove
/// nothing where the record is `never_reported`, or where there is no whole answer.
#[utoipa::path(get, path = "/v1/nodes/{id}/rebuild", tag = "nodes", operation_id = "get_node_rebuild",
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "The declaration and the record", body = NodeRebuild),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn rebuild(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<NodeRebuild>, Failure> {
    let (id, view) = view(&app, &caller, &id).await?;
    Ok(Json(convert::node_rebuild(id, view)))
}

/// A node's record and declaration, where the caller may see the node.
async fn view(app: &App, caller: &Caller, id: &str) -> Result<(NodeId, View), Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let view = reports::view(&mut conn, id).await?.filter(|view| caller.sees_node(&view.identity));
    Ok((id, view.ok_or_else(Failure::not_found)?))
}
