//! Regions, and what their edges serve.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::audit;
use domain::authority::IdentityKind;
use domain::ids::RegionCode;
use domain::nodes::{self, Bucket, RegionSpec};
use http::{HeaderMap, Uri};
use wire::{Code, Edges, Page, Problem, Region, RegionRequest};

use super::instances::visible_app;
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::{page, precondition};
use crate::{App, convert};

/// The regions to which an application's instances may move: those that are `armed` and `can_host` (M-113). One whose `env` has
/// sealed values needs a region with a `config_key` as well (M-115).
///
/// Dormant regions are not listed, and taken all the same when they are named.
#[utoipa::path(get, path = "/v1/apps/{app}/regions", tag = "regions", operation_id = "list_app_regions",
    params(
        ("app" = String, Path, description = "The application"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page, by code", body = Page<Region>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn of_app(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<Json<Page<Region>>, Failure> {
    visible_app(&caller, &name)?;
    let (limit, after) = page::read::<RegionCode>(&uri)?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = nodes::regions(&mut conn, false, after.as_ref(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |region| region.code.to_string(), convert::region)))
}

/// Every region, by code.
#[utoipa::path(get, path = "/v1/regions", tag = "regions", operation_id = "list_regions",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Region>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<Page<Region>>, Failure> {
    let (limit, after) = page::read::<RegionCode>(&uri)?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = nodes::regions(&mut conn, true, after.as_ref(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |region| region.code.to_string(), convert::whole_region)))
}

/// Declares a region, or changes it.
///
/// Its bucket can change only while no node, no instance and no move in flight uses it.
#[utoipa::path(put, path = "/v1/regions/{code}", tag = "regions", operation_id = "put_region",
    request_body = RegionRequest,
    params(
        ("code" = String, Path, description = "The region's code"),
        ("If-Match" = Option<String>, Header, description = "The serial that was seen, in quotation marks")),
    responses(
        (status = 200, description = "The region; its serial is the ETag", body = Region),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(code): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let if_serial = precondition::expected(&headers)?;
    let (_, asked) = body.parse::<RegionRequest>()?;
    let code = RegionCode::new(code).map_err(|error| Failure::parameter("code", error.rule))?;
    let spec = RegionSpec {
        code,
        name: asked.name,
        armed: asked.armed,
        dormant: asked.dormant,
        home: asked.home,
        is_default: asked.default,
        data: Some(Bucket { name: asked.data_bucket, region: asked.data_bucket_region }),
    };
    match domain::db::retry_races(|| put_once(&app, &caller, &spec, if_serial), Failure::is_race).await {
        Err(failure) if matches!(failure.code(), Code::StaleRevision | Code::RegionInUse) => {
            let mut conn = domain::db::session(app.pool()).await?;
            let current = nodes::region(&mut conn, &spec.code).await?;
            Err(failure.with_current(current.map(|region| serde_json::json!(convert::whole_region(region)))))
        }
        told => told,
    }
}

async fn put_once(app: &App, caller: &Caller, spec: &RegionSpec, if_serial: Option<i64>) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let region = nodes::put_region_if(&mut tx, spec, if_serial).await?;
    let event = audit::Event {
        actor: caller.actor(),
        action: "region.put",
        subject_kind: "region",
        subject: spec.code.to_string(),
        reason: None,
        detail: serde_json::json!({ "armed": spec.armed, "dormant": spec.dormant, "home": spec.home,
                                    "default": spec.is_default, "data": spec.data }),
    };
    audit::record(&mut tx, &event).await?;
    tx.commit().await?;
    let serial = region.serial;
    let mut response = Json(convert::whole_region(region)).into_response();
    precondition::mark(response.headers_mut(), serial);
    Ok(response)
}

/// What the edges of a region serve, and where its boxes keep replicas.
///
/// A box's own key reads the documents of the regions in which its boxes stand.
#[utoipa::path(get, path = "/v1/edges/{region}", tag = "regions", operation_id = "get_edges",
    params(("region" = String, Path, description = "The region's code")),
    responses(
        (status = 200, description = "The edges document", body = Edges),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn edges(
    State(app): State<App>,
    caller: Caller,
    Path(code): Path<String>,
) -> Result<Json<domain::instances::EdgesDocument>, Failure> {
    let code = RegionCode::new(code).map_err(|_| Failure::not_found())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let document = domain::instances::edges(&mut conn, &code).await?.ok_or_else(Failure::not_found)?;
    let sees_all = caller.kind == IdentityKind::Person && caller.scopes.node.is_none();
    if sees_all || document.boxes.iter().any(|found| caller.sees_node(&found.identity)) {
        return Ok(Json(document));
    }
    Err(Failure::not_found())
}
