//! In and out: an API key opens a session, a cookie holds it, and a form token guards what is sent under it.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::{AppendHeaders, IntoResponse as _, Redirect, Response};
use domain::audit::{self, Event};
use domain::authority::{self, Caller, Presented, Refusal};
use domain::entropy;
use domain::sessions::{self, Token};
use http::{HeaderMap, StatusCode, header};
use secrecy::SecretString;
use serde::Deserialize;

use super::act::same;
use super::address::Address;
use super::assets::{ADDRESSES, Addresses};
use super::failure::Failure;
use super::headers::{local_path, set_cookie};
use super::page::{Ask, session_cookie};
use super::theme::Theme;
use crate::App;
use crate::door::session::cookie;

/// Holds the token of the sign-in form, for which there is no session yet. Named like the session's cookie: behind TLS
/// no neighbouring host can plant it.
const fn form_cookie(secure: bool) -> &'static str {
    if secure { "__Host-lh_form" } else { "lh_form" }
}
/// How long an open sign-in page stays good.
const FORM_SECONDS: u64 = 3600;

#[derive(Template)]
#[template(path = "login.html")]
struct Page<'a> {
    theme: Option<&'static str>,
    assets: &'static Addresses,
    hours: u64,
    csrf: &'a str,
    next: &'a str,
    refusal: Option<Told>,
}

/// A refusal, as it is told.
struct Told {
    what: &'static str,
    why: &'static str,
}

#[derive(Deserialize)]
pub(super) struct Where {
    #[serde(default)]
    next: String,
}

/// The form.
pub(super) async fn show(
    State(app): State<App>,
    Address(place): Address<Where>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    form(&app, &headers, &place.next, None)
}

fn form(app: &App, headers: &HeaderMap, next: &str, refusal: Option<Told>) -> Result<Response, Failure> {
    let secure = app.config().secure_cookies;
    // A second tab keeps the first one's form good.
    let csrf = match cookie(headers, form_cookie(secure)).filter(|value| well_formed(value)) {
        Some(value) => value.to_owned(),
        None => hex::encode(entropy::bytes::<32>()),
    };
    let status = if refusal.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    let page = Page {
        theme: Theme::of(headers).map(Theme::word),
        assets: &ADDRESSES,
        hours: sessions::LIFE.as_secs() / 3600,
        csrf: &csrf,
        next: local_path(next).unwrap_or("/"),
        refusal,
    };
    let html = page.render()?;
    let cookie = set_cookie(form_cookie(secure), &csrf, FORM_SECONDS, secure);
    let cookies = AppendHeaders(cookie.map(|value| (header::SET_COOKIE, value)));
    Ok((status, cookies, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response())
}

fn well_formed(token: &str) -> bool {
    token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit())
}

#[derive(Deserialize)]
pub(super) struct SignIn {
    csrf: String,
    #[serde(default)]
    next: String,
    key: SecretString,
}

/// Opens a session for a key.
pub(super) async fn sign_in(
    State(app): State<App>,
    headers: HeaderMap,
    sent: Result<Form<SignIn>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    let secure = app.config().secure_cookies;
    // Without this, another site could sign a visitor in as somebody else.
    if !cookie(&headers, form_cookie(secure)).is_some_and(|value| well_formed(value) && same(value, &sent.csrf)) {
        return Err(Failure::Forged);
    }
    match open(&app, &sent.key).await? {
        Some(token) => {
            let next = Redirect::to(local_path(&sent.next).unwrap_or("/"));
            let cookies = [session_cookie(Some(&token), secure), set_cookie(form_cookie(secure), "", 0, secure)];
            let cookies = cookies.into_iter().flatten().map(|value| (header::SET_COOKIE, value));
            Ok((AppendHeaders(cookies.collect::<Vec<_>>()), next).into_response())
        }
        None => {
            let told = Told {
                what: "That key does not work.",
                why: "Unknown, revoked or expired: the answer is the same for all three.",
            };
            form(&app, &headers, &sent.next, Some(told))
        }
    }
}

/// The session of a key that works; `None` for one that does not, whatever the reason.
async fn open(app: &App, key: &SecretString) -> Result<Option<Token>, Failure> {
    let Ok(presented) = Presented::parse(key) else { return Ok(None) };
    let mut transaction = domain::db::begin(app.pool()).await?;
    let caller = match authority::authenticate(&mut transaction, &presented).await {
        Ok(caller) => caller,
        Err(authority::Error::Store(error)) => return Err(error.into()),
        Err(authority::Error::Refused(refusal)) => {
            note(presented.id().to_string(), refusal);
            return Ok(None);
        }
        Err(_) => return Ok(None),
    };
    let (token, session) = sessions::begin(&mut transaction, caller.key).await?;
    record(&mut transaction, &caller, "session.begin", session.id.to_string()).await?;
    transaction.commit().await?;
    Ok(Some(token))
}

/// The log learns what the visitor does not: why the key was refused. A key's id is no secret.
fn note(key: String, refusal: Refusal) {
    tracing::warn!(key.id = key, reason = %refusal, "a sign-in was refused");
}

async fn record(
    conn: &mut sqlx::PgConnection,
    caller: &Caller,
    action: &'static str,
    subject: String,
) -> Result<(), sqlx::Error> {
    let event = Event {
        actor: caller.actor(),
        action,
        subject_kind: "session",
        subject,
        reason: None,
        detail: serde_json::json!({}),
    };
    audit::record(conn, &event).await
}

#[derive(Deserialize)]
pub(super) struct SignOut {
    csrf: String,
}

/// Ends the session.
pub(super) async fn sign_out(
    State(app): State<App>,
    ask: Ask,
    sent: Result<Form<SignOut>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(sent) = sent?;
    if let Some(token) = &ask.token {
        if !same(&token.form_token(), &sent.csrf) {
            return Err(Failure::Forged);
        }
        let mut transaction = domain::db::begin(app.pool()).await?;
        if let Some(session) = sessions::find(&mut transaction, token).await? {
            sessions::end(&mut transaction, token).await?;
            // A session whose key was revoked meanwhile has nobody to name; it ends all the same.
            match authority::caller_of_key(&mut transaction, session.key).await {
                Ok(caller) => record(&mut transaction, &caller, "session.end", session.id.to_string()).await?,
                // After it the transaction can only be rolled back: the session lives, and nobody is told otherwise.
                Err(authority::Error::Store(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        transaction.commit().await?;
    }
    let cookie = session_cookie(None, app.config().secure_cookies);
    Ok((AppendHeaders(cookie.map(|value| (header::SET_COOKIE, value))), Redirect::to("/login")).into_response())
}
