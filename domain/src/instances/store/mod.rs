//! The SQL of records, and of what is read of regions.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;

use super::NewInstance;
use super::edges::{EdgeBox, EdgeRoute, EdgesDocument, MAX_HOSTS};
use super::moves::{Obstacle, StoredState};
use super::record::{InstanceKind, Record, RecordHeld, RecordMove, Role};
use super::route::RouteStatus;
use crate::clock::Timestamp;
use crate::ids::{AppName, Host, InstanceId, NodeId, RegionCode};
use crate::nodes::{self, Bucket};

pub(super) mod boxes;
pub(super) mod config_key;
pub(super) mod freeze;
pub(super) mod index;
pub(super) mod landing;
pub(super) mod receipt;
pub(super) mod rescue;
pub(super) mod residency;
pub(super) mod why;

/// Inserts a record; `false` where the host is taken.
pub(super) async fn insert(conn: &mut PgConnection, id: InstanceId, new: &NewInstance) -> Result<bool, sqlx::Error> {
    let replica_regions: Vec<&str> = new.replica_regions.iter().map(RegionCode::as_str).collect();
    let done = sqlx::query!(
        r#"
        insert into instances (id, app, host, kind, backing, role, placement, pool, hibernate, region, replica_regions,
                               env, created_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, (select lh_now()))
            on conflict on constraint instances_host_key do nothing
        "#,
        id.0,
        new.app.as_str(),
        new.host.as_str(),
        new.kind as InstanceKind,
        new.backing,
        new.role as Role,
        new.placement,
        new.pool,
        new.hibernate,
        new.region.as_str(),
        &replica_regions as &[&str],
        serde_json::json!(new.env),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Sets the environment of a record that the caller has locked.
pub(super) async fn set_environment(
    conn: &mut PgConnection,
    id: InstanceId,
    env: &BTreeMap<String, String>,
) -> Result<(), sqlx::Error> {
    sqlx::query!("update instances set env = $2, revision = revision + 1 where id = $1", id.0, Json(env) as _)
        .execute(conn)
        .await?;
    Ok(())
}

/// One record of an application; `None` where it has none of this host.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, app: &AppName, host: &Host) -> Result<Option<Record>, sqlx::Error> {
    let record = select(conn, &[host.as_str()]).await?.pop();
    Ok(record.filter(|record| record.app == *app))
}

/// The records of an application by host, those after `after`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn list(
    conn: &mut PgConnection,
    app: &AppName,
    after: Option<&Host>,
    limit: u16,
) -> Result<Vec<Record>, sqlx::Error> {
    let hosts = sqlx::query_scalar!(
        r#"
        select host
          from instances
         where app = $1
           and host > coalesce($2, '')
         order by host
         limit $3
        "#,
        app.as_str(),
        after.map(Host::as_str),
        i64::from(limit),
    )
    .fetch_all(&mut *conn)
    .await?;
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    select(conn, &hosts).await
}

/// One statement, so a reader never sees the region of after a flip beside the move of before it.
async fn select(conn: &mut PgConnection, hosts: &[&str]) -> Result<Vec<Record>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select i.host as "host: Host", i.app as "app: AppName", i.kind as "kind: InstanceKind", i.backing,
               i.role as "role: Role", i.placement, i.pool, i.hibernate, i.region as "region: RegionCode",
               i.replica_regions as "replica_regions: Vec<RegionCode>", i.env as "env: Json<BTreeMap<String, String>>",
               i.extra as "extra: Json<BTreeMap<String, Value>>", i.revision, i.created_at,
               n.region as "observed_region?: RegionCode", i.parked,
               r.held as "held?: Json<Obstacle>", r.held_since as "held_since?",
               m.to_region as "to_region?: RegionCode", m.state as "move_state?", m.requested_at as "requested_at?",
               m.ready_at as "ready_at?"
          from instances i
          left join moves m on m.host = i.host and m.finished_at is null
          left join routes r on r.host = i.host
          left join nodes n on n.id = r.node_id
         where i.host = any($1)
         order by i.host
        "#,
        hosts as &[&str],
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Record {
            host: r.host,
            app: r.app,
            kind: r.kind,
            backing: Some(r.backing),
            role: Some(r.role),
            placement: Some(r.placement),
            pool: Some(r.pool),
            hibernate: Some(r.hibernate),
            parked: Some(r.parked),
            region: r.region,
            observed_region: Some(r.observed_region),
            replica_regions: Some(r.replica_regions),
            env: Some(r.env.0),
            revision: Some(r.revision),
            created_at: Some(r.created_at),
            held: r.held.zip(r.held_since).map(|(held, since)| held_up(held.0, since)),
            moving: moving(r.to_region, r.move_state, r.requested_at, r.ready_at),
            extra: r.extra.0,
        })
        .collect())
}

fn held_up(obstacle: Obstacle, since: Timestamp) -> RecordHeld {
    let Obstacle { code, message, permanent } = obstacle;
    RecordHeld { code, message, permanent, since }
}

