//! Sweeps that any worker may make at any time: bounded, idempotent, without a leader.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::millis;
use crate::ids::JobId;
use crate::queue::policy::CANCEL_GRACE;

/// What one rescue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rescued {
    /// Jobs that wait again.
    pub again: u64,
    /// Jobs whose interruptions were spent.
    pub discarded: u64,
    /// Jobs that somebody had asked to end.
    pub cancelled: u64,
    /// The look stopped at its bound: more leases may have expired.
    pub more: bool,
}

/// Batches of leases that one rescue looks through.
const RESCUE_BATCHES: i64 = 100;

/// Takes at most `limit` jobs from holders whose leases expired (Q-009).
///
/// Only batches with a lease that was to end by now are looked at; one whose jobs are renewed is put off to the next of
/// their ends, and one of which nothing runs any more is removed.
///
/// One conditional statement: each row is locked with the fence that was observed. An interruption spends no attempt;
/// it counts in a budget of its own, so a job that kills its workers ends in `discarded` with its history. What was
/// taken over is added to the throughput as `rescued` in the same statement, whatever became of the job.
///
/// # Errors
/// Only the database's.
pub async fn rescue_expired(conn: &mut PgConnection, limit: u16) -> Result<Rescued, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        with old as materialized (
            select id, worker_id, first_fence, last_fence, jobs
              from lease_batches
             where expires_at < (select lh_now())
             order by expires_at, id
             limit $2
               for update skip locked
        ), expired as materialized (
            select j.id, j.fence, j.queue, j.kind,
                   case
                       when j.cancel_requested_at is not null then 'cancelled'
                       when j.interruptions + 1 >= j.max_interruptions and not j.protected then 'discarded'
                       else 'available'
                   end as to_state
              from old o
             cross join lateral unnest(o.jobs) as u(id)
              join jobs j on j.id = u.id
             where j.state = 'running'
               and j.worker_id = o.worker_id
               and j.fence between o.first_fence and o.last_fence
               and j.lease_expires_at < (select lh_now())
             order by j.id
             limit $1
               for update of j skip locked
        ), rest as materialized (
            -- What runs on: renewed, beyond the limit, or held by another session just now.
            select o.id, min(j.lease_expires_at) as expires_at
              from old o
             cross join lateral unnest(o.jobs) as u(id)
              join jobs j on j.id = u.id
             where j.state = 'running'
               and j.worker_id = o.worker_id
               and j.fence between o.first_fence and o.last_fence
               and not exists (select from expired e where e.id = j.id)
             group by o.id
        ), put_off as (
            update lease_batches b
               set expires_at = r.expires_at
              from rest r
             where b.id = r.id
        ), over as (
            delete from lease_batches b
             using old o
             where b.id = o.id
               and not exists (select from rest r where r.id = o.id)
        ), noted as (
            insert into job_attempts (job_id, attempt, outcome, first_fence, last_fence, worker_id, started_at,
                                      ended_at, error)
            select j.id, j.attempt, 'interrupted', j.fence, j.fence, j.worker_id, j.leased_at, j.lease_expires_at,
                   jsonb_build_object('code', 'lease_expired',
                                      'message', 'the worker did not renew its lease; another takes the job over')
              from expired e
              join jobs j on j.id = e.id
        ), gone as (
            delete from jobs j
             using expired e
             where j.id = e.id
               and j.fence = e.fence
               and e.to_state <> 'available'
            returning j.id, j.kind, j.queue, j.priority, j.run_at, j.created_at, j.args, j.attempt, j.max_attempts,
                      j.interruptions, j.revision, j.fence, j.worker_id, j.leased_at, j.deadline_ms,
                      j.protected, j.max_interruptions, j.progress,
                      j.tags, j.unique_key, j.concurrency_key, j.parent_id, j.traceparent, j.cancel_reason, e.to_state
        ), kept as (
            -- Without settled_fence, as in each end that no holder wrote: it names the holder whose outcome ended the
            -- job. What holders settled before stands in the attempts.
            insert into jobs_finished (id, kind, queue, state, priority, run_at, created_at, finished_at, args, attempt,
                                       max_attempts, interruptions, revision, fence, worker_id, leased_at, deadline_ms,
                                       protected, max_interruptions,
                                       progress, tags, unique_key, concurrency_key, parent_id, traceparent, last_error)
            select id, kind, queue, to_state, priority, run_at, created_at, (select lh_now()), args, attempt,
                   max_attempts, interruptions + 1, revision + 1, fence, worker_id, leased_at, deadline_ms,
                   protected, max_interruptions, progress,
                   tags, unique_key, concurrency_key, parent_id, traceparent,
                   case to_state
                       when 'cancelled' then jsonb_build_object('code', 'cancelled', 'message', cancel_reason)
                       else jsonb_build_object('code', 'interruptions_spent', 'message',
                                               'its workers died or went silent under it too often')
                   end
              from gone
        ), back as (
            update jobs j
               set state = 'available',
                   attempt = j.attempt - 1,
                   interruptions = j.interruptions + 1,
                   revision = j.revision + 1,
                   worker_id = null,
                   lease_expires_at = null
              from expired e
             where j.id = e.id
               and j.fence = e.fence
               and e.to_state = 'available'
            returning j.id
        ), counted as (
            -- In the order of the key, as all who add here: so that none waits for another in a circle.
            insert into throughput (minute, queue, kind, outcome, total)
            select date_trunc('minute', (select lh_now())), e.queue, e.kind, 'rescued', count(*)
              from expired e
             group by e.queue, e.kind
             order by e.queue, e.kind
                on conflict (minute, queue, kind, outcome) do update set total = throughput.total + excluded.total
        )
        select (select count(*) from back) as "again!",
               (select count(*) from gone where to_state = 'discarded') as "discarded!",
               (select count(*) from gone where to_state = 'cancelled') as "cancelled!",
               (select count(*) from old) as "looked_at!"
        "#,
        i64::from(limit),
        RESCUE_BATCHES,
    )
    .fetch_one(conn)
    .await?;
    let (again, discarded) = (row.again.unsigned_abs(), row.discarded.unsigned_abs());
    let cancelled = row.cancelled.unsigned_abs();
    let more = row.looked_at >= RESCUE_BATCHES || again + discarded + cancelled >= u64::from(limit);
    Ok(Rescued { again, discarded, cancelled, more })
}

