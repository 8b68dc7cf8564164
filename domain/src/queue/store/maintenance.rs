//! Sweeps that any worker may make at any time: bounded, idempotent, without a leader.

use sqlx::PgConnection;

use super::finish::finishing;
use crate::clock::millis;
use crate::queue::policy::CANCEL_GRACE;

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
             where parked
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
    let done = finishing!(
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
        "#,
        state = "'cancelled'",
        interruptions = "interruptions",
        settled_fence = "null::bigint",
        last_error = "jsonb_build_object('code', 'cancel_ignored', 'message', cancel_reason)",
        result = "null::jsonb",
        "",
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
