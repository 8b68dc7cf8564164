//! Settling: how leases end, many at once.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::clock::millis;
use crate::db;
use crate::ids::JobId;
use crate::lease::{Fence, Lease};
use crate::queue::{Fate, JobState, Outcome, Settlement};

use super::finish::finishing;

/// How long one call waits in all for rows that other sessions hold.
const PATIENCE: Duration = Duration::from_millis(200);

/// Records many outcomes in one statement; the answers stand in the order of `settlements`.
///
/// A stale item changes nothing and stops none of the others (Q-007). A second try of a settlement that committed is
/// answered with [`Fate::Already`] (Q-005). Finished jobs move to `jobs_finished`.
///
/// A row that another session holds stops none of the others either: it is passed by, then waited for by itself, a
/// fifth of a second for all such rows together, and answered with [`Fate::Busy`] when it is still held.
///
/// # Errors
/// Only the database's: then nothing is known; the same call may be made again.
pub async fn settle(conn: &mut PgConnection, settlements: &[Settlement]) -> Result<Vec<Fate>, sqlx::Error> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let mut settled = record(conn, settlements).await?;
    let missed: Vec<Lease> = settlements.iter().map(|s| s.lease).filter(|lease| !settled.contains_key(lease)).collect();
    if !missed.is_empty() {
        for lease in settled_before(conn, &missed).await? {
            settled.insert(lease, Fate::Already);
        }
        let passed_by: Vec<Lease> = missed.into_iter().filter(|lease| !settled.contains_key(lease)).collect();
        if !passed_by.is_empty() {
            wait_for_rows(conn, settlements, &passed_by, &mut settled).await?;
        }
    }
    Ok(settlements.iter().map(|s| settled.get(&s.lease).copied().unwrap_or(Fate::Lost)).collect())
}

/// As [`settle`], for handlers that are done, at half its cost: each row is deleted as it is found, without being locked
/// first and passed by where another session holds it.
///
/// It waits for such a row as long as the connection's `lock_timeout` says, and then fails as a whole: nothing was
/// recorded, and [`settle`] is the way.
///
/// # Errors
/// Only the database's.
pub async fn complete_swiftly(conn: &mut PgConnection, done: &[(Lease, &Value)]) -> Result<Vec<Fate>, sqlx::Error> {
    // Asked in the order of their ids, which makes deadlocks with others rare; one that is lost is worth a retry.
    let mut sorted: Vec<&(Lease, &Value)> = done.iter().collect();
    sorted.sort_by_key(|(lease, _)| (lease.job, lease.fence));
    // Asked twice in one call, a lease ends once, as first asked.
    sorted.dedup_by_key(|(lease, _)| *lease);
    let ids: Vec<Uuid> = sorted.iter().map(|(lease, _)| lease.job.0).collect();
    let fences: Vec<i64> = sorted.iter().map(|(lease, _)| lease.fence.0).collect();
    let results: Vec<&Value> = sorted.iter().map(|(_, result)| *result).collect();
    let rows = finishing!(
        r#"
        with gone as (
            delete from jobs j
             using unnest($1::uuid[], $2::bigint[], $3::jsonb[]) as a(id, fence, result)
             where j.id = a.id
               and j.fence = a.fence
               and j.state = 'running'
            returning j.*, a.result
        )
        "#,
        state = "'completed'",
        interruptions = "interruptions",
        settled_fence = "fence",
        last_error = "last_error",
        result = "result",
        r#"returning id as "id: JobId", fence as "fence: Fence""#,
        &ids,
        &fences,
        &results as &[&Value],
    )
    .fetch_all(&mut *conn)
    .await?;
    let completed = Fate::Settled(JobState::Completed);
    let mut known: HashMap<Lease, Fate> =
        rows.into_iter().map(|r| (Lease { job: r.id, fence: r.fence }, completed)).collect();
    if known.len() < sorted.len() {
        let missed: Vec<Lease> = sorted.iter().map(|(lease, _)| *lease).filter(|l| !known.contains_key(l)).collect();
        known.extend(settled_before(conn, &missed).await?.into_iter().map(|lease| (lease, Fate::Already)));
    }
    Ok(done.iter().map(|(lease, _)| known.get(lease).copied().unwrap_or(Fate::Lost)).collect())
}

