//! Trouble in one shape for all pages: what happened, that nothing was changed, what to do, the code, the request.

use std::sync::Arc;

use askama::Template;
use axum::extract::Request;
use axum::extract::rejection::FormRejection;
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use domain::authority::Permission;
use domain::db;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use wire::Code;

use super::headers::{self, PART};
use super::page::Shell;
use super::theme::Theme;
use crate::door::observe::RequestId;

/// Seconds after which a page that met no database tries again.
const AGAIN_SECONDS: u32 = 5;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nobody is signed in.
    #[error("nobody is signed in")]
    SignIn,
    /// The key may not see this.
    #[error("the key lacks the permission {0}")]
    Forbidden(Permission),
    /// The key sees a part of the fleet, and a page tells of all of it.
    #[error("the key is narrowed by scopes")]
    Scoped,
    /// There is no such thing, or it may not be seen.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The address or the form has a value that is none.
    #[error("{0}")]
    Invalid(String),
    /// The present state forbids it, or it can never be done for this record.
    #[error("{1}")]
    Refused(Code, String),
    /// What the form changes was changed by somebody else since it was opened.
    #[error("it changed since the form was opened")]
    Stale,
    /// The form does not carry the token of its session.
    #[error("the form is not of this session")]
    Forged,
    /// The key asks more often than it may.
    #[error("the key asks too often")]
    TooMany,
    /// The database's.
    #[error("read the page's figures")]
    Store(#[from] sqlx::Error),
    /// A template failed.
    #[error("render the page")]
    Render(#[from] askama::Error),
}

/// A failure on its way to [`dress`], which alone knows how the visitor likes to see it.
#[derive(Clone)]
struct Undressed(Arc<Failure>);

impl From<FormRejection> for Failure {
    fn from(_: FormRejection) -> Self {
        Self::Invalid("The form lacks a field, or has one that is not as it should be.".to_owned())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = face(&self).status().into_response();
        response.extensions_mut().insert(Undressed(Arc::new(self)));
        response
    }
}

/// The face of a failure; its status is the code's.
struct Face {
    code: Code,
    tone: &'static str,
    glyph: &'static str,
    headline: String,
    sentence: String,
    what_now: &'static str,
}

impl Face {
    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

fn face(failure: &Failure) -> Face {
    let quiet = |code, headline: &str, sentence: String, what_now| Face {
        code,
        tone: "idle",
        glyph: "info",
        headline: headline.to_owned(),
        sentence,
        what_now,
    };
    match failure {
        Failure::SignIn => quiet(
            Code::Unauthenticated,
            "Sign in first",
            "Nobody is signed in, or the session has ended.".to_owned(),
            "Sign in with an API key.",
        ),
        Failure::Forbidden(permission) => quiet(
            Code::PermissionDenied,
            "You may not do this",
            format!("Your key lacks the permission {permission}."),
            "Ask an administrator for a key that gives it, or sign in with another one.",
        ),
        Failure::Scoped => quiet(
            Code::PermissionDenied,
            "These pages tell of the whole fleet",
            "Your key is narrowed by scopes to a part of it. Left out for it are the jobs, queues, workers, throughput \
             and refused writes of these pages, which belong to no application."
                .to_owned(),
            "With this key, ask the API: GET /v1/apps/{app}/instances and GET /v1/moves. Or sign in with a key without \
             scopes.",
        ),
        Failure::NotFound(what) => quiet(
            Code::NotFound,
            "There is no such thing here",
            format!("There is no such {what}, or you may not see it."),
            "Check the address.",
        ),
        Failure::Invalid(why) => quiet(
            Code::MalformedRequest,
            "That cannot be asked",
            why.clone(),
            "Correct the address or the form.",
        ),
        Failure::Refused(code, why) => quiet(
            *code,
            "That cannot be done now",
            why.clone(),
            "Open the page again: it says how far it is, and what holds it up. Nothing was changed here.",
        ),
        Failure::Stale => quiet(
            Code::StaleRevision,
            "Somebody else changed it meanwhile",
            "It is not any more what it was when the form was opened. Nothing was changed here.".to_owned(),
            "Open the page again, look at what it is now, and send the form from there.",
        ),
        Failure::Forged => Face {
            code: Code::FormTokenMismatch,
            tone: "warn",
            glyph: "warn",
            headline: "This form is not of your session".to_owned(),
            sentence: "It was opened before you signed in, or it comes from another site.".to_owned(),
            what_now: "Open the page again and send it from there.",
        },
        Failure::TooMany => quiet(
            Code::RateLimited,
            "Too many requests",
            "This key asks more often than it may, through pages or programs.".to_owned(),
            "Wait a moment. A page that is open tries again by itself.",
        ),
        Failure::Store(error) if db::timed_out(error) => Face {
            code: Code::RequestTimeout,
            tone: "warn",
            glyph: "warn",
            headline: "This took too long and was stopped".to_owned(),
            sentence: "The database answers, but not within the time that a page may take.".to_owned(),
            what_now: "Narrow the list by a kind or a queue, or wait until the database has less to do.",
        },
        Failure::Store(error) if db::unavailable(error) => Face {
            code: Code::DatabaseUnavailable,
            tone: "bad",
            glyph: "problem",
            headline: "The database does not answer".to_owned(),
            sentence: "Workers keep their leases as long as these live, and stop themselves before they end."
                .to_owned(),
            what_now: "This page tries again by itself every 5 s. See whether PostgreSQL is up and reachable.",
        },
        Failure::Store(_) | Failure::Render(_) => Face {
            code: Code::Internal,
            tone: "bad",
            glyph: "problem",
            headline: "This page failed".to_owned(),
            sentence: "It is our mistake, and the log says more.".to_owned(),
            what_now: "Try again; if it stays, look for the request's id in the log of the API.",
        },
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct Page<'a> {
    shell: Shell,
    tone: &'a str,
    glyph: &'a str,
    headline: &'a str,
    sentence: &'a str,
    code: &'a str,
    status: u16,
    request: Option<&'a str>,
    what_now: &'a str,
}

/// Gives the failures of all routes their face: a redirect to sign in, or the page of a problem.
pub(super) async fn dress(request: Request, next: Next) -> Response {
    let headers = request.headers().clone();
    // What was sent cannot be gone back to; only what was read can.
    let path = request.uri().path_and_query().filter(|_| request.method() == Method::GET);
    let back = path.map_or_else(|| "/".to_owned(), ToString::to_string);
    let id = request.extensions().get::<RequestId>().cloned();
    let response = next.run(request).await;
    match response.extensions().get::<Undressed>() {
        None => response,
        Some(Undressed(failure)) => {
            let failure = Arc::clone(failure);
            answer(&failure, &back, &headers, id.as_ref())
        }
    }
}

fn answer(failure: &Failure, back: &str, headers: &HeaderMap, id: Option<&RequestId>) -> Response {
    let live = headers.get(PART).is_some_and(|part| part == "live");
    if matches!(failure, Failure::SignIn) && !live {
        return Redirect::to(&format!("/login?next={}", form_urlencoded(back))).into_response();
    }
    let face = face(failure);
    if face.status().is_server_error() {
        tracing::error!(error = failure as &dyn std::error::Error, "a page failed");
    }
    render(&face, back, headers, id)
}

/// The bytes of a query's value, with everything but unreserved characters and slashes escaped.
pub(super) fn form_urlencoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push_str(&hex::encode_upper([byte]));
        }
    }
    encoded
}

