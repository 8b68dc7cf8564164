//! The SQL of what moves leave behind.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use crate::ids::{Host, MoveId, RegionCode};
use crate::instances::jobs;
use crate::instances::residency::{Deleted, Remains};
use crate::nodes::Bucket;

/// What a move left behind in a region, and what decides over it.
#[derive(Debug)]
pub(in crate::instances) struct Sight {
    pub(in crate::instances) remains: Remains,
    /// The record is in its region.
    pub(in crate::instances) here: bool,
    /// A move into its region is in flight, or a landing there is pending.
    pub(in crate::instances) coming: bool,
    /// A box serves the record in the record's region, and no landing is pending.
    pub(in crate::instances) served: bool,
    /// Time until it may go; `None` while that is not known.
    pub(in crate::instances) left: Option<Duration>,
    pub(in crate::instances) emptied: Option<Duration>,
}

/// The record of the move stays locked until the transaction ends.
pub(in crate::instances) async fn lock_record(conn: &mut PgConnection, id: MoveId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        select from moves m join instances i on i.id = m.instance_id where m.id = $1 for no key update of i
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(in crate::instances) async fn sights(
    conn: &mut PgConnection,
    id: MoveId,
    region: Option<&RegionCode>,
) -> Result<Vec<Sight>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select o.move_id as "move_id: MoveId", o.host as "host: Host", o.region as "region: RegionCode", o.bucket,
               o.bucket_region, o.prefix, o.keep_until, o.purge_began_at, o.purged_at, o.receipt, o.deleted_keys,
               o.deleted_versions, o.superseded_at, o.superseded_by as "superseded_by: MoveId",
               i.region = o.region as "here!",
               (
                   i.pending_landing_to is not distinct from o.region
                or exists (
                       select from moves m where m.host = o.host and m.finished_at is null and m.to_region = o.region
                   )
               ) as "coming!",
               (
                   i.pending_landing_move is null
               and exists (
                       select
                         from routes r
                         join nodes n on n.id = r.node_id
                        where r.host = o.host
                          and r.status in ('serving', 'moving')
                          and n.region = i.region
                   )
               ) as "served!",
               extract(epoch from o.keep_until - (select lh_now()))::float8 as "left",
               extract(epoch from (select lh_now()) - o.emptied_at)::float8 as "emptied"
          from remains o
          join instances i on i.id = o.instance_id
         where o.move_id = $1
           and ($2::text is null or o.region = $2)
         order by o.region
        "#,
        id.0,
        region.map(RegionCode::as_str),
    )
    .fetch_all(conn)
    .await?;
    let sights = rows.into_iter().map(|r| Sight {
        here: r.here,
        coming: r.coming,
        served: r.served,
        left: r.left.map(seconds),
        emptied: r.emptied.map(seconds),
        remains: Remains {
            move_id: r.move_id,
            host: r.host,
            region: r.region,
            bucket: Bucket { name: r.bucket, region: r.bucket_region },
            prefix: r.prefix,
            keep_until: r.keep_until,
            purge_began_at: r.purge_began_at,
            deleted: deleted(r.deleted_keys, r.deleted_versions),
            purged_at: r.purged_at,
            receipt: r.receipt,
            superseded_at: r.superseded_at,
            superseded_by: r.superseded_by,
        },
    });
    Ok(sights.collect())
}

/// Neither is below zero: they only grow.
fn deleted(keys: i64, versions: i64) -> Deleted {
    Deleted { keys: keys.try_into().unwrap_or_default(), versions: versions.try_into().unwrap_or_default() }
}

/// A span that is over counts as none.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}

/// What a move left behind, by region.
///
/// # Errors
/// Only the database's.
pub async fn of_move(conn: &mut PgConnection, id: MoveId) -> Result<Vec<Remains>, sqlx::Error> {
    Ok(sights(conn, id, None).await?.into_iter().map(|sight| sight.remains).collect())
}

pub(in crate::instances) async fn begin(
    conn: &mut PgConnection,
    id: MoveId,
    region: &RegionCode,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update remains set purge_began_at = coalesce(purge_began_at, (select lh_now())) where move_id = $1 and region = $2",
        id.0,
        region.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(in crate::instances) async fn note_swept(
    conn: &mut PgConnection,
    (id, region): (MoveId, &RegionCode),
    these: Deleted,
    empty: bool,
) -> Result<Deleted, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        update remains
           set deleted_keys = deleted_keys + $3, deleted_versions = deleted_versions + $4,
               emptied_at = case when $5 then coalesce(emptied_at, (select lh_now())) else emptied_at end
         where move_id = $1
           and region = $2
        returning deleted_keys, deleted_versions
        "#,
        id.0,
        region.as_str(),
        i64::try_from(these.keys).unwrap_or(i64::MAX),
        i64::try_from(these.versions).unwrap_or(i64::MAX),
        empty,
    )
    .fetch_one(conn)
    .await?;
    Ok(deleted(row.deleted_keys, row.deleted_versions))
}

/// `false` where it was over before.
pub(in crate::instances) async fn end(
    conn: &mut PgConnection,
    (id, region): (MoveId, &RegionCode),
    receipt: &Value,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update remains
           set purged_at = (select lh_now()), receipt = $2
         where move_id = $1
           and region = $3
           and purge_began_at is not null
           and purged_at is null
        "#,
        id.0,
        receipt,
        region.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Somebody takes the region over: what an earlier move left there is the record's own again.
pub(in crate::instances) async fn supersede(
    conn: &mut PgConnection,
    host: &Host,
    region: &RegionCode,
    by: Option<MoveId>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update remains
           set superseded_at = (select lh_now()), superseded_by = $3
         where host = $1
           and region = $2
           and purged_at is null
           and superseded_at is null
           and purge_began_at is null
        "#,
        host.as_str(),
        region.as_str(),
        by.map(|by| by.0),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether a purge of the host's prefix in this region is under way.
pub(in crate::instances) async fn is_purging(
    conn: &mut PgConnection,
    host: &Host,
    region: &RegionCode,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
                   select
                     from remains
                    where host = $1
                      and region = $2
                      and purge_began_at is not null
                      and purged_at is null
               ) as "purging!"
        "#,
        host.as_str(),
        region.as_str(),
    )
    .fetch_one(conn)
    .await
}

/// Remains whose time has come and that no live job purges.
pub(in crate::instances) async fn due(
    conn: &mut PgConnection,
    limit: i64,
) -> Result<Vec<(MoveId, RegionCode)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select o.move_id as "id: MoveId", o.region as "region: RegionCode"
          from remains o
         where o.purged_at is null
           and o.superseded_at is null
           and o.keep_until <= (select lh_now())
           and not exists (select from jobs j where j.kind = $1 and j.unique_key = o.move_id::text || '.' || o.region)
         order by o.keep_until
         limit $2
        "#,
        jobs::PURGE_KIND,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|r| (r.id, r.region)).collect())
}
