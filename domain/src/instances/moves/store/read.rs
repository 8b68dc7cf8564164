//! What readers and passes see.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::ids::{AppName, Host, InstanceId, JobId, MoveId, NodeId, RegionCode};
use crate::instances::jobs;
use crate::instances::moves::store::write::LockedRecord;
use crate::instances::moves::{Move, MoveStep, Outcome, Status, StoredState, Tail};
use crate::instances::record::{InstanceKind, Role};
use crate::lease::Fence;
use crate::nodes::Bucket;

/// One move; `None` where it never was.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, id: MoveId) -> Result<Option<Move>, sqlx::Error> {
    Ok(select(conn, &[id.0]).await?.pop())
}

/// The move of a host that is in flight.
///
/// # Errors
/// Only the database's.
pub async fn open_of_host(conn: &mut PgConnection, host: &Host) -> Result<Option<Move>, sqlx::Error> {
    let ids = sqlx::query_scalar!("select id from moves where host = $1 and finished_at is null", host.as_str())
        .fetch_all(&mut *conn)
        .await?;
    Ok(select(conn, &ids).await?.pop())
}

/// Whether a move of a host is in flight.
///
/// # Errors
/// Only the database's.
pub async fn is_open(conn: &mut PgConnection, host: &Host) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select exists (select from moves where host = $1 and finished_at is null) as "open!""#,
        host.as_str(),
    )
    .fetch_one(conn)
    .await
}

/// The moves of one instance, newest first, those before `before`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn of_instance(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
    before: Option<MoveId>,
    limit: u16,
) -> Result<Vec<Move>, sqlx::Error> {
    let ids = sqlx::query_scalar!(
        r#"
        select m.id
          from instances i
          join moves m on m.instance_id = i.id
         where i.app = $1
           and i.host = $2
           and m.id < $3
         order by m.id desc
         limit $4
        "#,
        app.as_str(),
        host.as_str(),
        before.map_or(Uuid::max(), |id| id.0),
        i64::from(limit),
    )
    .fetch_all(&mut *conn)
    .await?;
    select(conn, &ids).await
}

/// Newest first.
pub(super) async fn select(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Move>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select m.id as "id: MoveId", m.instance_id as "instance: InstanceId", i.app as "app: AppName",
               m.host as "host: Host", i.region as "region: RegionCode", m.from_region as "from: RegionCode",
               m.to_region as "to: RegionCode", m.state, m.requested_at, m.ready_at, m.target_bucket,
               m.target_bucket_region, m.round, m.status as "status: Json<Status>", m.finished_at,
               m.outcome as "outcome: Outcome", m.cut_auto, m.freeze_budget_seconds, m.predicted_freeze_ms, m.cut_forced,
               m.cut_at, m.aborted_at, m.tail_txid, m.tail_sha256, m.tail_size, m.purge_began_at, m.landed_at,
               coalesce(m.staging_deleted_at, o.purged_at) as staging_deleted_at, r.node_id as "node?: NodeId",
               j.id as "job?: JobId", o.keep_until as "given_up_at?"
          from moves m
          join instances i on i.id = m.instance_id
          left join routes r on r.host = m.host
          left join jobs j on j.kind = $2 and j.unique_key = m.id::text
          -- In its target a move leaves nothing but a staging that never lands, due from the moment of that.
          left join remains o on o.move_id = m.id and o.region = m.to_region
         where m.id = any($1)
         order by m.id desc
        "#,
        ids,
        jobs::MOVE_KIND,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Move {
            id: r.id,
            instance: r.instance,
            app: r.app,
            host: r.host,
            region: r.region,
            from: r.from,
            to: r.to,
            state: StoredState::from(r.state),
            requested_at: r.requested_at,
            ready_at: r.ready_at,
            target: r.target_bucket.zip(r.target_bucket_region).map(|(name, region)| Bucket { name, region }),
            round: r.round,
            status: r.status.0,
            finished_at: r.finished_at,
            outcome: r.outcome,
            cut_auto: r.cut_auto,
            freeze_budget: span(r.freeze_budget_seconds.map(i64::from), Duration::from_secs),
            cut_at: r.cut_at,
            predicted_freeze: span(r.predicted_freeze_ms, Duration::from_millis),
            cut_forced: r.cut_forced,
            aborted_at: r.aborted_at,
            tail: tail(r.tail_txid, r.tail_sha256, r.tail_size),
            purge_began_at: r.purge_began_at,
            landed_at: r.landed_at,
            staging_deleted_at: r.staging_deleted_at,
            given_up_at: r.given_up_at,
            node: r.node,
            job: r.job,
        })
        .collect())
}

/// The schema's checks keep both above zero.
fn span(stored: Option<i64>, of: fn(u64) -> Duration) -> Option<Duration> {
    stored.and_then(|stored| u64::try_from(stored).ok()).map(of)
}

pub(in crate::instances) fn tail(txid: Option<String>, sha256: Option<String>, size: Option<i64>) -> Option<Tail> {
    // The schema's check keeps it above zero.
    Some(Tail { txid: txid?, sha256: sha256?, size: u64::try_from(size?).ok()? })
}

/// The journal of a move, newest first, rows before `before`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn steps(
    conn: &mut PgConnection,
    id: MoveId,
    before: Option<i64>,
    limit: u16,
) -> Result<Vec<MoveStep>, sqlx::Error> {
    sqlx::query_as!(
        MoveStep,
        r#"
        select id, step, round, iterations, started_at, ended_at, outcome, evidence, job_id as "job: JobId",
               fence as "fence: Fence"
          from move_steps
         where move_id = $1
           and id < $2
         order by id desc
         limit $3
        "#,
        id.0,
        before.unwrap_or(i64::MAX),
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// What the gate of the verbs looks at, as it stands: nobody is kept from changing it.
pub(in crate::instances::moves) async fn movable(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
) -> Result<Option<LockedRecord>, sqlx::Error> {
    sqlx::query_as!(
        LockedRecord,
        r#"
        select i.id as "id: InstanceId", i.kind as "kind: InstanceKind", i.backing, i.role as "role: Role", i.placement,
               i.pool, i.hibernate, i.region as "region: RegionCode",
               i.env as "env: Json<BTreeMap<String, String>>", i.revision,
               (select r.node_id from routes r where r.host = i.host) as "node: NodeId"
          from instances i
         where i.app = $1
           and i.host = $2
        "#,
        app.as_str(),
        host.as_str(),
    )
    .fetch_optional(conn)
    .await
}

/// The host of an instance that this box serves in its own region.
pub(in crate::instances::moves) async fn host_on(
    conn: &mut PgConnection,
    id: InstanceId,
    node: NodeId,
) -> Result<Option<Host>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select r.host as "host: Host"
          from routes r
          join instances i on i.id = r.instance_id
          join nodes n on n.id = r.node_id
         where r.instance_id = $1
           and r.node_id = $2
           and r.status = 'serving'
           and i.region = n.region
        "#,
        id.0,
        node.0,
    )
    .fetch_optional(conn)
    .await
}

/// Open moves without a live job whose host a box serves.
pub(in crate::instances::moves) async fn orphans(
    conn: &mut PgConnection,
    limit: i64,
) -> Result<Vec<(MoveId, NodeId)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select m.id as "id: MoveId", r.node_id as "node: NodeId"
          from moves m
          join routes r on r.host = m.host
         where m.finished_at is null
           and not exists (select from jobs j where j.kind = $1 and j.unique_key = m.id::text)
         order by m.id
         limit $2
        "#,
        jobs::MOVE_KIND,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|r| (r.id, r.node)).collect())
}
