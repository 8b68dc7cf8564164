//! The session that a browser's cookie names: who asks by it.

use domain::authority::{self, Caller};
use domain::sessions::{self, Token};
use http::{HeaderMap, header};
use sqlx::PgConnection;

/// The session's cookie. Behind TLS its name carries the prefix that binds it to this very host.
const COOKIE: &str = "lh_session";
const COOKIE_OF_HOST: &str = "__Host-lh_session";

/// The value of a cookie; the first where a browser sends several of one name.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(found, value)| (found == name).then_some(value))
}

/// Behind TLS only the name that is bound to this host counts: a neighbouring host can plant a cookie of any other.
pub(crate) const fn cookie_name(secure: bool) -> &'static str {
    if secure { COOKIE_OF_HOST } else { COOKIE }
}

/// What the session's cookie says, whether or not it is a session's.
pub(super) fn text(headers: &HeaderMap, secure: bool) -> Option<&str> {
    cookie(headers, cookie_name(secure))
}

/// The session that the cookie names.
pub(crate) fn token(headers: &HeaderMap, secure: bool) -> Option<Token> {
    text(headers, secure).and_then(Token::parse)
}

/// Who asks by the dashboard's session cookie; `None` without one, or where the session or its key has ended.
///
/// For reads that a page's script makes, such as the stream of events. Routes that change anything must not use it:
/// a cookie travels by itself, a bearer key does not.
///
/// # Errors
/// Only the database's.
pub(super) async fn caller(
    conn: &mut PgConnection,
    headers: &HeaderMap,
    secure: bool,
) -> Result<Option<Caller>, sqlx::Error> {
    let Some(token) = token(headers, secure) else { return Ok(None) };
    caller_of(conn, &token).await
}

/// The owner of a session; `None` where it or its key has ended.
///
/// # Errors
/// Only the database's.
pub(crate) async fn caller_of(conn: &mut PgConnection, token: &Token) -> Result<Option<Caller>, sqlx::Error> {
    let Some(session) = sessions::find(conn, token).await? else { return Ok(None) };
    match authority::caller_of_key(conn, session.key).await {
        Ok(caller) => Ok(Some(caller)),
        Err(authority::Error::Store(error)) => Err(error),
        // Revoked, expired or disabled since: the session ends with its key.
        Err(_) => Ok(None),
    }
}
