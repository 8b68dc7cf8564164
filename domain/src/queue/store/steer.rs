//! What the things that jobs work on do to their jobs: have them look again now, or give them to another queue.

use sqlx::PgConnection;

use crate::ids::QueueName;
use crate::lease::{Lease, LeaseLost};
use crate::queue::Error;

/// Makes the live job of a kind and unique key look again at once: one that waits for its time becomes due now; one that
/// runs, and snoozes under its present lease, is due at once after it. Nudges coalesce, and none is lost: what was
/// committed before the nudge is seen by a run that begins after it.
///
/// Returns the job's queue, for a hint; `None` where no such job lives. Part of the caller's transaction: the row stays
/// locked until it ends.
///
/// # Errors
/// Only the database's.
pub async fn nudge(conn: &mut PgConnection, kind: &str, unique_key: &str) -> Result<Option<QueueName>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update jobs
           set state = case when parked then 'available' else state end,
               run_at = case when parked then (select lh_now()) else run_at end,
               revision = revision + parked::int,
               -- A job that waits for its next attempt may have none left but this one.
               max_attempts = greatest(max_attempts, attempt + parked::int),
               nudged_fence = case when state = 'running' then fence else nudged_fence end
         where kind = $1
           and unique_key = $2
        returning queue as "queue: QueueName"
        "#,
        kind,
        unique_key,
    )
    .fetch_optional(conn)
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
