//! Leasing and renewing.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::millis;
use crate::ids::{BatchId, JobId, Kind, QueueName};
use crate::lease::{Fence, Lease};
use crate::queue::{Leased, Renewed, WorkerSpec};

/// Leases up to `limit` available jobs of the worker's queues and kinds, by priority, then age.
///
/// One statement for all queues and kinds: one bounded walk of the index for each pair, merged. Two callers never
/// receive the same job. Returns 0..=limit jobs, in order; fewer than `limit` does not mean that nothing else is due,
/// since rows locked by others are skipped.
/// The lease's life is counted on the database's clock; the runner stops itself one margin earlier.
///
/// The same statement removes `ended`: batches of the worker's own, each of whose leases is known to have ended.
///
/// # Errors
/// Only the database's: an empty queue is not an error.
///
/// Source: the materialized CTE stops the planner from locking more than `limit` rows (Oban, `engines/basic.ex`).
pub async fn lease_next(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    limit: u16,
    ended: &[BatchId],
) -> Result<Vec<Leased>, sqlx::Error> {
    if limit == 0 {
        return Ok(Vec::new());
    }
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
    let ended: Vec<i64> = ended.iter().map(|batch| batch.0).collect();
    let limit = i64::from(limit);
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
            -- meanwhile: it is passed by, and found at its new place next time.
            select j.ctid as place, d.lease_ms
              from due d
              join jobs j on j.ctid = d.place
             where j.state = 'available'
             order by d.priority, d.run_at, d.id
             limit $5
               for update of j skip locked
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
        ), over as (
            delete from lease_batches
             where id = any($7)
               and worker_id = $6
        )
        select id as "id!: JobId", kind as "kind!: Kind", queue as "queue!: QueueName", args as "args!",
               attempt as "attempt!", max_attempts as "max_attempts!", interruptions as "interruptions!", deadline_ms,
               created_at as "created_at!", run_at as "run_at!", priority as "priority!", fence as "fence!: Fence",
               leased_at as "leased_at!", lease_expires_at as "expires_at!", traceparent,
               (select id from batch) as "batch!: BatchId"
          from leased
        "#,
        &queues as &[&str],
        &kinds as &[&str],
        &lease_ms,
        window,
        limit,
        worker.worker.0,
        &ended,
    )
    .fetch_all(conn)
    .await?;
    let mut leased: Vec<(i16, Leased)> = rows
        .into_iter()
        .map(|r| {
            let job = Leased {
                lease: Lease { job: r.id, fence: r.fence },
                batch: r.batch,
                kind: r.kind,
                queue: r.queue,
                args: r.args,
                attempt: r.attempt,
                max_attempts: r.max_attempts,
                interruptions: r.interruptions,
                deadline: r.deadline_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
                created_at: r.created_at,
                run_at: r.run_at,
                leased_at: r.leased_at,
                expires_at: r.expires_at,
                traceparent: r.traceparent,
            };
            (r.priority, job)
        })
        .collect();
    // An update returns its rows in no order of ours.
    leased.sort_by(|(pa, a), (pb, b)| (pa, a.run_at, a.lease.job).cmp(&(pb, b.run_at, b.lease.job)));
    Ok(leased.into_iter().map(|(_, job)| job).collect())
}

/// Lengthens many leases in one statement, each by its own life; the answers stand in the order of `leases`.
///
/// A cancellation that somebody asked for comes back in the answer, so it reaches the handler within a third of a lease
/// without any notification (Q-031).
///
/// A row that another session holds is passed by and answered with [`Renewed::Busy`]: it must not let the other leases
/// of the worker lapse.
///
/// # Errors
/// Only the database's: then nothing is known, and the holder stops at its own, earlier deadline.
pub async fn renew(conn: &mut PgConnection, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, sqlx::Error> {
    let ids: Vec<Uuid> = leases.iter().map(|(l, _)| l.job.0).collect();
    let fences: Vec<i64> = leases.iter().map(|(l, _)| l.fence.0).collect();
    let lease_ms: Vec<i64> = leases.iter().map(|(_, life)| millis(*life)).collect();
    let rows = sqlx::query!(
        r#"
        with asked as (
            select *
              from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as a(id, fence, lease_ms)
        ), held as materialized (
            select j.id, a.lease_ms
              from asked a
              join jobs j on j.id = a.id
             where j.fence = a.fence
               and j.state = 'running'
             order by j.id
               for update of j skip locked
        )
        update jobs j
           set lease_expires_at = (select lh_now()) + h.lease_ms * interval '1 ms'
          from held h
         where j.id = h.id
        returning j.id as "id: JobId", j.fence as "fence: Fence", j.cancel_requested_at is not null as "cancelled!",
                  j.cancel_reason
        "#,
        &ids,
        &fences,
        &lease_ms,
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut known: HashMap<Lease, Renewed> = rows
        .into_iter()
        .map(|r| {
            let told = if r.cancelled {
                Renewed::CancelRequested { reason: r.cancel_reason.unwrap_or_default() }
            } else {
                Renewed::Alive
            };
            (Lease { job: r.id, fence: r.fence }, told)
        })
        .collect();
    let missed: Vec<Lease> = leases.iter().map(|(l, _)| *l).filter(|lease| !known.contains_key(lease)).collect();
    if !missed.is_empty() {
        known.extend(still_held(conn, &missed).await?.into_iter().map(|lease| (lease, Renewed::Busy)));
    }
    Ok(leases.iter().map(|(lease, _)| known.remove(lease).unwrap_or(Renewed::Lost)).collect())
}

/// Which of these leases are their jobs' as far as is committed: a look that waits for no lock.
pub(super) async fn still_held(conn: &mut PgConnection, leases: &[Lease]) -> Result<Vec<Lease>, sqlx::Error> {
    let ids: Vec<Uuid> = leases.iter().map(|l| l.job.0).collect();
    let fences: Vec<i64> = leases.iter().map(|l| l.fence.0).collect();
    let rows = sqlx::query!(
        r#"
        select j.id as "id: JobId", j.fence as "fence: Fence"
          from unnest($1::uuid[], $2::bigint[]) as a(id, fence)
          join jobs j on j.id = a.id
         where j.fence = a.fence
           and j.state = 'running'
        "#,
        &ids,
        &fences,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|r| Lease { job: r.id, fence: r.fence }).collect())
}
