//! The SQL of landings.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::clock::millis;
use crate::ids::{AppName, Host, InstanceId, JobId, MoveId, NodeId, RegionCode};
use crate::instances::landing::Landfall;
use crate::instances::moves::Obstacle;
use crate::instances::moves::store::read::tail;
use crate::instances::{RouteStatus, jobs};
use crate::lease::{Fence, Lease};
use crate::nodes::SILENT_AFTER;

/// What a box may serve: a record's host and region.
#[derive(Debug)]
pub(in crate::instances) struct Place {
    pub(in crate::instances) host: Host,
    pub(in crate::instances) region: RegionCode,
}

/// The record stays locked until the transaction ends.
pub(in crate::instances) async fn lock_place(
    conn: &mut PgConnection,
    id: InstanceId,
) -> Result<Option<Place>, sqlx::Error> {
    sqlx::query_as!(
        Place,
        r#"
        select host as "host: Host", region as "region: RegionCode" from instances where id = $1 for no key update
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await
}

/// A route, and where its box stands.
#[derive(Debug)]
pub(in crate::instances) struct Route {
    pub(in crate::instances) node: NodeId,
    pub(in crate::instances) region: RegionCode,
    pub(in crate::instances) status: RouteStatus,
    /// Whether its box was heard lately.
    pub(in crate::instances) lives: bool,
}

pub(in crate::instances) async fn route(conn: &mut PgConnection, host: &Host) -> Result<Option<Route>, sqlx::Error> {
    sqlx::query_as!(
        Route,
        r#"
        select r.node_id as "node: NodeId", n.region as "region: RegionCode",
               r.status as "status: RouteStatus",
               n.seen_at > (select lh_now()) - $2::float8 * interval '1 second' as "lives!"
          from routes r
          join nodes n on n.id = r.node_id
         where r.host = $1
        "#,
        host.as_str(),
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_optional(conn)
    .await
}

/// Takes a landing over from a box that died in it. That one's later writes name its own route, and find none.
pub(in crate::instances) async fn take_over(
    conn: &mut PgConnection,
    host: &Host,
    (from, to): (NodeId, NodeId),
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update routes
           set node_id = $3, held = null, held_since = null
         where host = $1
           and node_id = $2
           and status = 'landing'
        "#,
        host.as_str(),
        from.0,
        to.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The landings of records that no box serves and that wait for a box which is silent, each with the fence that it had, and
/// their regions.
///
/// Whether that box has a route is all the same: one that died in a landing has none once its record was pointed elsewhere,
/// and its job is the only one that a landing there may have.
pub(in crate::instances) async fn of_silent_boxes(
    conn: &mut PgConnection,
    limit: i64,
) -> Result<Vec<(Lease, RegionCode)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select w.id as "id: JobId", w.fence as "fence: Fence", i.region as "region: RegionCode"
          from instances i
          left join routes r on r.host = i.host
          left join nodes o on o.id = r.node_id
          join jobs w on w.kind = $1 and w.unique_key = i.id::text || '.' || i.region
          join nodes n on w.queue = 'node.' || n.id
         where (r.host is null or r.status = 'landing' or o.region <> i.region)
           and w.state <> 'running'
           and n.seen_at <= (select lh_now()) - $2::float8 * interval '1 second'
         order by w.id
         limit $3
        "#,
        jobs::LAND_KIND,
        SILENT_AFTER.as_secs_f64(),
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (Lease { job: row.id, fence: row.fence }, row.region)).collect())
}

/// The record is locked by the caller, so no other route of the host can appear in between.
pub(in crate::instances) async fn mint(
    conn: &mut PgConnection,
    id: InstanceId,
    host: &Host,
    node: NodeId,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into routes (host, instance_id, node_id, status, created_at)
        values ($1, $2, $3, 'landing', (select lh_now()))
        "#,
        host.as_str(),
        id.0,
        node.0,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A pending landing is valid on boxes of its region alone.
pub(in crate::instances) async fn landfall(
    conn: &mut PgConnection,
    id: InstanceId,
) -> Result<Option<Landfall>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select i.app as "app: AppName", i.host as "host: Host", i.landed_at is not null as "served_before!",
               m.id as "move_id?: MoveId", m.tail_txid as "txid?", m.tail_sha256 as "sha256?", m.tail_size as "size?",
               i.parked, i.env as "env: Json<BTreeMap<String, String>>", i.restarts, r.held as "held: Json<Obstacle>"
          from instances i
          join routes r on r.host = i.host
          left join moves m on m.id = i.pending_landing_move and i.pending_landing_to = i.region
         where i.id = $1
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Landfall {
        app: row.app,
        host: row.host,
        served_before: row.served_before,
        pending: row.move_id.zip(tail(row.txid, row.sha256, row.size)),
        held: row.held.map(|held| held.0),
        parked: row.parked,
        env: row.env.0,
        restarts: row.restarts,
    }))
}