/// Looks at the next `limit` live jobs behind `after` and gives those a batch that hold an expired lease and stand in none,
/// so that [`rescue_expired`] finds them. Answers where the next look begins; `None` at the end.
///
/// No statement of ours leaves such a job behind. An older program that still leases beside us would, and what nobody
/// finds would run for ever: the walk goes around all live jobs in small steps, and is the net under the batches.
///
/// # Errors
/// Only the database's.
pub async fn adopt_strays(
    conn: &mut PgConnection,
    after: Option<JobId>,
    limit: u16,
) -> Result<(u64, Option<JobId>), sqlx::Error> {
    let row = sqlx::query!(
        r#"
        with next as materialized (
            select id, state, worker_id, fence, lease_expires_at
              from jobs
             where id > $1
             order by id
             limit $2
        ), adopted as (
            insert into lease_batches (worker_id, expires_at, first_fence, last_fence, jobs)
            select n.worker_id, n.lease_expires_at, n.fence, n.fence, array[n.id]
              from next n
             where n.state = 'running'
               -- Far beyond what a living worker's batch, or a sweep that is under way, could still be about to name.
               and n.lease_expires_at < (select lh_now()) - interval '1 minute'
               and not exists (select from running_jobs r where r.id = n.id)
            returning id
        )
        select (select count(*) from adopted) as "adopted!",
               (select id from next order by id offset $2 - 1 limit 1) as "last: JobId"
        "#,
        after.map_or(Uuid::nil(), |id| id.0),
        i64::from(limit),
    )
    .fetch_one(conn)
    .await?;
    Ok((row.adopted.unsigned_abs(), row.last))
}

