//! Keys and their identities.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use domain::audit;
use domain::authority::{self, IdentityKind, NewIdentity, NewKey, Permission, Permissions, Role, Scopes};
use domain::ids::{IdentityId, KeyId};
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use sqlx::PgConnection;
use wire::{Code, Key, MadeKey, Page, Problem, Reason};

use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::repeat::Repeatable;
use crate::door::{page, precondition, query};
use crate::{App, convert};

#[derive(Debug, Deserialize)]
struct Asked {
    limit: Option<i64>,
    cursor: Option<String>,
}

/// Keys, newest first; never their secrets.
///
/// A key with scopes is shown those keys whose scopes lie within its own.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", operation_id = "list_keys",
    params(
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Key>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Json<Page<Key>>, Failure> {
    let asked: Asked = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let before = page::cursor::<KeyId>(asked.cursor.as_deref())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = authority::list_keys(&mut conn, &caller.scopes, before, limit + 1).await?;
    Ok(Json(page::of(found, limit, |key| key.id.to_string(), convert::key)))
}

/// Creates a key, for an identity that exists or together with a new one.
///
/// The secret is told in this answer only. A key gives only what its creator may do and see, and
/// outlives no creator that expires. When an idempotent call is
/// answered again, `secret` is null: if the first answer was lost, revoke the key and create another.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", operation_id = "create_key", request_body = wire::NewKey,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 201, description = "The key and its secret", body = MadeKey),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (plain, asked) = body.parse::<wire::NewKey>()?;
    let call = Repeatable::new(&headers, &caller, "POST /v1/keys", &plain)?;
    let permissions = asked
        .permissions
        .as_ref()
        .map(|names| names.iter().enumerate().map(|(i, name)| permission(i, name)).collect::<Result<BTreeSet<_>, _>>())
        .transpose()?;
    domain::db::retry_races(|| create_once(&app, &caller, &call, &asked, permissions.as_ref()), Failure::is_race).await
}

async fn create_once(
    app: &App,
    caller: &Caller,
    call: &Repeatable,
    asked: &wire::NewKey,
    permissions: Option<&BTreeSet<Permission>>,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return precondition::mark_again(answer, |_| None).await;
    }
    let identity = owner(&mut tx, caller, asked).await?;
    let new = NewKey {
        identity,
        name: asked.name.clone(),
        permissions: permissions.cloned(),
        scopes: Scopes { app: asked.scopes.app.clone(), node: asked.scopes.node.clone() },
        expires_at: asked.expires_at,
    };
    let made = match authority::create_key_by(&mut tx, caller, &new).await {
        Err(authority::Error::IdentityNotFound(_)) => {
            return Err(Failure::field("/identity_id", "there is no such identity"));
        }
        made => made?,
    };
    let view = authority::get_key(&mut tx, made.id).await?;
    let event = audit::Event {
        actor: caller.actor(),
        action: "key.create",
        subject_kind: "key",
        subject: made.id.to_string(),
        reason: None,
        detail: serde_json::json!({ "identity": identity, "name": view.name, "permissions": view.permissions,
                                    "scopes": view.scopes }),
    };
    audit::record(&mut tx, &event).await?;
    let key = convert::key(view);
    let told = MadeKey { key: key.clone(), secret: Some(made.secret.whole().clone()) };
    // The secret goes into no table, so a repeated call is answered without it.
    let kept = MadeKey { key, secret: None };
    let mut response = call.finish(&mut tx, StatusCode::CREATED, &told, &kept).await?;
    tx.commit().await?;
    precondition::mark(response.headers_mut(), told.key.revision);
    Ok(response)
}

