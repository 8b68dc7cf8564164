//! Regions, and what their edges serve.

use axum::Json;
use axum::extract::{Path, State};
use domain::audit;
use domain::ids::RegionCode;
use domain::nodes::{self, Bucket, RegionSpec};
use wire::{Edges, Page, Problem, Region, RegionRequest};

use super::instances::visible_app;
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::{App, convert};

/// Longest name of a region or a bucket, in characters.
const MAX_NAME_CHARS: usize = 200;

/// The regions to which an application's instances may move: those that are `armed` and `can_host` (M-113).
///
/// Dormant regions are not listed, and taken all the same when they are named.
#[utoipa::path(get, path = "/v1/apps/{app}/regions", tag = "regions", operation_id = "list_app_regions",
    params(("app" = String, Path, description = "The application")),
    responses(
        (status = 200, description = "The regions, by code", body = Page<Region>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn of_app(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Page<Region>>, Failure> {
    visible_app(&caller, &name)?;
    let mut conn = app.pool().acquire().await?;
    let shown = nodes::regions(&mut conn).await?.into_iter().filter(|region| !region.dormant);
    Ok(Json(crate::door::page::whole(shown, convert::region)))
}

/// Every region, by code.
#[utoipa::path(get, path = "/v1/regions", tag = "regions", operation_id = "list_regions",
    responses(
        (status = 200, description = "The regions", body = Page<Region>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>) -> Result<Json<Page<Region>>, Failure> {
    let mut conn = app.pool().acquire().await?;
    Ok(Json(crate::door::page::whole(nodes::regions(&mut conn).await?, convert::whole_region)))
}

/// Declares a region, or changes it. Its bucket stays the one that was named first.
#[utoipa::path(put, path = "/v1/regions/{code}", tag = "regions", operation_id = "put_region",
    request_body = RegionRequest,
    params(("code" = String, Path, description = "The region's code")),
    responses(
        (status = 200, description = "The region", body = Region),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(code): Path<String>,
    body: Body,
) -> Result<Json<Region>, Failure> {
    let (_, asked) = body.parse::<RegionRequest>()?;
    let code = RegionCode::new(code).map_err(|error| Failure::parameter("code", error.rule))?;
    check_name("/name", &asked.name)?;
    check_name("/data_bucket", &asked.data_bucket)?;
    check_name("/data_bucket_region", &asked.data_bucket_region)?;
    let spec = RegionSpec {
        code,
        name: asked.name,
        armed: asked.armed,
        dormant: asked.dormant,
        home: asked.home,
        is_default: asked.default,
        data: Some(Bucket { name: asked.data_bucket, region: asked.data_bucket_region }),
    };
    domain::db::retry_races(|| put_once(&app, &caller, &spec), Failure::is_race).await
}

async fn put_once(app: &App, caller: &Caller, spec: &RegionSpec) -> Result<Json<Region>, Failure> {
    let mut tx = app.pool().begin().await?;
    let region = match nodes::put_region(&mut tx, spec).await {
        Err(nodes::Error::Store(error)) if another_default(&error) => {
            return Err(Failure::field("/default", "another region is the default: take it from that one first"));
        }
        put => put?,
    };
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
    Ok(Json(convert::whole_region(region)))
}

fn another_default(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.constraint()) == Some("regions_one_default")
}

fn check_name(pointer: &str, name: &str) -> Result<(), Failure> {
    if (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Failure::field(
        pointer,
        format!("must have 1 to {MAX_NAME_CHARS} characters, none of them a control character"),
    ))
}

/// What the edges of a region serve, and where its boxes keep replicas.
#[utoipa::path(get, path = "/v1/edges/{region}", tag = "regions", operation_id = "get_edges",
    params(("region" = String, Path, description = "The region's code")),
    responses(
        (status = 200, description = "The edges document", body = Edges),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn edges(
    State(app): State<App>,
    Path(code): Path<String>,
) -> Result<Json<domain::instances::EdgesDocument>, Failure> {
    let code = RegionCode::new(code).map_err(|_| Failure::not_found())?;
    let mut conn = app.pool().acquire().await?;
    domain::instances::edges(&mut conn, &code).await?.map(Json).ok_or_else(Failure::not_found)
}
