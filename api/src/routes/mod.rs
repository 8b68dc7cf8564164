//! Every route of the API, and the router that they make.

mod audit;
mod docs;
mod enrolments;
mod events;
mod health;
mod instances;
mod jobs;
mod jobs_again;
mod jobs_read;
mod keys;
mod limits;
mod moves;
mod nodes;
mod queues;
mod regions;
mod rehearsals;
mod reports;
mod rescue;
mod standing;

use std::any::Any;

use axum::extract::Request;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Uri};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::door::auth;
use crate::door::failure::Failure;
use crate::door::observe::{self, RequestId};
use crate::door::threshold;

/// Every described route. The guard's table and this list name the same routes: see [`crate::openapi`].
pub(crate) fn described() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::description))
        .routes(routes!(docs::reference))
        .routes(routes!(docs::error_page))
        .routes(routes!(jobs::create, jobs_read::list))
        .routes(routes!(jobs::create_batch))
        .routes(routes!(jobs_read::get))
        .routes(routes!(jobs_read::why))
        .routes(routes!(jobs_read::attempts))
        .routes(routes!(jobs_read::steps))
        .routes(routes!(jobs_read::log))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs_again::run_again))
        .routes(routes!(queues::kinds))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get))
        .routes(routes!(limits::get, limits::put))
        .routes(routes!(limits::pause_queue))
        .routes(routes!(limits::resume_queue))
        .routes(routes!(limits::pause_kind))
        .routes(routes!(limits::resume_kind))
        .routes(routes!(limits::pauses))
        .routes(routes!(queues::throughput))
        .routes(routes!(queues::workers))
        .routes(routes!(queues::worker))
        .routes(routes!(queues::fenced_writes))
        .routes(routes!(events::stream))
        .routes(routes!(instances::create, instances::list))
        .routes(routes!(instances::get))
        .routes(routes!(instances::set_environment))
        .routes(routes!(standing::why))
        .routes(routes!(standing::park))
        .routes(routes!(standing::wake))
        .routes(routes!(standing::restart))
        .routes(routes!(moves::start, moves::abort))
        .routes(routes!(moves::cut))
        .routes(routes!(rehearsals::look))
        .routes(routes!(rescue::unstick))
        .routes(routes!(rescue::point))
        .routes(routes!(moves::history))
        .routes(routes!(moves::list))
        .routes(routes!(moves::get))
        .routes(routes!(moves::steps))
        .routes(routes!(moves::receipt))
        .routes(routes!(regions::of_app))
        .routes(routes!(regions::edges))
        .routes(routes!(regions::list))
        .routes(routes!(regions::put))
        .routes(routes!(nodes::create, nodes::list))
        .routes(routes!(nodes::get))
        .routes(routes!(nodes::issue_token))
        .routes(routes!(nodes::revoke_token))
        .routes(routes!(reports::put, reports::get))
        .routes(routes!(reports::rebuild))
        .routes(routes!(enrolments::enrol))
        .routes(routes!(enrolments::nonce))
        .routes(routes!(enrolments::open_session))
        .routes(routes!(audit::list))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
}

/// The whole API as one service.
pub fn router(app: App) -> Router {
    let (api, _) = described().split_for_parts();
    let api = api.layer(from_fn_with_state(app.clone(), auth::guard));
    Router::new()
        .merge(api)
        .merge(crate::dashboard::router())
        .fallback(nowhere)
        .layer(from_fn_with_state(app.clone(), threshold::strangers))
        .layer(from_fn(legible))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}

/// The figures of this process, and whether it lives: what a worker serves.
pub(crate) fn figures(handle: PrometheusHandle) -> Router {
    let render = move || std::future::ready(([(CONTENT_TYPE, health::PROMETHEUS)], handle.render()));
    Router::new().route("/healthz", get(health::alive)).route("/metrics", get(render))
}

/// Programs get a problem, people a page.
async fn nowhere(uri: Uri, headers: HeaderMap, id: Option<Extension<RequestId>>) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") && !uri.path().starts_with("/v1/") {
        crate::dashboard::not_found(&uri, &headers, id.as_ref().map(|Extension(id)| id))
    } else {
        Failure::not_found().into_response()
    }
}

/// An address whose escapes are no text names nothing, whatever the route: the same answer as for what does not exist.
async fn legible(request: Request, next: Next) -> Response {
    if percent_encoding::percent_decode_str(request.uri().path()).decode_utf8().is_ok() {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().cloned().map(Extension);
    nowhere(request.uri().clone(), request.headers().clone(), id).await
}

/// A bug in a handler costs one request, never the process.
fn panicked(cause: Box<dyn Any + Send + 'static>) -> Response {
    let text = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    let error: Box<dyn std::error::Error + Send + Sync> = text.into();
    Failure::internal(&*error).into_response()
}

/// A reason within its bounds; an empty one is none.
fn check_reason(reason: Option<String>) -> Result<Option<String>, Failure> {
    let reason = domain::audit::reason(reason.as_deref().unwrap_or_default());
    let reason = reason.map_err(|too_long| Failure::field("/reason", too_long.to_string()))?;
    Ok(reason.map(str::to_owned))
}
