//! Rescue: jobs are taken from holders whose leases expired. No leader: any worker may, at any time.

use sqlx::PgConnection;

use super::finish::finishing;

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
    let row = finishing!(
        r#"
        with due_batches as materialized (
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
              from due_batches b
             cross join lateral unnest(b.jobs) as u(id)
              join jobs j on j.id = u.id
             where j.state = 'running'
               and j.worker_id = b.worker_id
               and j.fence between b.first_fence and b.last_fence
               and j.lease_expires_at < (select lh_now())
             order by j.id
             limit $1
               for update of j skip locked
        ), still_running as materialized (
            -- Renewed, beyond the limit, or held by another session just now: what is held is looked at again a moment
            -- later, and keeps no other batch from its turn meanwhile.
            select b.id,
                   greatest(min(j.lease_expires_at),
                            case
                                when (select count(*) from expired) < $1 then (select lh_now()) + interval '1 second'
                            end) as expires_at
              from due_batches b
             cross join lateral unnest(b.jobs) as u(id)
              join jobs j on j.id = u.id
             where j.state = 'running'
               and j.worker_id = b.worker_id
               and j.fence between b.first_fence and b.last_fence
               and not exists (select from expired e where e.id = j.id)
             group by b.id
        ), put_off as (
            update lease_batches b
               set expires_at = r.expires_at
              from still_running r
             where b.id = r.id
        ), removed as (
            delete from lease_batches b
             using due_batches d
             where b.id = d.id
               and not exists (select from still_running r where r.id = d.id)
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
            returning j.*, e.to_state
        ), kept as (
        "#,
        state = "to_state",
        interruptions = "interruptions + 1",
        settled_fence = "null::bigint",
        last_error = r#"
                   case to_state
                       when 'cancelled' then jsonb_build_object('code', 'cancelled', 'message', cancel_reason)
                       else jsonb_build_object('code', 'interruptions_spent', 'message',
                                               'its workers died or went silent under it too often')
                   end"#,
        result = "null::jsonb",
        r#"
        ), back as (
            update jobs j
               set state = 'available',
                   attempt = j.attempt - 1,
                   interruptions = j.interruptions + 1,
                   revision = j.revision + 1,
                   worker_id = null,
                   lease_expires_at = null,
                   renewed = false
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
               (select count(*) from due_batches) as "looked_at!"
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
