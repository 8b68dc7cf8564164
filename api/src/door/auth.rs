//! Who calls, and whether they may: asked once for each request, before its body is read.

use std::collections::BTreeSet;

use axum::extract::{FromRequestParts, MatchedPath, OptionalFromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use domain::authority::{self, IdentityKind, Permission, Permissions, Presented, Refusal, Scopes};
use domain::ids::{IdentityId, KeyId};
use domain::nodes::proof::{self, Bearer};
use http::header::{ALLOW, AUTHORIZATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use wire::Code;

use super::access::{self, Access, Honours};
use super::failure::Failure;
use super::known::Shown;
use super::session;
use crate::App;

/// The authenticated caller of a route that needs one.
#[derive(Debug, Clone)]
pub struct Caller(pub authority::Caller);

impl std::ops::Deref for Caller {
    type Target = authority::Caller;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // A handler that asks for a caller on an open route gets a refusal, never a caller that nobody checked.
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}

/// The node that proved itself by a session: what a route asks for that is the node's own. No API key is one, whatever its kind.
#[derive(Debug, Clone)]
pub struct Proven(pub proof::Session);

impl<S: Send + Sync> OptionalFromRequestParts<S> for Proven {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// The layer over every route of the API: permission, scopes, rate, shape of the query.
pub async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admit(&app, &mut request).await {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            let wrong_method = failure.code() == Code::MethodNotAllowed;
            let mut response = failure.into_response();
            if wrong_method && let Some(allow) = allowed(&request) {
                response.headers_mut().insert(ALLOW, allow);
            }
            response
        }
    }
}

async fn admit(app: &App, request: &mut Request) -> Result<(), Failure> {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(path) = path else { return Err(Failure::not_found()) };
    let Some(access) = access::of(request.method().as_str(), &path) else {
        return Err(Failure::new(
            Code::MethodNotAllowed,
            format!("{} is not allowed here; the Allow header lists what is.", request.method()),
        ));
    };
    let open = matches!(access, Access::NeedsUnlessPublic(_)) && app.config().metrics_public;
    if let Some((permission, honours)) = access.needed().filter(|_| !open) {
        let (caller, proven) = caller(app, &path, request.headers()).await?;
        tracing::Span::current().record("identity.id", tracing::field::display(caller.identity));
        app.rates().take(caller.key)?;
        permit(&caller, permission, honours)?;
        request.extensions_mut().insert(Caller(caller));
        if let Some(session) = proven {
            request.extensions_mut().insert(Proven(session));
        }
    }
    super::query::check(app.queries(), request.method().as_str(), &path, request.uri().query())
}

/// Asks again what the guard asked when a stream was opened.
///
/// # Errors
/// Why the same request would be refused now.
pub(crate) async fn still(app: &App, method: &str, path: &str, headers: &HeaderMap) -> Result<(), Failure> {
    let Some((permission, honours)) = access::of(method, path).and_then(Access::needed) else { return Ok(()) };
    permit(&caller(app, path, headers).await?.0, permission, honours)
}

fn permit(caller: &authority::Caller, permission: Permission, honours: Honours) -> Result<(), Failure> {
    let denied = |detail| Err(Failure::new(Code::PermissionDenied, detail));
    if !caller.may(permission) {
        return denied(format!(
            "This needs the permission {permission}, which this key does not give: use a key that does."
        ));
    }
    if let Some(dimension) = honours.lacks(&caller.scopes) {
        return denied(format!(
            "This key is narrowed by scopes.{dimension}, which this route cannot keep to: use a key without it."
        ));
    }
    Ok(())
}

/// The owner of the presented key, or, where a page's script may listen, of the session's cookie; and the session of a node.
async fn caller(
    app: &App,
    path: &str,
    headers: &HeaderMap,
) -> Result<(authority::Caller, Option<proof::Session>), Failure> {
    if access::BY_SESSION.contains(&path) && !headers.contains_key(AUTHORIZATION) {
        let (mut conn, secure) = (domain::db::session(app.pool()).await?, app.config().secure_cookies);
        let caller = session::caller(&mut conn, headers, secure).await?.ok_or_else(missing)?;
        app.rates().accepted(&Shown::session(headers, secure));
        return Ok((caller, None));
    }
    let text = bearer(headers)?;
    // What has not the form of either is refused without a look into the database.
    let caller = if text.expose_secret().starts_with(proof::PREFIX) {
        let bearer = Bearer::parse(&text).ok_or_else(ended)?;
        let mut conn = domain::db::session(app.pool()).await?;
        let session = proof::find(&mut conn, &bearer).await?.ok_or_else(ended)?;
        (of_node(&session), Some(session))
    } else {
        let presented = Presented::parse(&text).map_err(refused)?;
        let mut conn = domain::db::session(app.pool()).await?;
        (authority::authenticate(&mut conn, &presented).await?, None)
    };
    app.rates().accepted(&Shown::keys(headers));
    Ok(caller)
}

/// A node by its session: it has what its kind gives, and sees itself. Its credential was asked about just now.
fn of_node(session: &proof::Session) -> authority::Caller {
    authority::Caller {
        identity: IdentityId(session.node.0),
        key: KeyId(session.id.0),
        kind: IdentityKind::Node,
        permissions: Permissions::effective(IdentityKind::Node, &BTreeSet::new(), None),
        scopes: Scopes { app: None, node: Some(BTreeSet::from([session.identity.clone()])) },
        name: session.identity.clone(),
        expires_at: Some(session.expires_at),
    }
}

/// A session that is not known, or works no more.
pub(crate) fn ended() -> Failure {
    Failure::new(
        Code::Unauthenticated,
        "The node's session is not known, has ended, or its machine was replaced: open another one.",
    )
}

fn bearer(headers: &HeaderMap) -> Result<SecretString, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(missing()) };
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| SecretString::from(key.trim()))
        .ok_or_else(missing)
}

fn missing() -> Failure {
    Failure::new(
        Code::Unauthenticated,
        "Send one header `Authorization: Bearer lh_…`. The first key comes from `leasehold key bootstrap`.",
    )
}

/// A key that is not accepted. Only who holds the right secret learns that it was revoked or has expired.
pub(super) fn refused(refusal: Refusal) -> Failure {
    let detail = match refusal {
        Refusal::Malformed | Refusal::Unknown => "The key is not known: check that it was copied whole.",
        Refusal::Revoked => "The key was revoked: ask an administrator for a new one.",
        Refusal::Expired => "The key has expired: ask an administrator for a new one.",
        Refusal::Disabled => "The key's identity is disabled: ask an administrator.",
    };
    Failure::new(Code::Unauthenticated, detail)
}

fn allowed(request: &Request) -> Option<HeaderValue> {
    let path = request.extensions().get::<MatchedPath>()?;
    HeaderValue::from_str(&access::methods(path.as_str())).ok()
}
