//! Figures of queues and of what was done. Counts of a backlog stop at a limit; ages are exact.
//!
//! Names and ages are found by jumps along the index of due jobs: one for each queue, kind and priority, whatever the
//! backlog.
//!
//! Source: the PostgreSQL wiki, "Loose indexscan".

use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{Overview, QueueView, ThroughputPoint};

/// Most counts that one page about the last minutes looks at.
const MAX_POINTS: i64 = 20_000;

/// Most waiting jobs among which a name is looked for that nothing else knows.
const MAX_PARKED: i64 = 20_000;

/// Queues that have live jobs or that a live worker names, by name: those behind `after`, at most `limit`.
///
/// A queue whose jobs all wait, none of them among the first 10,000 to become due, is not named.
///
/// # Errors
/// Only the database's.
pub async fn queues_after(
    conn: &mut PgConnection,
    after: Option<&str>,
    limit: u16,
) -> Result<Vec<QueueView>, sqlx::Error> {
    sqlx::query_as!(
        QueueView,
        r#"
        with recursive heads as (
            (select keyed, queue, kind, priority, run_at
               from jobs
              where ready and state = 'available'
              order by keyed, queue, kind, priority, run_at, id
              limit 1)
             union all
            select n.keyed, n.queue, n.kind, n.priority, n.run_at
              from heads h
             cross join lateral (
                   select j.keyed, j.queue, j.kind, j.priority, j.run_at
                     from jobs j
                    where j.ready
                      and j.state = 'available'
                      and (j.keyed, j.queue, j.kind, j.priority) > (h.keyed, h.queue, h.kind, h.priority)
                    order by j.keyed, j.queue, j.kind, j.priority, j.run_at, j.id
                    limit 1) n
        ), due as (
            select queue, min(run_at) as oldest from heads group by queue
        ), served as (
            select distinct unnest(queues) as queue
              from workers
             where stopped_at is null
               and seen_at > (select lh_now()) - $4::float8 * interval '1 second'
        ), busy as materialized (
            select queue, count(*) as running from running_jobs group by queue
        ), first_parked as materialized (
            select queue from jobs where parked order by run_at, id limit $1
        ), parked as materialized (
            select queue, count(*) as waiting from first_parked group by queue
        ), named as (
            select queue from due
             union
            select queue from served
             union
            select queue from busy
             union
            select queue from parked
        )
        select n.queue as "name!",
               (select count(*) from (
                   select
                     from jobs j
                    where j.keyed = any (array[false, true])
                      and j.queue = n.queue
                      and j.ready
                      and j.state = 'available'
                    limit $1) c) as "available!",
               coalesce(p.waiting, 0) as "waiting!",
               ((select count(*) from first_parked) >= $1) as "waiting_at_least!",
               coalesce(b.running, 0) as "running!",
               d.oldest as oldest_due_at,
               exists (select from served s where s.queue = n.queue) as "served!"
          from named n
          left join due d on d.queue = n.queue
          left join busy b on b.queue = n.queue
          left join parked p on p.queue = n.queue
         where n.queue > coalesce($2, '')
         order by n.queue
         limit $3
        "#,
        QueueView::COUNT_LIMIT,
        after,
        i64::from(limit),
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_all(conn)
    .await
}

/// The first 1,000 queues, by name: see [`queues_after`].
///
/// # Errors
/// Only the database's.
pub async fn queues(conn: &mut PgConnection) -> Result<Vec<QueueView>, sqlx::Error> {
    queues_after(conn, None, 1000).await
}

/// One queue; `None` where neither a live job nor a live worker names it.
///
/// A queue of which nothing is due or runs, that no worker names, and whose jobs all wait behind the first 20,000 to
/// become due, is not found.
///
/// # Errors
/// Only the database's.
pub async fn queue(conn: &mut PgConnection, name: &str) -> Result<Option<QueueView>, sqlx::Error> {
    sqlx::query_as!(
        QueueView,
        r#"
        with recursive heads as (
            select k.keyed, f.kind, f.priority, f.run_at
              from (values (false), (true)) as k(keyed)
             cross join lateral (
                   select j.kind, j.priority, j.run_at
                     from jobs j
                    where j.keyed = k.keyed
                      and j.queue = $2
                      and j.ready
                      and j.state = 'available'
                    order by j.kind, j.priority, j.run_at, j.id
                    limit 1) f
             union all
            select n.keyed, n.kind, n.priority, n.run_at
              from heads h
             cross join lateral (
                   select j.keyed, j.kind, j.priority, j.run_at
                     from jobs j
                    where j.keyed = h.keyed
                      and j.queue = $2
                      and j.ready
                      and j.state = 'available'
                      and (j.kind, j.priority) > (h.kind, h.priority)
                    order by j.kind, j.priority, j.run_at, j.id
                    limit 1) n
        ), first_parked as materialized (
            select queue from jobs where parked order by run_at, id limit $1
        ), figures as materialized (
            select (select count(*) from (
                       select
                         from jobs j
                        where j.keyed = any (array[false, true])
                          and j.queue = $2
                          and j.ready
                          and j.state = 'available'
                        limit $1) c) as available,
                   (select count(*) from first_parked where queue = $2) as waiting,
                   (select count(*) from first_parked) >= $1 as waiting_at_least,
                   (select count(*) from running_jobs where queue = $2) as running,
                   (select min(run_at) from heads) as oldest_due_at,
                   exists (select
                             from workers
                            where stopped_at is null
                              and seen_at > (select lh_now()) - $3::float8 * interval '1 second'
                              and $2 = any (queues)) as served
        )
        select $2::text as "name!",
               available as "available!",
               waiting as "waiting!",
               waiting_at_least as "waiting_at_least!",
               running as "running!",
               oldest_due_at,
               served as "served!"
          from figures
         where served
            or available + waiting + running > 0
            -- A name that nothing else knows is looked for among more of those that wait, and not among all.
            or (waiting_at_least
                and exists (select
                              from (select queue
                                      from jobs
                                     where parked
                                     order by run_at, id
                                     limit $4) p
                             where p.queue = $2))
        "#,
        QueueView::COUNT_LIMIT,
        name,
        SILENT_AFTER.as_secs_f64(),
        MAX_PARKED,
    )
    .fetch_optional(conn)
    .await
}

/// The figures of the first page.
///
/// # Errors
/// Only the database's.
pub async fn overview(conn: &mut PgConnection) -> Result<Overview, sqlx::Error> {
    sqlx::query_as!(
        Overview,
        r#"
        with recursive heads as (
            (select keyed, queue, kind, priority, run_at
               from jobs
              where ready and state = 'available'
              order by keyed, queue, kind, priority, run_at, id
              limit 1)
             union all
            select n.keyed, n.queue, n.kind, n.priority, n.run_at
              from heads h
             cross join lateral (
                   select j.keyed, j.queue, j.kind, j.priority, j.run_at
                     from jobs j
                    where j.ready
                      and j.state = 'available'
                      and (j.keyed, j.queue, j.kind, j.priority) > (h.keyed, h.queue, h.kind, h.priority)
                    order by j.keyed, j.queue, j.kind, j.priority, j.run_at, j.id
                    limit 1) n
        )
        select (select lh_now()) as "now!",
               (select min(run_at) from heads) as oldest_due_at,
               (select count(*) from running_jobs) as "running!",
               (select count(*) from running_jobs where lease_expires_at < (select lh_now())) as "expired!",
               (select count(*) from (
                   select from fenced_writes where at > (select lh_now()) - interval '1 hour' limit $1
               ) f) as "refused_last_hour!",
               (select count(*) from workers
                 where stopped_at is null
                   and seen_at > (select lh_now()) - $2::float8 * interval '1 second') as "workers_live!",
               (select count(*) from workers
                 where stopped_at is null
                   and seen_at <= (select lh_now()) - $2::float8 * interval '1 second'
                   and seen_at > (select lh_now()) - interval '1 day') as "workers_silent!"
        "#,
        QueueView::COUNT_LIMIT,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_one(conn)
    .await
}

/// What was done in the last `minutes`, oldest first. Of more than 20,000 counts the newest are told.
///
/// # Errors
/// Only the database's.
pub async fn throughput(conn: &mut PgConnection, minutes: u16) -> Result<Vec<ThroughputPoint>, sqlx::Error> {
    let mut points = sqlx::query_as!(
        ThroughputPoint,
        r#"
        select minute, queue, kind, outcome, total
          from throughput
         where minute > (select lh_now()) - $1 * interval '1 minute'
         order by minute desc, queue desc, kind desc, outcome desc
         limit $2
        "#,
        f64::from(minutes),
        MAX_POINTS,
    )
    .fetch_all(conn)
    .await?;
    points.reverse();
    Ok(points)
}

/// What was done in the last `minutes`, oldest first: counts behind `after`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn throughput_after(
    conn: &mut PgConnection,
    minutes: u16,
    after: Option<(Timestamp, &str, &str, &str)>,
    limit: u16,
) -> Result<Vec<ThroughputPoint>, sqlx::Error> {
    let (minute, queue, kind, outcome) =
        after.map_or((None, None, None, None), |(m, q, k, o)| (Some(m), Some(q), Some(k), Some(o)));
    sqlx::query_as!(
        ThroughputPoint,
        r#"
        select minute, queue, kind, outcome, total
          from throughput
         where minute > (select lh_now()) - $1 * interval '1 minute'
           and (minute, queue, kind, outcome)
             > (coalesce($2, '-infinity'::timestamptz), coalesce($3, ''), coalesce($4, ''), coalesce($5, ''))
         order by minute, queue, kind, outcome
         limit $6
        "#,
        f64::from(minutes),
        minute,
        queue,
        kind,
        outcome,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}