/// Settles those of `leases` that are still their jobs', one after the other, as far as the patience goes.
async fn wait_for_rows(
    conn: &mut PgConnection,
    settlements: &[Settlement],
    leases: &[Lease],
    settled: &mut HashMap<Lease, Fate>,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let busy: HashSet<Lease> = super::renew::still_held(&mut *conn, leases).await?.into_iter().collect();
    // Whoever held a row may have been an earlier try of the same settlement, which has committed between the two looks:
    // the first one came too early to see it.
    let ended: Vec<Lease> = leases.iter().copied().filter(|lease| !busy.contains(lease)).collect();
    if !ended.is_empty() {
        settled.extend(settled_before(&mut *conn, &ended).await?.into_iter().map(|lease| (lease, Fate::Already)));
    }
    for settlement in settlements {
        if !busy.contains(&settlement.lease) || settled.contains_key(&settlement.lease) {
            continue;
        }
        let left = PATIENCE.saturating_sub(began.elapsed());
        let fate = if left.is_zero() { Fate::Busy } else { settle_alone(&mut *conn, settlement, left).await? };
        settled.insert(settlement.lease, fate);
    }
    Ok(())
}

/// Settles one lease, waiting at most `wait` for its row.
async fn settle_alone(conn: &mut PgConnection, settlement: &Settlement, wait: Duration) -> Result<Fate, sqlx::Error> {
    // Nested where the caller is in a transaction, which the wait's end must not abort.
    let mut tx = conn.begin().await?;
    let locked = lock_row(&mut tx, settlement.lease, wait).await;
    match locked {
        Ok(()) => {}
        Err(error) if db::lock_timed_out(&error) => {
            tx.rollback().await?;
            return Ok(Fate::Busy);
        }
        Err(error) => return Err(error),
    }
    let mut done = record(&mut tx, std::slice::from_ref(settlement)).await?;
    tx.commit().await?;
    match done.remove(&settlement.lease) {
        Some(fate) => Ok(fate),
        // Whom it waited for may have been an earlier try of the same settlement.
        None if settled_before(conn, &[settlement.lease]).await?.is_empty() => Ok(Fate::Lost),
        None => Ok(Fate::Already),
    }
}

