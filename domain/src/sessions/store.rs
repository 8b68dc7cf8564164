//! The rows of sessions. Only hashes come this far.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::Session;
use crate::entropy;
use crate::ids::KeyId;

pub(super) async fn insert(
    conn: &mut PgConnection,
    key: KeyId,
    token_hash: &[u8; 32],
    life: Duration,
) -> Result<Session, sqlx::Error> {
    sqlx::query_as!(
        Session,
        r#"
        insert into sessions (id, key_id, token_hash, created_at, expires_at)
        select $1, $2, $3, n.at, n.at + $4 * interval '1 second'
          from (select (select lh_now()) as at) n
        returning id, key_id as "key: KeyId", expires_at
        "#,
        entropy::uuid_v7() as Uuid,
        key.0,
        token_hash.as_slice(),
        life.as_secs_f64(),
    )
    .fetch_one(conn)
    .await
}

pub(super) async fn find(conn: &mut PgConnection, token_hash: &[u8; 32]) -> Result<Option<Session>, sqlx::Error> {
    sqlx::query_as!(
        Session,
        r#"
        select id, key_id as "key: KeyId", expires_at
          from sessions
         where token_hash = $1
           and expires_at > (select lh_now())
        "#,
        token_hash.as_slice(),
    )
    .fetch_optional(conn)
    .await
}

pub(super) async fn delete(conn: &mut PgConnection, token_hash: &[u8; 32]) -> Result<(), sqlx::Error> {
    sqlx::query!("delete from sessions where token_hash = $1", token_hash.as_slice()).execute(conn).await?;
    Ok(())
}

/// Rows locked by another sweep are left to it: two sign-ins at once neither wait for nor deadlock each other.
pub(super) async fn sweep(conn: &mut PgConnection, limit: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        delete from sessions
         where id in (
               select id from sessions
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

pub(super) async fn end_oldest(conn: &mut PgConnection, key: KeyId, keep: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        delete from sessions
         where id in (
               select id from sessions
                where key_id = $1
                order by created_at desc, id desc
               offset $2
                  for update skip locked)
        "#,
        key.0,
        keep,
    )
    .execute(conn)
    .await?;
    Ok(())
}
