use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, IdentityKind, KeyView, Scopes};
use crate::clock::Timestamp;
use crate::ids::{IdentityId, KeyId};

pub(super) struct KeyRow {
    pub(super) key: KeyId,
    pub(super) identity: IdentityId,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) roles: Vec<String>,
    pub(super) secret_hash: Vec<u8>,
    pub(super) permissions: Option<Vec<String>>,
    pub(super) scopes: serde_json::Value,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) revoked: bool,
    pub(super) expired: bool,
    pub(super) disabled: bool,
}

pub(super) struct BoundsRow {
    pub(super) kind: String,
    pub(super) roles: Vec<String>,
    pub(super) permissions: Option<Vec<String>>,
    pub(super) scopes: serde_json::Value,
    pub(super) revision: i64,
}

pub(super) struct IdentityRow {
    pub(super) kind: String,
    pub(super) roles: Vec<String>,
}

pub(super) struct NewKeyRow<'a> {
    pub(super) id: KeyId,
    pub(super) identity: IdentityId,
    pub(super) name: &'a str,
    pub(super) secret_hash: &'a [u8; 32],
    pub(super) permissions: Option<&'a [&'a str]>,
    pub(super) scopes: &'a serde_json::Value,
    pub(super) expires_at: Option<Timestamp>,
}

pub(super) async fn find_key(conn: &mut PgConnection, key: KeyId) -> Result<Option<KeyRow>, sqlx::Error> {
    sqlx::query_as!(
        KeyRow,
        r#"
        select k.id as "key: KeyId", i.id as "identity: IdentityId", i.name, i.kind, i.roles, k.secret_hash,
               k.permissions, k.scopes, k.expires_at,
               k.revoked_at is not null as "revoked!",
               coalesce(k.expires_at <= (select lh_now()), false) as "expired!",
               i.disabled_at is not null as "disabled!"
          from api_keys k
          join identities i on i.id = k.identity_id
         where k.id = $1
        "#,
        key.0,
    )
    .fetch_optional(conn)
    .await
}

pub(super) async fn find_identity(conn: &mut PgConnection, id: IdentityId) -> Result<Option<IdentityRow>, sqlx::Error> {
    // Locked, so that what is checked of its roles still holds when the key is written.
    sqlx::query_as!(IdentityRow, "select kind, roles from identities where id = $1 for share", id.0)
        .fetch_optional(conn)
        .await
}

pub(super) async fn lock_bootstrap(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select pg_advisory_xact_lock(hashtext('leasehold bootstrap'))").execute(conn).await?;
    Ok(())
}

/// An administrator who can act: neither disabled nor without a working key.
pub(super) async fn administrator(conn: &mut PgConnection) -> Result<Option<IdentityId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select i.id as "id: IdentityId"
          from identities i
          join api_keys k on k.identity_id = i.id
         where 'admin' = any (i.roles)
           and i.disabled_at is null
           and k.revoked_at is null
           and (k.expires_at is null or k.expires_at > (select lh_now()))
         order by i.id
         limit 1
        "#
    )
    .fetch_optional(conn)
    .await
}

/// Returns whether the name was free.
pub(super) async fn insert_identity(
    conn: &mut PgConnection,
    id: IdentityId,
    name: &str,
    kind: &str,
    roles: &[&str],
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        insert into identities (id, name, kind, roles, created_at)
        values ($1, $2, $3, $4, (select lh_now()))
            on conflict (name) do nothing
        "#,
        id.0,
        name,
        kind,
        roles as &[&str],
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn insert_key(conn: &mut PgConnection, new: NewKeyRow<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into api_keys (id, identity_id, name, secret_hash, permissions, scopes, created_at, expires_at)
        values ($1, $2, $3, $4, $5, $6, (select lh_now()), $7)
        "#,
        new.id.0,
        new.identity.0,
        new.name,
        new.secret_hash.as_slice(),
        new.permissions as Option<&[&str]>,
        new.scopes,
        new.expires_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// `None` where there is no such key, else whether it was not revoked before.
pub(super) async fn revoke_key(conn: &mut PgConnection, key: KeyId) -> Result<Option<bool>, sqlx::Error> {
    let before =
        sqlx::query_scalar!(r#"select revoked_at is null as "worked!" from api_keys where id = $1 for update"#, key.0,)
            .fetch_optional(&mut *conn)
            .await?;
    if before == Some(true) {
        sqlx::query!(
            "update api_keys set revoked_at = (select lh_now()), revision = revision + 1 where id = $1",
            key.0
        )
        .execute(conn)
        .await?;
    }
    Ok(before)
}

/// What bounds the revoking of a key; locked, so that it still holds when the key is revoked.
pub(super) async fn find_bounds(conn: &mut PgConnection, key: KeyId) -> Result<Option<BoundsRow>, sqlx::Error> {
    sqlx::query_as!(
        BoundsRow,
        r#"
        select i.kind, i.roles, k.permissions, k.scopes, k.revision
          from api_keys k
          join identities i on i.id = k.identity_id
         where k.id = $1
           for update of k
           for share of i
        "#,
        key.0,
    )
    .fetch_optional(conn)
    .await
}

/// Keys whose scopes lie within `seen`: of a dimension that `seen` narrows, those that are narrowed at least as far.
pub(super) async fn list_keys(
    conn: &mut PgConnection,
    only: Option<KeyId>,
    seen: &Scopes,
    before: Option<KeyId>,
    limit: u16,
) -> Result<Vec<KeyView>, Error> {
    // Bounds that both have a value: an optional one would be no condition of an index.
    let below = |id: KeyId| Uuid::from_u128(id.0.as_u128().saturating_sub(1));
    let lowest = only.map_or(Uuid::nil(), |id| id.0);
    let highest = only.map(|id| id.0).or_else(|| before.map(below)).unwrap_or_else(Uuid::max);
    let (apps, nodes) = (seen.app.as_ref().map(|set| json!(set)), seen.node.as_ref().map(|set| json!(set)));
    let rows = sqlx::query!(
        r#"
        select k.id as "id: KeyId", i.id as "identity: IdentityId", i.name as identity_name, i.kind, i.roles, k.name,
               k.permissions, k.scopes, k.created_at, k.expires_at, k.revoked_at, k.revision
          from api_keys k
          join identities i on i.id = k.identity_id
         where k.id between $1 and $2
           and ($3::jsonb is null or k.scopes -> 'app' <@ $3)
           and ($4::jsonb is null or k.scopes -> 'node' <@ $4)
         order by k.id desc
         limit $5
        "#,
        lowest,
        highest,
        apps,
        nodes,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| KeyView {
            id: r.id,
            identity: r.identity,
            identity_name: r.identity_name,
            // The table's constraint and the enum hold the same four words.
            identity_kind: IdentityKind::parse(&r.kind).unwrap_or(IdentityKind::Instance),
            roles: r.roles,
            name: r.name,
            permissions: r.permissions,
            scopes: r.scopes,
            created_at: r.created_at,
            expires_at: r.expires_at,
            revoked_at: r.revoked_at,
            revision: r.revision,
        })
        .collect())
}
