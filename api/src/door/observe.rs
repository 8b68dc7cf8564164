//! One span, one log line and the metrics of each request; also where a failure gets its final form.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::Instrument as _;
use wire::Code;

use super::failure::Failure;
use crate::App;

/// The header that carries a request's id, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_CHARS: usize = 64;

/// A request's id: the caller's, where it is of a harmless form, else a new one.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// The outermost layer.
pub async fn observe(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId(asked_id(request.headers()).unwrap_or_else(|| domain::entropy::uuid_v7().to_string()));
    request.extensions_mut().insert(id.clone());
    let method = request.method().clone();
    // The matched route, never the raw path: paths are unbounded and may name what is nobody's business.
    let route =
        request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let span = tracing::info_span!(
        "request",
        request.id = %id.0,
        http.method = %method,
        http.route = %route,
        http.status = tracing::field::Empty,
        identity.id = tracing::field::Empty,
        elapsed_ms = tracing::field::Empty,
    );
    let response = handle(request, next, app.config().request_timeout).instrument(span.clone()).await;
    let (mut response, failure) = finish(response, &id);
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (status, elapsed) = (response.status().as_u16(), began.elapsed());
    span.record("http.status", status);
    span.record("elapsed_ms", u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
    span.in_scope(|| tell(&route, status, failure.as_ref()));
    crate::metrics::request(method.as_str(), &route, status, elapsed);
    response
}

async fn handle(request: Request, next: Next, limit: Duration) -> Response {
    use axum::response::IntoResponse as _;
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::new(
            Code::RequestTimeout,
            format!(
                "The request took longer than {} s and was given up: ask for less at once, or ask again.",
                limit.as_secs()
            ),
        )
        .retry_after(1)
        .into_response(),
    }
}

fn finish(mut response: Response, id: &RequestId) -> (Response, Option<Failure>) {
    let Some(failure) = response.extensions_mut().remove::<Failure>() else { return (response, None) };
    // Headers that an inner layer added, e.g. Allow, stay.
    let mut told = failure.respond(Some(&id.0));
    for (name, value) in response.headers() {
        if !told.headers().contains_key(name) && *name != http::header::CONTENT_LENGTH {
            told.headers_mut().append(name, value.clone());
        }
    }
    (told, Some(failure))
}

fn tell(route: &str, status: u16, failure: Option<&Failure>) {
    match failure {
        Some(failure) if status >= 500 && status != 503 => {
            tracing::error!(code = failure.code().as_str(), cause = failure.cause(), "request failed");
        }
        Some(failure) if status == 503 => {
            tracing::warn!(code = failure.code().as_str(), cause = failure.cause(), "request not possible now");
        }
        Some(failure) => tracing::info!(code = failure.code().as_str(), "request refused"),
        None if matches!(route, "/healthz" | "/readyz" | "/metrics") => tracing::debug!("request done"),
        None => tracing::info!("request done"),
    }
}

fn asked_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(&REQUEST_ID)?.to_str().ok()?;
    let harmless = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    (harmless && (1..=MAX_ID_CHARS).contains(&text.len())).then(|| text.to_owned())
}