async fn lock_row(conn: &mut PgConnection, lease: Lease, wait: Duration) -> Result<(), sqlx::Error> {
    let before =
        sqlx::query_scalar!(r#"select current_setting('lock_timeout') as "before!""#).fetch_one(&mut *conn).await?;
    let wait = format!("{}ms", wait.as_millis().max(1));
    sqlx::query!(r#"select set_config('lock_timeout', $1, true) as "set!""#, wait).fetch_one(&mut *conn).await?;
    sqlx::query!("select id from jobs where id = $1 for update", lease.job.0).fetch_optional(&mut *conn).await?;
    // The setting of a nested transaction stays when it is released.
    sqlx::query!(r#"select set_config('lock_timeout', $1, true) as "set!""#, before).fetch_one(conn).await?;
    Ok(())
}

pub(super) async fn record(
    conn: &mut PgConnection,
    settlements: &[Settlement],
) -> Result<HashMap<Lease, Fate>, sqlx::Error> {
    let mut ids: Vec<Uuid> = Vec::with_capacity(settlements.len());
    let mut fences: Vec<i64> = Vec::with_capacity(settlements.len());
    let mut outcomes: Vec<&str> = Vec::with_capacity(settlements.len());
    let mut results: Vec<Option<&Value>> = Vec::with_capacity(settlements.len());
    let mut errors: Vec<Option<Value>> = Vec::with_capacity(settlements.len());
    let mut after_ms: Vec<i64> = Vec::with_capacity(settlements.len());
    let mut seen = HashSet::with_capacity(settlements.len());
    for s in settlements {
        // Asked twice in one call, a lease ends once, as first asked.
        if !seen.insert(s.lease) {
            continue;
        }
        ids.push(s.lease.job.0);
        fences.push(s.lease.fence.0);
        let (word, result, error, wait) = match &s.outcome {
            Outcome::Completed { result } => ("completed", Some(result), None, None),
            Outcome::Failed { error, after } => ("failed", None, Some(error.clone()), Some(*after)),
            Outcome::Snoozed { after } => ("snoozed", None, None, Some(*after)),
            Outcome::Discarded { error } => ("discarded", None, Some(error.clone()), None),
            Outcome::Cancelled { reason } => {
                ("cancelled", None, Some(serde_json::json!({"code": "cancelled", "message": reason})), None)
            }
            Outcome::Released => ("released", None, None, None),
        };
        outcomes.push(word);
        results.push(result);
        errors.push(error);
        after_ms.push(wait.map_or(0, millis));
    }
    let rows = finishing!(
        r#"
        with asked as (
            select *
              from unnest($1::uuid[], $2::bigint[], $3::text[], $4::jsonb[], $5::jsonb[], $6::bigint[])
                   as a(id, fence, outcome, result, error, after_ms)
        ), held as materialized (
            select j.id, j.fence, a.outcome, a.result, a.error, a.after_ms,
                   case
                       when a.outcome in ('completed', 'cancelled') then a.outcome
                       -- Somebody asked it to end, and it did not complete.
                       when j.cancel_requested_at is not null and a.outcome <> 'discarded' then 'cancelled'
                       when a.outcome = 'discarded' and not j.protected then 'discarded'
                       when a.outcome = 'failed' and not j.protected and j.attempt >= j.max_attempts then 'discarded'
                       when a.outcome in ('failed', 'discarded') then 'retryable'
                       when a.outcome = 'snoozed' and a.after_ms > 0 and j.nudged_fence is distinct from j.fence
                       then 'scheduled'
                       else 'available'
                   end as to_state
              from asked a
              join jobs j on j.id = a.id
             where j.fence = a.fence
               and j.state = 'running'
             order by j.id
               for update of j skip locked
        ), gone as (
            delete from jobs j
             using held h
             where j.id = h.id
               and h.to_state in ('completed', 'cancelled', 'discarded')
            returning j.*, h.to_state, h.outcome, h.result, h.error
        ), kept as (
        "#,
        state = "to_state",
        interruptions = "interruptions",
        settled_fence = "fence",
        last_error = r#"
                   case
                       when to_state = 'cancelled'
                       then coalesce(error, jsonb_build_object('code', 'cancelled', 'message', cancel_reason))
                       else coalesce(error, last_error)
                   end"#,
        result = "result",
        r#"
        ), tried as (
            insert into job_attempts (job_id, attempt, outcome, first_fence, last_fence, worker_id, started_at,
                                      ended_at, error)
            select j.id, j.attempt, case h.outcome when 'discarded' then 'failed' else h.outcome end, j.fence, j.fence,
                   j.worker_id, j.leased_at, (select lh_now()), h.error
              from held h
              join jobs j on j.id = h.id
             where h.to_state not in ('completed', 'cancelled', 'discarded')
                on conflict (job_id, attempt) where outcome = 'snoozed'
                do update set last_fence = excluded.last_fence,
                              worker_id = excluded.worker_id,
                              ended_at = excluded.ended_at,
                              passes = job_attempts.passes + 1
        ), back as (
            update jobs j
               set state = h.to_state,
                   settled_fence = j.fence,
                   revision = j.revision + 1,
                   worker_id = null,
                   lease_expires_at = null,
                   renewed = false,
                   attempt = case when h.outcome in ('snoozed', 'released') then j.attempt - 1 else j.attempt end,
                   run_at = case
                                when h.outcome = 'released' then j.run_at
                                when h.outcome = 'snoozed' and h.to_state = 'available' then (select lh_now())
                                else (select lh_now())
                                     -- A protected job that gave up waits long; it is never thrown away.
                                     + greatest(h.after_ms, case h.outcome when 'discarded' then 60000 else 0 end)
                                       * interval '1 ms'
                            end,
                   last_error = coalesce(h.error, j.last_error)
              from held h
             where j.id = h.id
               and h.to_state not in ('completed', 'cancelled', 'discarded')
            returning j.id
        )
        select id as "id!: JobId", fence as "fence!: Fence", to_state as "state!: JobState"
          from held
        "#,
        &ids,
        &fences,
        &outcomes as &[&str],
        &results as &[Option<&Value>],
        &errors as &[Option<Value>],
        &after_ms,
    )
    .fetch_all(conn)
    .await?;
    let mut settled = HashMap::with_capacity(rows.len());
    for row in rows {
        settled.insert(Lease { job: row.id, fence: row.fence }, Fate::Settled(row.state));
    }
    Ok(settled)
}

/// Which of these leases were settled by their own holders before.
async fn settled_before(conn: &mut PgConnection, leases: &[Lease]) -> Result<Vec<Lease>, sqlx::Error> {
    let ids: Vec<Uuid> = leases.iter().map(|l| l.job.0).collect();
    let fences: Vec<i64> = leases.iter().map(|l| l.fence.0).collect();
    let rows = sqlx::query!(
        r#"
        select a.id as "id!: JobId", a.fence as "fence!: Fence"
          from unnest($1::uuid[], $2::bigint[]) as a(id, fence)
         where exists (select from jobs j where j.id = a.id and j.settled_fence = a.fence)
            or exists (select from jobs_finished f where f.id = a.id and f.settled_fence = a.fence)
            -- The passes of a snoozing job stand in one row, from the first one's fence to the last one's. A lease
            -- between them that was taken away has a row of its own.
            or (
                   exists (
                       select
                         from job_attempts t
                        where t.job_id = a.id
                          and t.first_fence <= a.fence
                          and t.last_fence >= a.fence
                   )
               and not exists (
                       select
                         from job_attempts t
                        where t.job_id = a.id
                          and t.last_fence = a.fence
                          and t.outcome = 'interrupted'
                   )
               )
        "#,
        &ids,
        &fences,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|r| Lease { job: r.id, fence: r.fence }).collect())
}
