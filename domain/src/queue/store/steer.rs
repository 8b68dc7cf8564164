//! What the things that jobs work on do to their jobs: have them look again now, or give them to another queue.

use sqlx::PgConnection;

use crate::ids::QueueName;
use crate::lease::{Lease, LeaseLost};
use crate::queue::Error;

/// Makes the live job of a kind and unique key look again at once: one that waits for its time becomes due now; one that
/// runs, and snoozes under its present lease, is due at once after it. Nudges coalesce.
///
/// A run that completes ends its job, whatever nudged it meanwhile: whoever has more for it to do than it saw enqueues the
/// job anew, in a sweep.
///
/// Returns the job's queue, for a hint; `None` where no such job lives. Part of the caller's transaction: the row stays
/// locked until it ends.
///
/// # Errors
/// Only the database's.
pub async fn nudge(conn: &mut PgConnection, kind: &str, unique_key: &str) -> Result<Option<QueueName>, sqlx::Error> {
    look_again(conn, kind, unique_key, None).await
}

/// As [`nudge`], and gives the job to this queue, unless it runs: whoever had it may be gone.
///
/// # Errors
/// Only the database's.
pub async fn recall(
    conn: &mut PgConnection,
    kind: &str,
    unique_key: &str,
    to: &QueueName,
) -> Result<Option<QueueName>, sqlx::Error> {
    look_again(conn, kind, unique_key, Some(to)).await
}

async fn look_again(
    conn: &mut PgConnection,
    kind: &str,
    unique_key: &str,
    to: Option<&QueueName>,
) -> Result<Option<QueueName>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update jobs
           set state = case when parked then 'available' else state end,
               run_at = case when parked then (select lh_now()) else run_at end,
               queue = case when state = 'running' then queue else coalesce($3, queue) end,
               revision = revision + (parked or (state <> 'running' and queue <> coalesce($3, queue)))::int,
               -- A job that waits for its next attempt may have none left but this one.
               max_attempts = greatest(max_attempts, attempt + parked::int),
               nudged_fence = case when state = 'running' then fence else nudged_fence end
         where kind = $1
           and unique_key = $2
        returning queue as "queue: QueueName"
        "#,
        kind,
        unique_key,
        to.map(QueueName::as_str),
    )
    .fetch_optional(conn)
    .await
}

/// Gives jobs to other queues, but none that runs, or ran since it was read with this fence; the queues of those that it
/// gave. Part of the caller's transaction.
///
/// # Errors
/// Only the database's.
pub async fn give(conn: &mut PgConnection, jobs: &[(Lease, QueueName)]) -> Result<Vec<QueueName>, sqlx::Error> {
    let ids: Vec<_> = jobs.iter().map(|(read, _)| read.job.0).collect();
    let fences: Vec<_> = jobs.iter().map(|(read, _)| read.fence.0).collect();
    let queues: Vec<_> = jobs.iter().map(|(_, queue)| queue.to_string()).collect();
    sqlx::query_scalar!(
        r#"
        update jobs j
           set queue = s.queue, revision = j.revision + 1
          from (
               select w.id, g.queue
                 from unnest($1::uuid[], $2::bigint[], $3::text[]) as g (id, fence, queue)
                 join jobs w on w.id = g.id and w.fence = g.fence
                where w.state <> 'running'
                order by w.id
                  for no key update of w
               ) s
         where j.id = s.id
        returning j.queue as "queue: QueueName"
        "#,
        &ids,
        &fences,
        &queues,
    )
    .fetch_all(conn)
    .await
}

/// Gives the job that a lease holds to another queue: its next runs are that queue's. Part of the caller's transaction.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn hand_to(conn: &mut PgConnection, lease: Lease, queue: &QueueName) -> Result<(), Error> {
    let done = sqlx::query!(
        "update jobs set queue = $3 where id = $1 and fence = $2 and state = 'running'",
        lease.job.0,
        lease.fence.0,
        queue.as_str(),
    )
    .execute(conn)
    .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(LeaseLost { lease }.into()) }
}
