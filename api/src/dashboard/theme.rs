//! Light or dark: the system's wish until somebody chooses; the choice is a cookie, so it holds without script.

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::failure::Failure;
use super::headers::{local_path, set_cookie};
use crate::App;
use crate::door::session::cookie;

const COOKIE: &str = "lh_theme";
/// One year.
const MAX_AGE_SECONDS: u64 = 365 * 24 * 3600;

/// A chosen theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Theme {
    Light,
    Dark,
}

impl Theme {
    /// The choice that the browser remembers, if it made one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        match cookie(headers, COOKIE)? {
            "light" => Some(Self::Light),
            "dark" => Some(Self::Dark),
            _ => None,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Light => Self::Dark,
            Self::Dark => Self::Light,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Choice {
    theme: Theme,
    back: String,
}

/// Remembers the choice and goes back. It changes nothing but this browser's own cookie, so it needs no form token.
pub(super) async fn choose(
    State(app): State<App>,
    choice: Result<Form<Choice>, FormRejection>,
) -> Result<Response, Failure> {
    let Form(choice) = choice?;
    let back = Redirect::to(local_path(&choice.back).unwrap_or("/"));
    match set_cookie(COOKIE, choice.theme.word(), MAX_AGE_SECONDS, app.config().secure_cookies) {
        Some(cookie) => Ok(([(header::SET_COOKIE, cookie)], back).into_response()),
        None => Ok(back.into_response()),
    }
}