/// Revokes a key, at once and for good. Revoking it again changes nothing.
///
/// Nobody revokes more than they have: a key that gives a permission which the caller lacks is refused with 403, and
/// one whose scopes reach beyond the caller's does not exist for it.
#[utoipa::path(post, path = "/v1/keys/{id}/revoke", tag = "keys", operation_id = "revoke_key",
    request_body(content = Option<Reason>),
    params(
        ("id" = uuid::Uuid, Path, description = "The key"),
        ("If-Match" = Option<String>, Header, description = "The revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "It is revoked", body = Key),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let id: KeyId = id.parse().map_err(|_| Failure::not_found())?;
    let Reason { reason } = body.parse_or_default()?;
    let reason = super::check_reason(reason)?;
    let if_revision = precondition::expected(&headers)?;
    let act = || revoke_once(&app, &caller, id, reason.as_deref(), if_revision);
    match domain::db::retry_races(act, Failure::is_race).await {
        Err(failure) if failure.code() == Code::StaleRevision => {
            let mut conn = domain::db::session(app.pool()).await?;
            let current = convert::key(authority::get_key(&mut conn, id).await?);
            Err(failure.with_current(Some(serde_json::json!(current))))
        }
        told => told,
    }
}

async fn revoke_once(
    app: &App,
    caller: &Caller,
    id: KeyId,
    reason: Option<&str>,
    if_revision: Option<i64>,
) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if authority::revoke_key_by(&mut tx, caller, id, if_revision).await? {
        let event = audit::Event {
            actor: caller.actor(),
            action: "key.revoke",
            subject_kind: "key",
            subject: id.to_string(),
            reason,
            detail: serde_json::json!({}),
        };
        audit::record(&mut tx, &event).await?;
    }
    let view = authority::get_key(&mut tx, id).await?;
    tx.commit().await?;
    let revision = view.revision;
    let mut response = Json(convert::key(view)).into_response();
    precondition::mark(response.headers_mut(), revision);
    Ok(response)
}

async fn owner(conn: &mut PgConnection, caller: &Caller, asked: &wire::NewKey) -> Result<IdentityId, Failure> {
    match (&asked.identity_id, &asked.identity) {
        (Some(id), None) => Ok(IdentityId(*id)),
        (None, Some(new)) => create_identity(conn, caller, new).await,
        (Some(_), Some(_)) | (None, None) => {
            Err(Failure::field("/identity", "name either identity_id or identity, not both and not neither"))
        }
    }
}

async fn create_identity(
    conn: &mut PgConnection,
    caller: &Caller,
    new: &wire::NewIdentity,
) -> Result<IdentityId, Failure> {
    let kind = match new.kind {
        wire::IdentityKind::Person => IdentityKind::Person,
        wire::IdentityKind::App => IdentityKind::App,
        wire::IdentityKind::Node => IdentityKind::Node,
        wire::IdentityKind::Instance => IdentityKind::Instance,
    };
    let role = |name: &String| {
        let all = Role::ALL.map(Role::as_str).join(", ");
        Role::parse(name).ok_or_else(|| Failure::field("/identity/roles", format!("{name:?} is none of {all}")))
    };
    let roles = new.roles.iter().map(role).collect::<Result<BTreeSet<_>, _>>()?;
    // An identity keeps its roles beyond this key: they too are bounded by what the creator may do.
    if let Some(lacking) = Permissions::effective(kind, &roles, None).first_beyond(&caller.permissions) {
        return Err(authority::Error::Exceeds(format!("the permission {lacking}")).into());
    }
    let identity = NewIdentity { name: new.name.clone(), kind, roles };
    let id = match authority::create_identity(conn, &identity).await {
        Err(authority::Error::Invalid { field, rule }) => {
            return Err(Failure::field(format!("/identity/{field}"), rule));
        }
        made => made?,
    };
    let event = audit::Event {
        actor: caller.actor(),
        action: "identity.create",
        subject_kind: "identity",
        subject: id.to_string(),
        reason: None,
        detail: serde_json::json!({ "name": new.name, "kind": kind, "roles": new.roles }),
    };
    audit::record(conn, &event).await?;
    Ok(id)
}

fn permission(index: usize, name: &str) -> Result<Permission, Failure> {
    Permission::parse(name).ok_or_else(|| {
        let all = Permission::ALL.map(Permission::as_str).join(", ");
        Failure::field(format!("/permissions/{index}"), format!("{name:?} is none of {all}"))
    })
}