fn render(face: &Face, back: &str, headers: &HeaderMap, id: Option<&RequestId>) -> Response {
    let mut shell = Shell::bare(Theme::of(headers), back);
    shell.title.clone_from(&face.headline);
    let away = face.code == Code::DatabaseUnavailable;
    shell.again = away.then_some(AGAIN_SECONDS);
    let page = Page {
        shell,
        tone: face.tone,
        glyph: face.glyph,
        headline: &face.headline,
        sentence: &face.sentence,
        code: face.code.as_str(),
        status: face.status().as_u16(),
        request: id.map(|id| id.0.as_str()),
        what_now: face.what_now,
    };
    let Ok(html) = page.render() else { return face.status().into_response() };
    let mut response = (
        face.status(),
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")],
        html,
    )
        .into_response();
    let wait = match face.status() {
        StatusCode::SERVICE_UNAVAILABLE => Some(AGAIN_SECONDS),
        StatusCode::TOO_MANY_REQUESTS => Some(1),
        _ => None,
    };
    if let Some(seconds) = wait {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The page for an address that does not exist, for requests that want HTML.
#[must_use]
pub(crate) fn not_found(uri: &Uri, headers: &HeaderMap, id: Option<&RequestId>) -> Response {
    let back = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut response = render(&face(&Failure::NotFound("page")), back, headers, id);
    headers::harden(response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_an_address_cannot_become_another_one() {
        assert_eq!(form_urlencoded("/jobs?state=running&a=b c#é"), "/jobs%3Fstate%3Drunning%26a%3Db%20c%23%C3%A9");
    }

    #[test]
    fn a_database_that_is_away_is_told_from_a_mistake_of_ours() {
        let status = |error| face(&Failure::Store(error)).status();
        assert_eq!(status(sqlx::Error::PoolTimedOut), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(sqlx::Error::RowNotFound), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
