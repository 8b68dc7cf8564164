//! Figures of queues and of what was done. Counts of a backlog stop at a limit; ages are exact.
//!
//! Names and ages are found by jumps along the index of due jobs: one for each queue, kind and priority, whatever the
//! backlog.
//!
//! Source: the PostgreSQL wiki, "Loose indexscan".

use sqlx::PgConnection;

use super::limits::of_columns;
use crate::clock::Timestamp;
use crate::ids::IdentityId;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{Overview, Pause, QueueView, ThroughputPoint};

/// Most counts that one page about the last minutes looks at.
const MAX_POINTS: i64 = 20_000;

/// Most waiting jobs among which a name is looked for that nothing else knows.
const MAX_PARKED: i64 = 20_000;

/// Queues that have live jobs, that a live worker names, that are paused or that have a limit, by name: those behind
/// `after`, at most `limit`.
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
    let rows = sqlx::query_as!(
        Row,
        r#"
        with due as (
            select queue, min(run_at) as oldest from due_heads group by queue
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
             union
            (select name from pauses where scope = 'queue' and name > coalesce($2, '') order by name limit $3)
             union
            (select queue
               from queue_limits
              where queue > coalesce($2, '')
                and num_nonnulls(running, running_per_key, starts_per_key) > 0
              order by queue
              limit $3)
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
               exists (select from served s where s.queue = n.queue) as "served!",
               u.paused_by as "paused_by?: IdentityId", i.name as "paused_by_name?", u.reason as "pause_reason?",
               u.paused_at as "paused_at?", l.running as "limit_running?", l.running_per_key as "running_per_key?",
               l.starts_per_key as "starts_per_key?", l.starts_span_ms as "starts_span_ms?"
          from named n
          left join due d on d.queue = n.queue
          left join busy b on b.queue = n.queue
          left join parked p on p.queue = n.queue
          left join pauses u on u.scope = 'queue' and u.name = n.queue
          left join identities i on i.id = u.paused_by
          left join queue_limits l on l.queue = n.queue
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
    .await?;
    Ok(rows.into_iter().map(Row::view).collect())
}

/// The first 1,000 queues, by name: see [`queues_after`].
///
/// # Errors
/// Only the database's.
pub async fn queues(conn: &mut PgConnection) -> Result<Vec<QueueView>, sqlx::Error> {
    queues_after(conn, None, 1000).await
}

/// One queue; `None` where neither a live job nor a live worker names it and it is neither paused nor limited.
///
/// A queue of which nothing is due or runs, that no worker names, and whose jobs all wait behind the first 20,000 to
/// become due, is not found.
///
/// # Errors
/// Only the database's.
pub async fn queue(conn: &mut PgConnection, name: &str) -> Result<Option<QueueView>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
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
               f.available as "available!",
               f.waiting as "waiting!",
               f.waiting_at_least as "waiting_at_least!",
               f.running as "running!",
               f.oldest_due_at,
               f.served as "served!",
               u.paused_by as "paused_by?: IdentityId", i.name as "paused_by_name?", u.reason as "pause_reason?",
               u.paused_at as "paused_at?", l.running as "limit_running?", l.running_per_key as "running_per_key?",
               l.starts_per_key as "starts_per_key?", l.starts_span_ms as "starts_span_ms?"
          from figures f
          left join pauses u on u.scope = 'queue' and u.name = $2
          left join identities i on i.id = u.paused_by
          left join queue_limits l on l.queue = $2
         where f.served
            or f.available + f.waiting + f.running > 0
            or u.name is not null
            or num_nonnulls(l.running, l.running_per_key, l.starts_per_key) > 0
            -- A name that nothing else knows is looked for among more of those that wait, and not among all.
            or (f.waiting_at_least
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
    .await?;
    Ok(row.map(Row::view))
}

struct Row {
    name: String,
    available: i64,
    waiting: i64,
    waiting_at_least: bool,
    running: i64,
    oldest_due_at: Option<Timestamp>,
    served: bool,
    paused_by: Option<IdentityId>,
    paused_by_name: Option<String>,
    pause_reason: Option<String>,
    paused_at: Option<Timestamp>,
    limit_running: Option<i32>,
    running_per_key: Option<i32>,
    starts_per_key: Option<i32>,
    starts_span_ms: Option<i64>,
}

impl Row {
    fn view(self) -> QueueView {
        let pause = self.pause_reason.zip(self.paused_at).map(|(reason, paused_at)| Pause {
            scope: "queue".to_owned(),
            name: self.name.clone(),
            paused_by: self.paused_by,
            paused_by_name: self.paused_by_name,
            reason,
            paused_at,
        });
        QueueView {
            name: self.name,
            available: self.available,
            waiting: self.waiting,
            waiting_at_least: self.waiting_at_least,
            running: self.running,
            oldest_due_at: self.oldest_due_at,
            served: self.served,
            pause,
            limits: of_columns(self.limit_running, self.running_per_key, self.starts_per_key, self.starts_span_ms),
        }
    }
}

/// The figures of the first page.
///
/// # Errors
/// Only the database's.
pub async fn overview(conn: &mut PgConnection) -> Result<Overview, sqlx::Error> {
    sqlx::query_as!(
        Overview,
        r#"
        select (select lh_now()) as "now!",
               (select min(run_at) from due_heads) as oldest_due_at,
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
                   and seen_at > (select lh_now()) - interval '1 day') as "workers_silent!",
               (select late_since
                  from prune_walk
                 where late_tried_at > (select lh_now()) - interval '1 day') as day_late_since
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
