//! Worker processes: registered at their start, heard with every renewal.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{WorkerSpec, WorkerView};

/// How long a worker that is no longer heard stays in lists.
const HEARD_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Registers a worker process.
///
/// # Errors
/// Only the database's.
pub async fn register_worker(
    conn: &mut PgConnection,
    spec: &WorkerSpec,
    host: &str,
    pid: u32,
    version: &str,
    node: Option<&str>,
    concurrency: u16,
) -> Result<(), sqlx::Error> {
    let queues: Vec<&str> = spec.queues.iter().map(|q| q.as_str()).collect();
    let kinds: Vec<&str> = spec.kinds.iter().map(|(k, _)| k.as_str()).collect();
    sqlx::query!(
        r#"
        insert into workers (id, host, pid, version, node, queues, kinds, concurrency, started_at, seen_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, (select lh_now()), (select lh_now()))
            on conflict (id) do update set queues = excluded.queues, kinds = excluded.kinds, seen_at = excluded.seen_at
        "#,
        spec.worker.0,
        host,
        i32::try_from(pid).unwrap_or(i32::MAX),
        version,
        node,
        &queues as &[&str],
        &kinds as &[&str],
        i32::from(concurrency),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a worker lives, and how far its wall clock is from the database's (Q-003: reported, never used).
///
/// # Errors
/// Only the database's.
pub async fn seen_worker(
    conn: &mut PgConnection,
    worker: WorkerId,
    wall_clock: Option<Timestamp>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update workers
           set seen_at = (select lh_now()),
               clock_skew_ms = coalesce((extract(epoch from $2::timestamptz - (select lh_now())) * 1000)::bigint,
                                        clock_skew_ms)
         where id = $1
        "#,
        worker.0,
        wall_clock,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a worker takes no more work.
///
/// # Errors
/// Only the database's.
pub async fn drain_worker(conn: &mut PgConnection, worker: WorkerId) -> Result<(), sqlx::Error> {
    sqlx::query!("update workers set draining_at = (select lh_now()) where id = $1 and draining_at is null", worker.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// Notes that a worker ended in order.
///
/// # Errors
/// Only the database's.
pub async fn stop_worker(conn: &mut PgConnection, worker: WorkerId) -> Result<(), sqlx::Error> {
    sqlx::query!("update workers set stopped_at = (select lh_now()) where id = $1", worker.0).execute(conn).await?;
    Ok(())
}

/// Workers that were heard within the last day, newest first, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn list_workers(conn: &mut PgConnection, limit: u16) -> Result<Vec<WorkerView>, sqlx::Error> {
    workers_before(conn, None, limit).await
}

/// As [`list_workers`], of those whose ids are below `before`.
///
/// # Errors
/// Only the database's.
pub async fn workers_before(
    conn: &mut PgConnection,
    before: Option<WorkerId>,
    limit: u16,
) -> Result<Vec<WorkerView>, sqlx::Error> {
    let before = before.map_or(Uuid::max(), |id| id.0);
    select(conn, Uuid::nil(), before, Some(HEARD_WITHIN), limit).await
}

/// One worker; `None` where it never was.
///
/// # Errors
/// Only the database's.
pub async fn worker(conn: &mut PgConnection, id: WorkerId) -> Result<Option<WorkerView>, sqlx::Error> {
    let behind = Uuid::from_u128(id.0.as_u128().saturating_add(1));
    Ok(select(conn, id.0, behind, None, 1).await?.pop())
}

/// Those from one id up to another, of those heard lately enough. Each bound has a value that bounds nothing: an optional
/// one would be no condition of an index under a plan that is made once.
///
/// An id is made at a worker's start and rises with time: its order is that of the starts, and never changes.
async fn select(
    conn: &mut PgConnection,
    from: Uuid,
    before: Uuid,
    heard_within: Option<Duration>,
    limit: u16,
) -> Result<Vec<WorkerView>, sqlx::Error> {
    sqlx::query_as!(
        WorkerView,
        r#"
        with held as materialized (
            select worker_id, count(*) as running from running_jobs group by worker_id
        )
        select w.id as "id: WorkerId", w.host, w.pid, w.version, w.node, w.queues, w.kinds, w.concurrency, w.started_at,
               w.seen_at, w.clock_skew_ms,
               case
                   when w.stopped_at is not null then 'stopped'
                   when w.seen_at < (select lh_now()) - $4::float8 * interval '1 second' then 'silent'
                   when w.draining_at is not null then 'draining'
                   else 'live'
               end as "state!",
               coalesce(h.running, 0) as "running!"
          from workers w
          left join held h on h.worker_id = w.id
         where w.id >= $1
           and w.id < $2
           and w.seen_at > coalesce((select lh_now()) - $5::float8 * interval '1 second', '-infinity')
         order by w.id desc
         limit $3
        "#,
        from,
        before,
        i64::from(limit),
        SILENT_AFTER.as_secs_f64(),
        heard_within.map(|within| within.as_secs_f64()),
    )
    .fetch_all(conn)
    .await
}
