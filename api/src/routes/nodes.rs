//! Nodes' records, and the tokens by which machines become them.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::authority::IdentityKind;
use domain::ids::{NodeId, RegionCode};
use domain::nodes::enrolment;
use domain::nodes::records::{self, NewRecord, Record, Wanted};
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use sqlx::PgConnection;
use wire::{Code, EnrolmentToken, EnrolmentTokenRequest, NewNode, Node, Page, Problem, Reason, RevokedToken};

use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::repeat::Repeatable;
use crate::door::{page, precondition, query};
use crate::{App, convert};

#[derive(Debug, Deserialize)]
struct Asked {
    region: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Makes a node's record. Its machine becomes it by an enrolment token.
///
/// A worker that names the same identity and region is a box of this record.
#[utoipa::path(post, path = "/v1/nodes", tag = "nodes", operation_id = "create_node", request_body = NewNode,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 201, description = "The record; its generation is the ETag", body = Node),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (plain, asked) = body.parse::<NewNode>()?;
    let call = Repeatable::new(&headers, &caller, "POST /v1/nodes", &plain)?;
    let region = RegionCode::new(asked.region.as_str()).map_err(|_| unknown_region(&asked.region))?;
    let new =
        NewRecord { identity: asked.identity, region, hostname: asked.hostname, display_name: asked.display_name };
    if !caller.sees_node(&new.identity) {
        return Err(Failure::new(
            Code::PermissionDenied,
            "This key's scopes.node does not name the identity: use a key that sees it, or one without such scopes.",
        ));
    }
    domain::db::retry_races(|| create_once(&app, &caller, &call, &new), Failure::is_race).await
}

async fn create_once(app: &App, caller: &Caller, call: &Repeatable, new: &NewRecord) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return precondition::mark_again(answer, |id| Some(place(id))).await;
    }
    let node = convert::node(records::create(&mut tx, new, caller.actor()).await?);
    let mut response = call.finish(&mut tx, StatusCode::CREATED, &node, &node).await?;
    tx.commit().await?;
    precondition::mark(response.headers_mut(), node.generation);
    if let Ok(place) = HeaderValue::from_str(&place(&node.id.to_string())) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

fn place(id: &str) -> String {
    format!("/v1/nodes/{id}")
}

fn unknown_region(code: &str) -> Failure {
    Failure::new(Code::RegionUnknown, format!("Region {code} does not exist: declare it first."))
}

/// Nodes, by identity.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    params(
        ("region" = Option<String>, Query, description = "Only nodes of this region"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Node>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Json<Page<Node>>, Failure> {
    let asked: Asked = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let after = page::cursor::<String>(asked.cursor.as_deref())?;
    let region = asked.region.map(RegionCode::new).transpose();
    let region = region.map_err(|error| Failure::parameter("region", error.rule))?;
    let wanted = Wanted { id: None, region, identities: seen_by(&caller), after };
    let mut conn = domain::db::session(app.pool()).await?;
    let found = records::list(&mut conn, &wanted, limit + 1).await?;
    Ok(Json(page::of(found, limit, |node| node.identity.clone(), convert::node)))
}

/// The identities that a key shows; `None` for all. As [`domain::authority::Caller::sees_node`].
fn seen_by(caller: &Caller) -> Option<Vec<String>> {
    match (&caller.scopes.node, caller.kind) {
        (Some(nodes), _) => Some(nodes.iter().cloned().collect()),
        (None, IdentityKind::Person) => None,
        (None, IdentityKind::App | IdentityKind::Node | IdentityKind::Instance) => Some(Vec::new()),
    }
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{id}", tag = "nodes", operation_id = "get_node",
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "The record; its generation is the ETag", body = Node),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(app): State<App>, caller: Caller, Path(id): Path<String>) -> Result<Response, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let node = visible(&mut conn, &caller, id).await?;
    let generation = node.generation;
    let mut response = Json(convert::node(node)).into_response();
    precondition::mark(response.headers_mut(), generation);
    Ok(response)
}

/// A record that the caller may see; what it may not see does not exist for it.
pub(super) async fn visible(conn: &mut PgConnection, caller: &Caller, id: NodeId) -> Result<Record, Failure> {
    let node = records::get(conn, id).await?.filter(|node| caller.sees_node(&node.identity));
    node.ok_or_else(Failure::not_found)
}

/// Issues an enrolment token for a node: whoever presents its secret becomes that node, once.
///
/// The secret is told in this answer only. The outstanding token of the node stops working as this one is issued. When an
/// idempotent call is answered again, `secret` is null: if the first answer was lost, issue another token.
#[utoipa::path(post, path = "/v1/nodes/{id}/enrolment-tokens", tag = "nodes", operation_id = "issue_enrolment_token",
    request_body(content = Option<EnrolmentTokenRequest>),
    params(
        ("id" = uuid::Uuid, Path, description = "The node"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 201, description = "The token and its secret", body = EnrolmentToken),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn issue_token(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let asked: EnrolmentTokenRequest = body.parse_or_default()?;
    let route = format!("POST /v1/nodes/{id}/enrolment-tokens");
    let call = Repeatable::new(&headers, &caller, route, &serde_json::json!(asked))?;
    let life = asked.expires_in_seconds.map_or(enrolment::DEFAULT_LIFE, |seconds| Duration::from_secs(seconds.into()));
    domain::db::retry_races(|| issue_once(&app, &caller, &call, id, life), Failure::is_race).await
}

async fn issue_once(
    app: &App,
    caller: &Caller,
    call: &Repeatable,
    id: NodeId,
    life: Duration,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    visible(&mut tx, caller, id).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return Ok(answer);
    }
    let issued = enrolment::issue(&mut tx, id, life, caller.identity, caller.actor()).await?;
    let told = EnrolmentToken {
        id: issued.id.0,
        node_id: issued.node.0,
        issued_at: issued.issued_at,
        expires_at: issued.expires_at,
        superseded: issued.superseded.map(|token| token.0),
        secret: Some(issued.secret.whole().clone()),
        control_plane: convert::control_plane(app.config()),
    };
    // The secret goes into no table, so a repeated call is answered without it.
    let kept = EnrolmentToken { secret: None, ..told.clone() };
    let response = call.finish(&mut tx, StatusCode::CREATED, &told, &kept).await?;
    tx.commit().await?;
    Ok(response)
}

/// Revokes the outstanding enrolment token of a node, at once and for good. Where there is none, nothing changes.
#[utoipa::path(post, path = "/v1/nodes/{id}/enrolment-tokens/revoke", tag = "nodes",
    operation_id = "revoke_enrolment_token", request_body(content = Option<Reason>),
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "What was revoked", body = RevokedToken),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke_token(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    body: Body,
) -> Result<Json<RevokedToken>, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let Reason { reason } = body.parse_or_default()?;
    let reason = super::check_reason(reason)?;
    let act = || async {
        let mut tx = domain::db::begin(app.pool()).await?;
        visible(&mut tx, &caller, id).await?;
        let revoked = enrolment::revoke(&mut tx, id, reason.as_deref(), caller.actor()).await?;
        tx.commit().await?;
        Ok(Json(RevokedToken { revoked: revoked.map(|token| token.0) }))
    };
    domain::db::retry_races(act, Failure::is_race).await
}
