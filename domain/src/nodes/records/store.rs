use sqlx::PgConnection;

use super::{NewRecord, Record, Wanted};
use crate::ids::{NodeId, RegionCode};
use crate::nodes::SILENT_AFTER;

/// Returns whether the identity was free.
pub(super) async fn insert(conn: &mut PgConnection, id: NodeId, new: &NewRecord) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        insert into nodes (id, identity, region, hostname, display_name, created_at)
        values ($1, $2, $3, $4, $5, (select lh_now()))
            on conflict (identity) do nothing
        "#,
        id.0,
        new.identity,
        new.region.as_str(),
        new.hostname,
        new.display_name,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The identity and the lifecycle of a node, whose row is then this transaction's.
pub(super) async fn lock(conn: &mut PgConnection, id: NodeId) -> Result<Option<(String, String)>, sqlx::Error> {
    let row = sqlx::query!("select identity, lifecycle from nodes where id = $1 for no key update", id.0)
        .fetch_optional(conn)
        .await?;
    Ok(row.map(|row| (row.identity, row.lifecycle)))
}

pub(super) async fn select(conn: &mut PgConnection, wanted: &Wanted, limit: u16) -> Result<Vec<Record>, sqlx::Error> {
    sqlx::query_as!(
        Record,
        r#"
        select n.id as "id: NodeId", n.identity, n.region as "region: RegionCode", n.hostname, n.display_name,
               n.lifecycle, n.enabled, n.generation, n.incarnation, n.created_at,
               greatest(n.seen_at, n.heard_at) as seen_at,
               coalesce(greatest(n.seen_at, n.heard_at) > (select lh_now()) - $5::float8 * interval '1 second', false)
                   as "live!",
               c.created_at as "enrolled_at?", t.expires_at as "token_expires_at?"
          from nodes n
          left join node_credentials c on c.node_id = n.id and c.revoked_at is null
          left join node_enrolment_tokens t
                 on t.node_id = n.id
                and t.spent_at is null
                and t.superseded_at is null
                and t.revoked_at is null
                and t.expires_at > (select lh_now())
         where ($1::uuid is null or n.id = $1)
           and ($2::text is null or n.region = $2)
           and ($3::text[] is null or n.identity = any ($3))
           and ($4::text is null or n.identity > $4)
         order by n.identity
         limit $6
        "#,
        wanted.id.map(|id| id.0),
        wanted.region.as_ref().map(RegionCode::as_str),
        wanted.identities.as_deref() as Option<&[String]>,
        wanted.after,
        SILENT_AFTER.as_secs_f64(),
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}