fn moving(
    to: Option<RegionCode>,
    state: Option<String>,
    requested_at: Option<Timestamp>,
    ready_at: Option<Timestamp>,
) -> Option<RecordMove> {
    Some(RecordMove { to: to?, state: StoredState::from(state?), requested_at: requested_at?, ready_at })
}

pub(in crate::instances) async fn region_of_node(
    conn: &mut PgConnection,
    id: NodeId,
) -> Result<Option<RegionCode>, sqlx::Error> {
    sqlx::query_scalar!(r#"select region as "region: RegionCode" from nodes where id = $1 for key share"#, id.0)
        .fetch_optional(conn)
        .await
}

/// The region's bucket, once a box of it published it.
fn published<'a>(region: &'a nodes::Region, boxes: &[nodes::Node]) -> Option<&'a Bucket> {
    region.data.as_ref().filter(|data| boxes.iter().any(|node| node.data.as_ref() == Some(data)))
}

/// Where a move into a region stages, as its edges document says, without the document's long lists (M-049).
///
/// # Errors
/// Only the database's.
pub async fn coordinates(conn: &mut PgConnection, code: &RegionCode) -> Result<Option<Bucket>, sqlx::Error> {
    let Some(region) = nodes::region(conn, code).await? else { return Ok(None) };
    let boxes = nodes::list(conn, Some(code)).await?;
    Ok(published(&region, &boxes).cloned())
}

/// A region's edges document; `None` for an unknown region.
///
/// The statements see one moment when the caller's transaction is `repeatable read`; without one, the serial is read
/// first, so that a change in between is noticed by the next look.
///
/// # Errors
/// Only the database's.
pub async fn edges(conn: &mut PgConnection, code: &RegionCode) -> Result<Option<EdgesDocument>, sqlx::Error> {
    let Some(region) = nodes::region(conn, code).await? else { return Ok(None) };
    let boxes = nodes::list(conn, Some(code)).await?;
    let (data_bucket, data_bucket_region) =
        published(&region, &boxes).map(|data| (data.name.clone(), data.region.clone())).unzip();
    // One more than is told, so that a cut is noticed.
    let limit = i64::try_from(MAX_HOSTS + 1).unwrap_or(i64::MAX);
    let mut routes = sqlx::query_as!(
        EdgeRoute,
        r#"
        select r.host as "host: Host", r.node_id as "node: NodeId", r.address
          from routes r
          join nodes n on n.id = r.node_id
         where n.region = $1
           and r.status = 'serving'
         order by r.host
         limit $2
        "#,
        code.as_str(),
        limit,
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut unserved = sqlx::query_scalar!(
        r#"
        select i.host as "host: Host"
          from instances i
         where i.region = $1
           and not exists (select from routes r where r.host = i.host and r.status = 'serving')
         order by i.host
         limit $2
        "#,
        code.as_str(),
        limit,
    )
    .fetch_all(conn)
    .await?;
    let partial = routes.len() > MAX_HOSTS || unserved.len() > MAX_HOSTS;
    routes.truncate(MAX_HOSTS);
    unserved.truncate(MAX_HOSTS);
    let boxes = boxes
        .into_iter()
        .map(|node| {
            let (data_bucket, data_bucket_region) = node.data.map(|data| (data.name, data.region)).unzip();
            EdgeBox {
                id: node.id,
                identity: node.identity,
                live: node.live,
                capabilities: node.capabilities,
                data_bucket,
                data_bucket_region,
            }
        })
        .collect();
    Ok(Some(EdgesDocument {
        region: region.code,
        serial: region.serial,
        data_bucket,
        data_bucket_region,
        boxes,
        routes,
        unserved,
        partial,
    }))
}

/// Notes on a box's route what holds it up, `None` clears it; since when is kept while the code is the same. Returns whether
/// that is new.
///
/// With a code, only what has that code, or nothing, is replaced.
///
/// What is parked does not start, so nothing holds its start up. The record is locked before that is asked: whoever parks it
/// is waited for, or waits.
pub(super) async fn hold(
    conn: &mut PgConnection,
    (host, node): (&Host, NodeId),
    (status, instead_of): (RouteStatus, Option<&str>),
    obstacle: Option<&Obstacle>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        with record as (
                 select id
                   from instances
                  where host = $2
                    and not ($4 = 'serving' and parked)
                    for share
             )
        update routes r
           set held = $3,
               held_since = case
                                when $3::jsonb is null then null
                                when r.held ->> 'code' = $3::jsonb ->> 'code' then r.held_since
                                else (select lh_now())
                            end
          from record i
         where r.instance_id = i.id
           and r.host = $2
           and r.node_id = $1
           and r.status = $4
           and r.held is distinct from $3
           and ($5::text is null or r.held is null or r.held ->> 'code' = $5)
        "#,
        node.0,
        host.as_str(),
        obstacle.map(|obstacle| serde_json::json!(obstacle)),
        status.as_str(),
        instead_of,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
