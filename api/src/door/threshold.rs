//! What is asked of every request before anybody looks at who sent it: a rate.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::LOCATION;

use super::known::Shown;
use super::rate::Stranger;
use crate::App;

/// Whose connection a request came by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Who shows no key, and who shows one that was not accepted lately, has a rate by address, one for each of the two: it
/// is asked before anybody is looked up, so keys are tried no faster, and a right one waits as long as a wrong one. Who
/// was accepted lately passes, whatever others at the address do. What watches over the process is never refused.
pub async fn strangers(State(app): State<App>, request: Request, next: Next) -> Response {
    let (rates, path) = (app.rates(), request.uri().path());
    let shown = Shown::of(request.headers(), app.config().secure_cookies);
    if matches!(path, "/healthz" | "/readyz") || (path == "/metrics" && shown.is_empty()) {
        return next.run(request).await;
    }
    if !shown.is_empty() && rates.knows(&shown) {
        let response = next.run(request).await;
        if refused(&response) {
            rates.forget(&shown);
        }
        return response;
    }
    let stranger = if shown.is_empty() { Stranger::Nameless } else { Stranger::Unproven };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let taken = match rates.take_stranger(stranger, peer) {
        Ok(taken) => taken,
        Err(failure) => return failure.into_response(),
    };
    let response = next.run(request).await;
    if !shown.is_empty() && rates.knows(&shown) {
        rates.give_back(&taken);
    }
    response
}

/// Whether the answer is for somebody who is not known: a refusal, or a page's way to the sign-in.
fn refused(response: &Response) -> bool {
    let sent_to_sign_in =
        || response.headers().get(LOCATION).is_some_and(|place| place.as_bytes().starts_with(b"/login"));
    response.status() == StatusCode::UNAUTHORIZED || (response.status().is_redirection() && sent_to_sign_in())
}
