//! What is asked of every request before anybody looks at who sent it: an address that is text, and a rate.

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{AUTHORIZATION, COOKIE, LOCATION};

use super::observe::RequestId;
use crate::App;

/// An address whose escapes are no text names nothing, whatever the route: the same answer as for what does not exist.
pub async fn legible(request: Request, next: Next) -> Response {
    if percent_encoding::percent_decode_str(request.uri().path()).decode_utf8().is_ok() {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().cloned().map(Extension);
    crate::routes::nowhere(request.uri().clone(), request.headers().clone(), id).await
}

/// Requests that show neither a key nor a cookie share one rate, and so do those whose key or cookie is not accepted:
/// nobody tries keys faster than that. What watches over the process is never refused.
pub async fn strangers(State(app): State<App>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let shows_key = headers.contains_key(AUTHORIZATION) || headers.contains_key(COOKIE);
    if shows_key {
        let response = next.run(request).await;
        return match refused(&response).then(|| app.rates().take_nameless()) {
            Some(Err(failure)) => failure.into_response(),
            Some(Ok(())) | None => response,
        };
    }
    let watches = matches!(request.uri().path(), "/healthz" | "/readyz" | "/metrics");
    let admitted = if watches { Ok(()) } else { app.rates().take_nameless() };
    match admitted {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

/// Whether the answer is for somebody who is not known: a refusal, or a page's way to the sign-in.
fn refused(response: &Response) -> bool {
    let sent_to_sign_in =
        || response.headers().get(LOCATION).is_some_and(|place| place.as_bytes().starts_with(b"/login"));
    response.status() == StatusCode::UNAUTHORIZED || (response.status().is_redirection() && sent_to_sign_in())
}
