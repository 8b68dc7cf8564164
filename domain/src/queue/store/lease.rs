//! Leasing: what a worker's poll does.

use std::time::Duration;

use sqlx::PgConnection;

use crate::clock::millis;
use crate::ids::{BatchId, JobId, Kind, QueueName};
use crate::lease::{Fence, Lease};
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{Leased, Look, PollRequest, Polled, WorkerSpec};

/// As [`poll`], for callers that want no more than jobs.
///
/// # Errors
/// Only the database's: an empty queue is not an error.
pub async fn lease_next(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    limit: u16,
    ended: &[BatchId],
) -> Result<Vec<Leased>, sqlx::Error> {
    Ok(poll(conn, worker, &PollRequest { limit, ended, look: false, wall_clock: None }).await?.leased)
}

/// Leases up to `limit` available jobs of the worker's queues and kinds, by priority, then age.
///
/// One statement for all queues and kinds: one bounded walk of the index for each pair, merged. Two callers never
/// receive the same job. Returns 0..=limit jobs, in order; fewer than `limit` does not mean that nothing else is due,
/// since rows locked by others are skipped.
/// The lease's life is counted on the database's clock; the runner stops itself one margin earlier.
///
/// The same statement removes the batches that `ended`, looks whether there is anything to sweep and tells the worker
/// its rank where it is asked to `look`, and notes that the worker lives where it is given its `wall_clock`: a worker
/// that has nothing to do asks the database one thing, now and then.
///
/// # Errors
/// Only the database's: an empty queue is not an error.
///
/// Source: the materialized CTE stops the planner from locking more than `limit` rows (Oban, `engines/basic.ex`).
pub async fn poll(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    request: &PollRequest<'_>,
) -> Result<Polled, sqlx::Error> {
    let mut queues = Vec::with_capacity(worker.queues.len() * worker.kinds.len());
    let mut kinds = Vec::with_capacity(queues.capacity());
    let mut lease_ms = Vec::with_capacity(queues.capacity());
    for queue in &worker.queues {
        for (kind, lease) in &worker.kinds {
            queues.push(queue.as_str());
            kinds.push(kind.as_str());
            lease_ms.push(millis(*lease));
        }
    }
    let ended: Vec<i64> = request.ended.iter().map(|batch| batch.0).collect();
    let limit = i64::from(request.limit);
    // Callers that look at once see the same head of the queue: each looks further than it takes, so that the second
    // still finds rows that the first did not lock.
    let window = (limit * 2).max(32);
    let rows = sqlx::query!(
        r#"
        with served as (
            select *
              from unnest($1::text[], $2::text[], $3::bigint[]) as s(queue, kind, lease_ms)
        ), due as materialized (
            select j.place, j.id, j.priority, j.run_at, s.lease_ms
              from served s
             cross join lateral (
                   select *
                     from (
                          select a.ctid as place, a.id, a.priority, a.run_at
                            from jobs a
                           where a.queue = s.queue
                             and a.kind = s.kind
                             and a.ready
                             -- Those that run keep their place in the index; the walk passes them by.
                             and a.state = 'available'
                           order by a.priority, a.run_at, a.id
                           -- A number that the planner can see: of a parameter it believes a tenth of the table,
                           -- and would then read all of it to join the rest.
                           limit 4000
                          ) b
                    limit $4
                   ) j
             order by j.priority, j.run_at, j.id
             limit $4
        ), held as materialized (
            -- By the row's place on its page, which is cheaper than its id. A row that moved meanwhile was changed
            -- meanwhile: if it is locked here all the same, the update below does not see its new version, and it is
            -- leased by a later statement. One row after the other, in the order of what is due, so that no row is
            -- locked beyond the limit.
            select j.place, d.lease_ms
              from due d
             cross join lateral (
                   select l.ctid as place
                     from jobs l
                    where l.ctid = d.place
                      and l.state = 'available'
                      for update skip locked
                   ) j
             limit $5
        ), leased as (
            update jobs j
               set state = 'running',
                   fence = nextval('lease_fence'),
                   attempt = j.attempt + 1,
                   revision = j.revision + 1,
                   worker_id = $6,
                   leased_at = (select lh_now()),
                   lease_expires_at = (select lh_now()) + h.lease_ms * interval '1 ms',
                   progress = null
              from held h
             where j.ctid = h.place
            returning j.id, j.kind, j.queue, j.args, j.attempt, j.max_attempts, j.interruptions, j.deadline_ms,
                      j.created_at, j.run_at, j.priority, j.fence, j.leased_at, j.lease_expires_at, j.traceparent
        ), batch as (
            insert into lease_batches (worker_id, expires_at, first_fence, last_fence, jobs)
            select $6, min(lease_expires_at), min(fence), max(fence), array_agg(id)
              from leased
            having count(*) > 0
            returning id
        ), ended as materialized (
            -- What a sweep holds just now is the sweep's: leasing waits for no bookkeeping.
            select id
              from lease_batches
             where id = any($7)
               and worker_id = $6
               for update skip locked
        ), removed as (
            delete from lease_batches b using ended e where b.id = e.id
        ), me as materialized (
            select id
              from workers
             where id = $6
               and $9::timestamptz is not null
               for update skip locked
        ), beat as (
            update workers w
               set seen_at = (select lh_now()),
                   clock_skew_ms = (extract(epoch from $9::timestamptz - (select lh_now())) * 1000)::bigint
              from me
             where w.id = me.id
        ), peers as materialized (
            -- Who polls for the same jobs: nobody, where nobody asked to look.
            select count(*) as live, count(*) filter (where id < $6) as rank
              from (
                   select id
                     from workers
                    where $8
                      and seen_at > (select lh_now()) - $10::float8 * interval '1 second'
                      and stopped_at is null
                      and draining_at is null
                      and queues && $1::text[]
                    order by id
                    limit 1000
                   ) w
        ), look as (
            select case when $8 then (select expires_at from lease_batches order by expires_at limit 1) end as batch_at,
                   case when $8 then (select run_at from jobs where parked order by run_at, id limit 1) end as due_at,
                   live, rank,
                   (select lh_now()) as now
              from peers
        )
        select l.id as "id?: JobId", l.kind as "kind?: Kind", l.queue as "queue?: QueueName", l.args as "args?",
               l.attempt as "attempt?", l.max_attempts as "max_attempts?", l.interruptions as "interruptions?",
               l.deadline_ms as "deadline_ms?", l.created_at as "created_at?", l.run_at as "run_at?",
               l.priority as "priority?", l.fence as "fence?: Fence", l.leased_at as "leased_at?",
               l.lease_expires_at as "expires_at?", l.traceparent as "traceparent?",
               (select id from batch) as "batch?: BatchId",
               k.batch_at as "batch_at?", k.due_at as "due_at?", k.live as "live!", k.rank as "rank!", k.now as "now!"
          from look k
          left join leased l on true
        "#,
        &queues as &[&str],
        &kinds as &[&str],
        &lease_ms,
        window,
        limit,
        worker.worker.0,
        &ended,
        request.look,
        request.wall_clock,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_all(conn)
    .await?;
    let look = rows.first().filter(|_| request.look).map(|r| Look {
        batches_due: r.batch_at.is_some_and(|at| at < r.now),
        due: r.due_at.is_some_and(|at| at <= r.now),
        next: [r.batch_at, r.due_at].into_iter().flatten().min().map(|at| (at - r.now).to_std().unwrap_or_default()),
        // Whoever asks lives, though its own row may say so a little later.
        live: u32::try_from(r.live).unwrap_or(u32::MAX).max(1),
        rank: u32::try_from(r.rank).unwrap_or(0),
        now_ms: r.now.timestamp_millis().unsigned_abs(),
    });
    let mut leased: Vec<(i16, Leased)> = Vec::with_capacity(rows.len());
    for r in rows {
        // One row without a job tells of the look alone.
        let Some((id, fence)) = r.id.zip(r.fence) else { continue };
        let job = (|| {
            Some(Leased {
                lease: Lease { job: id, fence },
                batch: r.batch?,
                kind: r.kind?,
                queue: r.queue?,
                args: r.args?,
                attempt: r.attempt?,
                max_attempts: r.max_attempts?,
                interruptions: r.interruptions?,
                deadline: r.deadline_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
                created_at: r.created_at?,
                run_at: r.run_at?,
                leased_at: r.leased_at?,
                expires_at: r.expires_at?,
                traceparent: r.traceparent,
            })
        })();
        let job = job.ok_or(sqlx::Error::Decode("a leased job lacks a column that is never null".into()))?;
        leased.push((r.priority.unwrap_or_default(), job));
    }
    // An update returns its rows in no order of ours.
    leased.sort_by(|(pa, a), (pb, b)| (pa, a.run_at, a.lease.job).cmp(&(pb, b.run_at, b.lease.job)));
    Ok(Polled { leased: leased.into_iter().map(|(_, job)| job).collect(), look })
}