/// Makes at most `limit` jobs available whose time has come; returns how many.
///
/// # Errors
/// Only the database's.
pub async fn stage_due(conn: &mut PgConnection, limit: u16) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        with due as materialized (
            select id
              from jobs
             where not ready
               and run_at <= (select lh_now())
             order by run_at, id
             limit $1
               for update skip locked
        )
        update jobs j
           set state = 'available', revision = j.revision + 1
          from due d
         where j.id = d.id
        "#,
        i64::from(limit),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Fences off at most `limit` running jobs that ignored their cancellation past the grace (Q-031).
///
/// # Errors
/// Only the database's.
pub async fn cancel_ignored(conn: &mut PgConnection, limit: u16) -> Result<u64, sqlx::Error> {
    let grace_ms = millis(CANCEL_GRACE);
    let done = sqlx::query!(
        r#"
        with ignored as materialized (
            select j.id
              from running_jobs r
              join jobs j on j.id = r.id
             where j.state = 'running'
               and j.cancel_requested_at < (select lh_now()) - $2 * interval '1 ms'
             order by j.id
             limit $1
               for update of j skip locked
        ), noted as (
            insert into job_attempts (job_id, attempt, outcome, first_fence, last_fence, worker_id, started_at,
                                      ended_at, error)
            select j.id, j.attempt, 'interrupted', j.fence, j.fence, j.worker_id, j.leased_at, (select lh_now()),
                   jsonb_build_object('code', 'cancel_ignored', 'message', 'the handler did not end when asked to')
              from ignored i
              join jobs j on j.id = i.id
        ), gone as (
            delete from jobs j
             using ignored i
             where j.id = i.id
            returning j.*
        )
        -- Without settled_fence: no holder wrote this end.
        insert into jobs_finished (id, kind, queue, state, priority, run_at, created_at, finished_at, args, attempt,
                                   max_attempts, interruptions, revision, fence, worker_id, leased_at, deadline_ms,
                                   protected, max_interruptions,
                                   progress, tags, unique_key, concurrency_key, parent_id, traceparent, last_error)
        select id, kind, queue, 'cancelled', priority, run_at, created_at, (select lh_now()), args, attempt,
               max_attempts, interruptions, revision + 1, fence, worker_id, leased_at, deadline_ms,
               protected, max_interruptions, progress, tags,
               unique_key, concurrency_key, parent_id, traceparent,
               jsonb_build_object('code', 'cancel_ignored', 'message', cancel_reason)
          from gone
        "#,
        i64::from(limit),
        grace_ms as f64,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Makes the day partitions of finished jobs for today and `days` more; answers whether all of them are there.
///
/// Waits a fifth of a second for a lock at most: one that others hold then means "later", and nothing was made.
///
/// # Errors
/// Only the database's.
pub async fn ensure_partitions(conn: &mut PgConnection, days: u16) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select lh_ensure_finished_partitions($1) as "made!""#, i32::from(days)).fetch_one(conn).await
}

/// Adds what this process did since its last call; `counts` are (queue, kind, outcome, how many).
///
/// # Errors
/// Only the database's: then the caller keeps its counts and adds them later.
pub async fn add_throughput(
    conn: &mut PgConnection,
    counts: &[(String, String, String, i64)],
) -> Result<(), sqlx::Error> {
    // Locked in the order of the key, so that two processes never wait for each other.
    let mut sorted: Vec<&(String, String, String, i64)> = counts.iter().collect();
    sorted.sort();
    let queues: Vec<&str> = sorted.iter().map(|c| c.0.as_str()).collect();
    let kinds: Vec<&str> = sorted.iter().map(|c| c.1.as_str()).collect();
    let outcomes: Vec<&str> = sorted.iter().map(|c| c.2.as_str()).collect();
    let totals: Vec<i64> = sorted.iter().map(|c| c.3).collect();
    sqlx::query!(
        r#"
        insert into throughput (minute, queue, kind, outcome, total)
        select date_trunc('minute', (select lh_now())), a.queue, a.kind, a.outcome, a.total
          from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) with ordinality
               as a(queue, kind, outcome, total, n)
         order by a.n
            on conflict (minute, queue, kind, outcome) do update set total = throughput.total + excluded.total
        "#,
        &queues as &[&str],
        &kinds as &[&str],
        &outcomes as &[&str],
        &totals,
    )
    .execute(conn)
    .await?;
    Ok(())
}
