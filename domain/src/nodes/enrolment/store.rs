use std::time::Duration;

use sqlx::PgConnection;

use super::{Enrolled, Standing};
use crate::clock::Timestamp;
use crate::ids::{CredentialId, EnrolmentTokenId, IdentityId, NodeId};

/// Ends the outstanding token of a node whose row the caller holds.
pub(super) async fn supersede(conn: &mut PgConnection, node: NodeId) -> Result<Option<EnrolmentTokenId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update node_enrolment_tokens
           set superseded_at = (select lh_now())
         where node_id = $1
           and spent_at is null
           and superseded_at is null
           and revoked_at is null
        returning id as "id: EnrolmentTokenId"
        "#,
        node.0,
    )
    .fetch_optional(conn)
    .await
}

/// As [`supersede`], for an operator who wants none in its place.
pub(super) async fn revoke(conn: &mut PgConnection, node: NodeId) -> Result<Option<EnrolmentTokenId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update node_enrolment_tokens
           set revoked_at = (select lh_now())
         where node_id = $1
           and spent_at is null
           and superseded_at is null
           and revoked_at is null
        returning id as "id: EnrolmentTokenId"
        "#,
        node.0,
    )
    .fetch_optional(conn)
    .await
}

/// Records a token, and returns when it was issued and when it stops working.
pub(super) async fn insert(
    conn: &mut PgConnection,
    id: EnrolmentTokenId,
    node: NodeId,
    hash: &[u8; 32],
    by: IdentityId,
    life: Duration,
) -> Result<(Timestamp, Timestamp), sqlx::Error> {
    let row = sqlx::query!(
        r#"
        insert into node_enrolment_tokens (id, node_id, token_sha256, issued_by, issued_at, expires_at)
        select $1, $2, $3, $4, n.at, n.at + $5::float8 * interval '1 second'
          from (select (select lh_now()) as at) n
        returning issued_at, expires_at
        "#,
        id.0,
        node.0,
        hash.as_slice(),
        by.0,
        life.as_secs_f64(),
    )
    .fetch_one(conn)
    .await?;
    Ok((row.issued_at, row.expires_at))
}

/// Finds and spends a token, and all that follows from it, in one statement; `None` where no live token has this hash, or
/// the key was used before.
///
/// It takes the node's row first, as everybody does who writes its tokens, and reads the clock when it has the row: a token
/// whose time ended during the wait is not spent. What others did to the token meanwhile, PostgreSQL looks at again when
/// it updates it.
pub(super) async fn redeem(
    conn: &mut PgConnection,
    hash: &[u8; 32],
    credential: CredentialId,
    key: &[u8; 32],
) -> Result<Option<Enrolled>, sqlx::Error> {
    let redeemed = sqlx::query_as!(
        Enrolled,
        r#"
        with held as materialized (
            select n.id
              from node_enrolment_tokens t
              join nodes n on n.id = t.node_id
             where t.token_sha256 = $1
               and n.lifecycle = 'active'   -- no credential on a tombstone, and none under a word that nobody knows
               for no key update of n
        ), moment as materialized (
            select h.id, (select lh_now()) as at from held h
        ), spent as (
            update node_enrolment_tokens t
               set spent_at = m.at
              from moment m
             where t.node_id = m.id
               and t.token_sha256 = $1
               and t.spent_at is null
               and t.superseded_at is null
               and t.revoked_at is null
               and t.expires_at > m.at
            returning t.id, t.node_id, t.spent_at
        ), raised as (
            update nodes n
               set incarnation = n.incarnation + 1, generation = n.generation + 1
              from spent s
             where n.id = s.node_id
            returning n.id, n.identity, n.incarnation
        ), revoked as (
            update node_credentials c
               set revoked_at = s.spent_at
              from spent s
             where c.node_id = s.node_id
               and c.revoked_at is null
            returning c.id
        ), before as (
            -- Read by the insert below, so that the old credential has left the index of live ones before the new one comes.
            select (array_agg(r.id))[1] as id from revoked r
        ), made as (
            insert into node_credentials (id, node_id, incarnation, public_key, created_at)
            select $2, r.id, r.incarnation, $3, s.spent_at
              from raised r
              join spent s on s.node_id = r.id
             cross join before b
            returning id, node_id
        )
        select r.id as "node!: NodeId", r.identity as "identity!", r.incarnation as "incarnation!",
               m.id as "credential!: CredentialId", s.id as "token!: EnrolmentTokenId",
               b.id as "revoked?: CredentialId"
          from made m
          join raised r on r.id = m.node_id
          join spent s on s.node_id = m.node_id
         cross join before b
        "#,
        hash.as_slice(),
        credential.0,
        key.as_slice(),
    )
    .fetch_optional(conn)
    .await;
    match redeemed {
        // A machine that sends a key again, or one that sends another's: nothing is spent, and the refusal is the same.
        Err(error) if constraint(&error) == Some("node_credentials_public_key_key") => Ok(None),
        done => done,
    }
}

fn constraint(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error().and_then(|error| error.constraint())
}

/// What the tables say of a secret and a key.
pub(super) async fn standing(
    conn: &mut PgConnection,
    hash: &[u8; 32],
    key: &[u8; 32],
) -> Result<Standing, sqlx::Error> {
    sqlx::query_as!(
        Standing,
        r#"
        select t.node_id as "node?: NodeId",
               coalesce(n.lifecycle <> 'active', false) as "decommissioned!",
               t.spent_at is not null as "spent!",
               t.revoked_at is not null as "revoked!",
               t.superseded_at is not null as "superseded!",
               coalesce(t.expires_at <= (select lh_now()), false) as "expired!",
               exists (select from node_credentials c where c.public_key = $2) as "key_known!"
          from (select) one
          left join node_enrolment_tokens t on t.token_sha256 = $1
          left join nodes n on n.id = t.node_id
        "#,
        hash.as_slice(),
        key.as_slice(),
    )
    .fetch_one(conn)
    .await
}
