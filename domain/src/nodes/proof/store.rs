use std::time::Duration;

use sqlx::PgConnection;

use super::Session;
use crate::clock::Timestamp;
use crate::ids::{CredentialId, NodeId, NodeSessionId};

pub(super) async fn insert_nonce(
    conn: &mut PgConnection,
    nonce: &[u8; 32],
    node: NodeId,
    life: Duration,
) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        insert into node_nonces (nonce, node_id, expires_at)
        values ($1, $2, (select lh_now()) + $3::float8 * interval '1 second')
        returning expires_at
        "#,
        nonce.as_slice(),
        node.0,
        life.as_secs_f64(),
    )
    .fetch_one(conn)
    .await
}

/// Removes a nonce; whether it was there, for this node, and its time not over.
pub(super) async fn take_nonce(conn: &mut PgConnection, nonce: &[u8; 32], node: NodeId) -> Result<bool, sqlx::Error> {
    let fresh = sqlx::query_scalar!(
        r#"
        delete from node_nonces
         where nonce = $1
           and node_id = $2
        returning expires_at > (select lh_now()) as "fresh!"
        "#,
        nonce.as_slice(),
        node.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(fresh == Some(true))
}

/// The live credential of a node that is active, and its public key.
pub(super) async fn live_key(
    conn: &mut PgConnection,
    node: NodeId,
) -> Result<Option<(CredentialId, Vec<u8>)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select c.id as "id: CredentialId", c.public_key
          from node_credentials c
          join nodes n on n.id = c.node_id
         where c.node_id = $1
           and c.revoked_at is null
           and c.incarnation = n.incarnation
           and n.lifecycle = 'active'
        "#,
        node.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (row.id, row.public_key)))
}

pub(super) async fn insert_session(
    conn: &mut PgConnection,
    id: NodeSessionId,
    credential: CredentialId,
    hash: &[u8; 32],
    life: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into node_sessions (id, node_id, credential_id, incarnation, token_sha256, created_at, expires_at)
        select $1, c.node_id, c.id, c.incarnation, $3, n.at, n.at + $4::float8 * interval '1 second'
          from node_credentials c
         cross join (select (select lh_now()) as at) n
         where c.id = $2
        "#,
        id.0,
        credential.0,
        hash.as_slice(),
        life.as_secs_f64(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A session while all of this holds: its time, its credential, the node's incarnation, the node's lifecycle.
pub(super) async fn find(conn: &mut PgConnection, hash: &[u8; 32]) -> Result<Option<Session>, sqlx::Error> {
    sqlx::query_as!(
        Session,
        r#"
        select s.id as "id: NodeSessionId", s.node_id as "node: NodeId", n.identity, s.incarnation, s.expires_at
          from node_sessions s
          join node_credentials c on c.id = s.credential_id
          join nodes n on n.id = s.node_id
         where s.token_sha256 = $1
           and s.expires_at > (select lh_now())
           and c.revoked_at is null
           and s.incarnation = n.incarnation
           and n.lifecycle = 'active'
        "#,
        hash.as_slice(),
    )
    .fetch_optional(conn)
    .await
}

/// Rows locked by another sweep are left to it.
pub(super) async fn sweep_nonces(conn: &mut PgConnection, limit: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        delete from node_nonces
         where nonce in (
               select nonce from node_nonces
                where expires_at <= (select lh_now())
                order by expires_at
                limit $1
                  for update skip locked)
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// As [`sweep_nonces`].
pub(super) async fn sweep_sessions(conn: &mut PgConnection, limit: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        delete from node_sessions
         where id in (
               select id from node_sessions
                where expires_at <= (select lh_now())
                order by expires_at
                limit $1
                  for update skip locked)
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn end_oldest(conn: &mut PgConnection, node: NodeId, keep: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        delete from node_sessions
         where id in (
               select id from node_sessions
                where node_id = $1
                order by created_at desc, id desc
               offset $2
                  for update skip locked)
        "#,
        node.0,
        keep,
    )
    .execute(conn)
    .await?;
    Ok(())
}
