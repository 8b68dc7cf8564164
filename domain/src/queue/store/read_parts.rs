//! Reading what belongs to one job: attempts, steps, log lines. Every list is bounded and ordered.

use sqlx::PgConnection;

use crate::ids::{JobId, WorkerId};
use crate::lease::Fence;
use crate::queue::{Attempt, LogLine, Step};

/// A job's ended attempts, newest first, at most 50.
///
/// # Errors
/// Only the database's.
pub async fn attempts(conn: &mut PgConnection, id: JobId) -> Result<Vec<Attempt>, sqlx::Error> {
    attempts_before(conn, id, None, 50).await
}

/// A job's ended attempts, newest first: those whose last fence is below `before`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn attempts_before(
    conn: &mut PgConnection,
    id: JobId,
    before: Option<i64>,
    limit: u16,
) -> Result<Vec<Attempt>, sqlx::Error> {
    sqlx::query_as!(
        Attempt,
        r#"
        select attempt, outcome, first_fence as "first_fence: Fence", last_fence as "last_fence: Fence",
               worker_id as "worker: WorkerId", started_at, ended_at, passes, error
          from job_attempts
         where job_id = $1
           and last_fence < $2
         order by last_fence desc
         limit $3
        "#,
        id.0,
        before.unwrap_or(i64::MAX),
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// A job's steps from the first: what a later attempt goes on from. A job keeps at most 10,000.
///
/// # Errors
/// Only the database's.
pub async fn steps(conn: &mut PgConnection, id: JobId) -> Result<Vec<Step>, sqlx::Error> {
    steps_after(conn, id, 0, 10_000).await
}

/// A job's steps behind `after`, in their order, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn steps_after(conn: &mut PgConnection, id: JobId, after: i32, limit: u16) -> Result<Vec<Step>, sqlx::Error> {
    sqlx::query_as!(
        Step,
        r#"
        select seq, fence as "fence: Fence", name, cursor, evidence, at
          from job_steps
         where job_id = $1
           and seq > $2
         order by seq
         limit $3
        "#,
        id.0,
        after,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// The newest steps of a job, at most `limit`, in their order.
///
/// # Errors
/// Only the database's.
pub async fn newest_steps(conn: &mut PgConnection, id: JobId, limit: u16) -> Result<Vec<Step>, sqlx::Error> {
    let mut steps = sqlx::query_as!(
        Step,
        r#"
        select seq, fence as "fence: Fence", name, cursor, evidence, at
          from job_steps
         where job_id = $1
         order by seq desc
         limit $2
        "#,
        id.0,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await?;
    steps.reverse();
    Ok(steps)
}

/// A job's log from the oldest kept line. A job keeps at most 1,000.
///
/// # Errors
/// Only the database's.
pub async fn logs(conn: &mut PgConnection, id: JobId) -> Result<Vec<LogLine>, sqlx::Error> {
    logs_after(conn, id, 0, 1000).await
}

/// The kept lines of a job's log behind `after`, in their order, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn logs_after(
    conn: &mut PgConnection,
    id: JobId,
    after: i32,
    limit: u16,
) -> Result<Vec<LogLine>, sqlx::Error> {
    sqlx::query_as!(
        LogLine,
        r#"
        select seq, fence as "fence: Fence", at, level, line
          from job_logs
         where job_id = $1
           and seq > $2
         order by seq
         limit $3
        "#,
        id.0,
        after,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// The newest lines of a job's log, at most `limit`, in their order.
///
/// # Errors
/// Only the database's.
pub async fn newest_logs(conn: &mut PgConnection, id: JobId, limit: u16) -> Result<Vec<LogLine>, sqlx::Error> {
    let mut lines = sqlx::query_as!(
        LogLine,
        r#"
        select seq, fence as "fence: Fence", at, level, line
          from job_logs
         where job_id = $1
         order by seq desc
         limit $2
        "#,
        id.0,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await?;
    lines.reverse();
    Ok(lines)
}
