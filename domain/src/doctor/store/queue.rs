use std::time::Duration;

use sqlx::PgConnection;

use super::one_more;
use crate::doctor::queue::{Due, Fences, Held, Late, Partitions, Worker};
use crate::ids::{JobId, WorkerId};
use crate::queue::policy::SILENT_AFTER;

/// Running jobs, of the `bound` oldest live ones, whose lease ended over `after` ago and that no batch names, and whether
/// these were all live jobs.
pub(in crate::doctor) async fn stray_jobs(
    conn: &mut PgConnection,
    after: Duration,
    bound: i64,
    named: usize,
) -> Result<(Vec<JobId>, bool), sqlx::Error> {
    let strays = sqlx::query_scalar!(
        r#"
        with looked as materialized (
            select id, state, lease_expires_at from jobs order by id limit $1
        ), held as materialized (
            select id from running_jobs
        )
        select l.id as "id: JobId"
          from looked l
         where l.state = 'running'
           and l.lease_expires_at < (select lh_now()) - $2::float8 * interval '1 second'
           and not exists (select from held h where h.id = l.id)
         order by l.id
         limit $3
        "#,
        bound,
        after.as_secs_f64(),
        one_more(named),
    )
    .fetch_all(&mut *conn)
    .await?;
    Ok((strays, !more_live_than(conn, bound).await?))
}

/// Jobs, of the `bound` oldest live ones, that are finished as well, and whether these were all live jobs.
pub(in crate::doctor) async fn twin_jobs(
    conn: &mut PgConnection,
    bound: i64,
    named: usize,
) -> Result<(Vec<JobId>, bool), sqlx::Error> {
    let twins = sqlx::query_scalar!(
        r#"
        with looked as materialized (
            select id from jobs order by id limit $1
        )
        select l.id as "id: JobId"
          from looked l
         -- The limit keeps the planner to a probe of each day's index: the finished jobs are never read whole.
         cross join lateral (select from jobs_finished f where f.id = l.id limit 1) t
         order by l.id
         limit $2
        "#,
        bound,
        one_more(named),
    )
    .fetch_all(&mut *conn)
    .await?;
    Ok((twins, !more_live_than(conn, bound).await?))
}

async fn more_live_than(conn: &mut PgConnection, bound: i64) -> Result<bool, sqlx::Error> {
    let next = sqlx::query_scalar!("select id from jobs order by id offset $1 limit 1", bound);
    Ok(next.fetch_optional(conn).await?.is_some())
}

/// Live leases of workers that said over `ago` ago that they stopped.
pub(in crate::doctor) async fn leases_of_stopped(
    conn: &mut PgConnection,
    ago: Duration,
    named: usize,
) -> Result<Vec<Held>, sqlx::Error> {
    sqlx::query_as!(
        Held,
        r#"
        select r.id as "job!: JobId", r.worker_id as "worker!: WorkerId"
          from running_jobs r
          join workers w on w.id = r.worker_id
         where w.stopped_at < (select lh_now()) - $1::float8 * interval '1 second'
           and r.lease_expires_at > (select lh_now())
         order by r.id
         limit $2
        "#,
        ago.as_secs_f64(),
        one_more(named),
    )
    .fetch_all(conn)
    .await
}

/// The newest fence that the sequence gave, and the highest of those that are held or were held lately: of all batches, of
/// the `bound` oldest live jobs, and of the `bound` newest finished ones.
pub(in crate::doctor) async fn fences(conn: &mut PgConnection, bound: i64) -> Result<Fences, sqlx::Error> {
    sqlx::query_as!(
        Fences,
        r#"
        select greatest((select max(last_fence) from lease_batches),
                        (select max(fence) from (select fence from jobs order by id limit $1) j),
                        (select max(fence) from (select fence from jobs_finished order by id desc limit $1) f)) as highest,
               case when is_called then last_value else last_value - 1 end as "given!"
          from lease_fence
        "#,
        bound,
    )
    .fetch_one(conn)
    .await
}

/// Workers that did not stop and were heard within `within`, those heard last first, at most 10,000.
pub(in crate::doctor) async fn workers(conn: &mut PgConnection, within: Duration) -> Result<Vec<Worker>, sqlx::Error> {
    sqlx::query_as!(
        Worker,
        r#"
        select id as "id: WorkerId", host, pid, clock_skew_ms as skew_ms,
               extract(epoch from (select lh_now()) - seen_at)::float8 as "unheard_s!"
          from workers
         where stopped_at is null
           and seen_at > (select lh_now()) - $1::float8 * interval '1 second'
         order by seen_at desc, id
         limit 10000
        "#,
        within.as_secs_f64(),
    )
    .fetch_all(conn)
    .await
}

/// Queues and kinds with due jobs, the first thousand, with the oldest of each and whether a live worker serves them.
pub(in crate::doctor) async fn due_work(conn: &mut PgConnection) -> Result<Vec<Due>, sqlx::Error> {
    sqlx::query_as!(
        Due,
        r#"
        with heads as (
            select queue, kind, run_at from due_heads limit 10000
        ), live as materialized (
            select queues, kinds
              from workers
             where stopped_at is null
               and seen_at > (select lh_now()) - $1::float8 * interval '1 second'
             limit 10000
        ), due as (
            select queue, kind, min(run_at) as oldest from heads group by queue, kind order by queue, kind limit 1000
        )
        select d.queue as "queue!", d.kind as "kind!",
               extract(epoch from (select lh_now()) - d.oldest)::float8 as "due_for_s!",
               exists (select from live l where d.queue = any (l.queues) and d.kind = any (l.kinds)) as "served!"
          from due d
         order by d.queue, d.kind
        "#,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_all(conn)
    .await
}

/// Whether today and tomorrow have their partitions, and how many rows are in none, counted up to a thousand.
pub(in crate::doctor) async fn partitions(conn: &mut PgConnection) -> Result<Partitions, sqlx::Error> {
    sqlx::query_as!(
        Partitions,
        r#"
        with day as (
            select ((select lh_now()) at time zone 'utc')::date as today
        )
        select (select count(*) from (select from jobs_finished_default limit 1000) d) as "without_day!",
               to_regclass('jobs_finished_' || to_char(today, 'YYYYMMDD')) is not null as "today!",
               to_regclass('jobs_finished_' || to_char(today + 1, 'YYYYMMDD')) is not null as "tomorrow!"
          from day
        "#
    )
    .fetch_one(conn)
    .await
}

/// The day that pruning could not take out at its last tries, if any.
pub(in crate::doctor) async fn late_day(conn: &mut PgConnection) -> Result<Option<Late>, sqlx::Error> {
    sqlx::query_as!(
        Late,
        r#"
        select late_day as "day!", late_since as "since!",
               extract(epoch from (select lh_now()) - late_since)::float8 as "late_for_s!"
          from prune_walk
         where late_tried_at > (select lh_now()) - interval '1 day'
        "#
    )
    .fetch_optional(conn)
    .await
}