/// `false` where another landing is pending than the one that landed.
pub(in crate::instances) async fn clear_pending(
    conn: &mut PgConnection,
    id: InstanceId,
    landed: Option<MoveId>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update instances
           set pending_landing_move = null, pending_landing_to = null,
               landed_at = coalesce(landed_at, (select lh_now()))
         where id = $1
           and (case when pending_landing_to = region then pending_landing_move end) is not distinct from $2
        "#,
        id.0,
        landed.map(|landed| landed.0),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

pub(in crate::instances) async fn serve(
    conn: &mut PgConnection,
    host: &Host,
    node: NodeId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update routes
           set status = 'serving', held = null, held_since = null
         where host = $1
           and node_id = $2
           and status = 'landing'
        "#,
        host.as_str(),
        node.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

pub(in crate::instances) async fn note_landed(conn: &mut PgConnection, id: MoveId) -> Result<(), sqlx::Error> {
    sqlx::query!("update moves set landed_at = coalesce(landed_at, (select lh_now())) where id = $1", id.0)
        .execute(conn)
        .await?;
    Ok(())
}

pub(in crate::instances) async fn keep_until(
    conn: &mut PgConnection,
    id: MoveId,
    window: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update remains
           set keep_until = (select lh_now()) + $2::bigint * interval '1 ms'
         where move_id = $1
           and keep_until is null
        "#,
        id.0,
        millis(window),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The moves of a record that landed in this region and whose staging is left.
pub(in crate::instances) async fn staged(
    conn: &mut PgConnection,
    id: InstanceId,
    region: &RegionCode,
) -> Result<Vec<MoveId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select id as "id: MoveId"
          from moves
         where instance_id = $1
           and to_region = $2
           and outcome = 'moved'
           and staging_deleted_at is null
           and landed_at is not null
         order by id
        "#,
        id.0,
        region.as_str(),
    )
    .fetch_all(conn)
    .await
}

pub(in crate::instances) async fn staging_deleted(conn: &mut PgConnection, id: MoveId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set staging_deleted_at = (select lh_now())
         where id = $1
           and landed_at is not null
           and staging_deleted_at is null
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A record for which a landing is missing.
#[derive(Debug)]
pub(in crate::instances) struct Left {
    pub(in crate::instances) id: InstanceId,
    pub(in crate::instances) region: RegionCode,
    /// The box of its region that has begun to land it, or that has a staging to delete.
    pub(in crate::instances) node: Option<NodeId>,
}

/// Records that no box serves and no move holds, and those whose staging is left, without a live landing of their region.
pub(in crate::instances) async fn without_landing(
    conn: &mut PgConnection,
    limit: i64,
) -> Result<Vec<Left>, sqlx::Error> {
    sqlx::query_as!(
        Left,
        r#"
        select i.id as "id: InstanceId", i.region as "region: RegionCode",
               case when n.region = i.region then r.node_id end as "node?: NodeId"
          from (
               select i.id
                 from instances i
                 left join routes r on r.host = i.host
                 left join nodes n on n.id = r.node_id
                where r.host is null
                   or r.status = 'landing'
                   or n.region <> i.region
                union
               select m.instance_id
                 from moves m
                where m.outcome = 'moved'
                  and m.staging_deleted_at is null
                  and m.landed_at is not null
                  and m.to_region = (select i.region from instances i where i.id = m.instance_id)
               ) s
          join instances i on i.id = s.id
          left join routes r on r.host = i.host
          left join nodes n on n.id = r.node_id
         where not exists (select from moves m where m.host = i.host and m.finished_at is null)
           and not exists (
                   select from jobs j where j.kind = $1 and j.unique_key = i.id::text || '.' || i.region
               )
         order by i.id
         limit $2
        "#,
        jobs::LAND_KIND,
        limit,
    )
    .fetch_all(conn)
    .await
}
