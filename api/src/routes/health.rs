//! Whether the process lives, whether it can work, and its figures.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use wire::{Check, Readiness};

use crate::App;
use crate::door::failure::Failure;

/// The media type of Prometheus's text form.
pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Longest wait for the database's answer: whoever asks for readiness asks often and waits little.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an answer of the database is good for: whoever may ask without a key costs it one statement a second.
const READY_AGE: Duration = Duration::from_secs(1);

/// Whether the process lives. Asks nothing of the database.
#[utoipa::path(get, path = "/healthz", tag = "health", operation_id = "alive",
    responses((status = 200, description = "It lives", body = String, content_type = "text/plain")))]
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Whether the API can do its work: the database answers, its schema is the one this program knows, and every loop runs.
#[utoipa::path(get, path = "/readyz", tag = "health", operation_id = "ready",
    responses(
        (status = 200, description = "It can", body = Readiness),
        (status = 503, description = "It cannot; `checks` says why", body = Readiness)))]
pub(super) async fn ready(State(app): State<App>) -> Response {
    let mut checks = lately(&app).await;
    checks.extend(app.loops().iter().map(|pulse| Check {
        name: pulse.name.to_owned(),
        ok: pulse.alive(),
        detail: (!pulse.alive()).then(|| "the loop ended: restart this process and read its log".to_owned()),
    }));
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, checks })).into_response()
}

/// What the database said within the last second. Those who ask at once wait for one answer.
async fn lately(app: &App) -> Vec<Check> {
    let mut checked = app.checked().lock().await;
    match checked.as_ref() {
        Some((at, checks)) if at.elapsed() < READY_AGE => checks.clone(),
        _ => {
            let checks = of_database(app).await;
            *checked = Some((Instant::now(), checks.clone()));
            checks
        }
    }
}

async fn of_database(app: &App) -> Vec<Check> {
    let check = |name: &str, detail: Option<String>| Check { name: name.to_owned(), ok: detail.is_none(), detail };
    let asked = tokio::time::timeout(READY_TIMEOUT, domain::db::check_schema(app.pool())).await;
    match asked {
        Ok(Ok(())) => vec![check("database", None), check("schema", None)],
        Ok(Err(error @ (domain::db::Error::SchemaOld { .. } | domain::db::Error::SchemaNew { .. }))) => {
            vec![check("database", None), check("schema", Some(error.to_string()))]
        }
        // The cause may name hosts and users: it belongs to the log.
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the database does not answer");
            vec![check("database", Some("the database does not answer".to_owned()))]
        }
        Err(_) => vec![check("database", Some("the database does not answer in time".to_owned()))],
    }
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", operation_id = "metrics",
    responses(
        (status = 200, description = "Prometheus text", body = String, content_type = "text/plain"),
        (status = "default", description = "Why not", body = wire::Problem, content_type = "application/problem+json")))]
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Failure> {
    let mut text = app.metrics().render();
    let mut conn = domain::db::session(app.pool()).await?;
    let overview = domain::queue::overview(&mut conn).await?;
    let queues = domain::queue::queues(&mut conn).await?;
    text.push_str(&crate::metrics::of_database(&overview, &queues));
    Ok(([(CONTENT_TYPE, PROMETHEUS)], text).into_response())
}
