//! Reading the facts of why an instance is where it is. A bounded number of statements, each of a few rows.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{AppName, Host, InstanceId, JobId, NodeId, RegionCode};
use crate::instances::moves;
use crate::instances::moves::Obstacle;
use crate::instances::why::{Facts, HeldLanding, STEPS, Seat, Why, decide};
use crate::instances::{RouteStatus, jobs, record::Record, sealed};
use crate::nodes::{self, SILENT_AFTER};
use crate::queue;

/// Why an instance is where it is, and what holds it up; `None` where the application has none of this host.
///
/// Ask in one snapshot: then the facts agree. Bounded, whatever the history: the newest move, [`STEPS`] rows of its journal,
/// its job and why that does not run, and the newest cuts.
///
/// # Errors
/// Only the database's.
pub async fn why(conn: &mut PgConnection, app: &AppName, host: &Host) -> Result<Option<Why>, sqlx::Error> {
    let Some(record) = super::get(conn, app, host).await? else { return Ok(None) };
    let newest = moves::of_instance(conn, app, host, None, 1).await?.pop();
    read(conn, record, newest).await.map(Some)
}

async fn read(conn: &mut PgConnection, record: Record, newest: Option<moves::Move>) -> Result<Why, sqlx::Error> {
    let host = record.host.clone();
    let row = sqlx::query!(
        r#"
        select (select lh_now()) as "now!", i.id as "instance: InstanceId", r.status as "status?: RouteStatus",
               n.id as "node?: NodeId", n.identity as "identity?", n.region as "region?: RegionCode",
               n.seen_at as "seen_at?",
               n.seen_at > (select lh_now()) - $3::float8 * interval '1 second' as "live?",
               (select j.id
                  from jobs j
                 where j.kind = $2
                   and j.unique_key = i.id::text || '.' || i.region) as "landing?: JobId"
          from instances i
          left join routes r on r.host = i.host
          left join nodes n on n.id = r.node_id
         where i.host = $1
        "#,
        host.as_str(),
        jobs::LAND_KIND,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_one(&mut *conn)
    .await?;
    let steps = match &newest {
        Some(newest) => moves::steps(conn, newest.id, None, STEPS).await?,
        None => Vec::new(),
    };
    let open = newest.as_ref().filter(|it| it.finished_at.is_none());
    // A move that is over may still have a job that tidies up: what holds a landing up is the landing's.
    let id = match open {
        Some(open) => open.job,
        None => row.landing,
    };
    let job = match id {
        Some(id) => queue::get(conn, id).await?,
        None => None,
    };
    let job = match job {
        Some(job) => Some((job.clone(), queue::why(conn, job).await?)),
        None => None,
    };
    let no_landing = match open {
        Some(open) => {
            let target = nodes::region(conn, &open.to).await?;
            let sealed = record.env.as_ref().is_some_and(sealed::any);
            moves::policy::gate_region(open.to.as_str(), target.as_ref(), sealed).err()
        }
        None => None,
    };
    let predicted_freeze = match &newest {
        Some(newest) => super::freeze::freeze(conn, &newest.from, &newest.to).await?,
        None => None,
    };
    let seat = row.node.zip(row.identity).zip(row.region).zip(row.seen_at).zip(row.status);
    let seat = seat.map(|((((node, identity), region), seen_at), status)| Seat {
        node,
        identity,
        region,
        live: row.live.unwrap_or_default(),
        seen_at,
        status,
    });
    Ok(decide(Facts { now: row.now, record, seat, newest, steps, job, no_landing, predicted_freeze }))
}

/// Landings, and starts, that something holds up, and instances that are not replicated, each for that long at least; by host,
/// at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn held_landings(
    conn: &mut PgConnection,
    for_longer_than: Duration,
    limit: u16,
) -> Result<Vec<HeldLanding>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select i.app as "app: AppName", i.host as "host: Host", i.region as "region: RegionCode",
               r.status <> 'landing' as "landed!", r.address is not null as "served!", r.held as "held!: Json<Obstacle>", r.held_since as "since!"
          from routes r
          join instances i on i.id = r.instance_id
         where r.held is not null
           and r.held_since <= (select lh_now()) - $2::float8 * interval '1 second'
         order by r.host
         limit $1
        "#,
        i64::from(limit),
        for_longer_than.as_secs_f64(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| HeldLanding {
            app: row.app,
            host: row.host,
            region: row.region,
            landed: row.landed,
            served: row.served,
            held: super::held_up(row.held.0, row.since),
        })
        .collect())
}
