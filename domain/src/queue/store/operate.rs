//! Operators' verbs.

use sqlx::{Connection as _, PgConnection};

use super::finish::finishing;
use crate::db;
use crate::ids::JobId;
use crate::queue::{Error, JobState};

/// What a cancel came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The job did not run: it ended at once.
    AtOnce,
    /// The job runs: its handler is asked at the next renewal, within a third of a lease.
    Requested,
}

/// Asks a job to end; `if_revision` refuses when the job changed since it was read.
///
/// Look and write are one transaction, nested where the caller is in one: between them a job could begin to run.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Conflict`] for a finished or a protected job, [`Error::Stale`], or the database's.
pub async fn cancel(
    conn: &mut PgConnection,
    id: JobId,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Cancelled, Error> {
    let mut tx = conn.begin().await?;
    let done = cancel_inside(&mut tx, id, reason, if_revision).await;
    db::finish(tx, done).await
}

async fn cancel_inside(
    conn: &mut PgConnection,
    id: JobId,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<Cancelled, Error> {
    let row = sqlx::query!(
        r#"select state as "state: JobState", protected, revision from jobs where id = $1 for update"#,
        id.0,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else {
        return Err(finished_or_absent(conn, id, "it is over; nothing is left to cancel").await?);
    };
    if row.protected {
        let why = "its kind is protected: end it through the verb of what it works on, e.g. the move's abort";
        return Err(Error::Conflict { id, state: row.state, why });
    }
    refuse_stale(id, if_revision, row.revision)?;
    if row.state == JobState::Running {
        sqlx::query!(
            r#"
            update jobs
               set cancel_requested_at = coalesce(cancel_requested_at, (select lh_now())),
                   cancel_reason = coalesce(cancel_reason, $2),
                   -- Asked again, nothing changes.
                   revision = revision + (cancel_requested_at is null)::int
             where id = $1
            "#,
            id.0,
            reason,
        )
        .execute(conn)
        .await?;
        return Ok(Cancelled::Requested);
    }
    finishing!(
        r#"
        with gone as (
            delete from jobs j where j.id = $1 returning j.*
        )
        "#,
        state = "'cancelled'",
        interruptions = "interruptions",
        settled_fence = "null::bigint",
        last_error = "jsonb_build_object('code', 'cancelled', 'message', $2::text)",
        result = "null::jsonb",
        "",
        id.0,
        reason,
    )
    .execute(conn)
    .await?;
    Ok(Cancelled::AtOnce)
}

/// Brings a job back to `available` now: one that waits for its next attempt or its time, or one that was discarded or
/// cancelled. A brought-back job may fail at least once more; its history stays. One transaction, as [`cancel`].
///
/// # Errors
/// [`Error::NotFound`], [`Error::Conflict`] for a job that runs, is due already, completed, or whose unique key another
/// live job carries; [`Error::Stale`], or the database's.
pub async fn retry(conn: &mut PgConnection, id: JobId, if_revision: Option<i64>) -> Result<(), Error> {
    let mut tx = conn.begin().await?;
    let done = retry_inside(&mut tx, id, if_revision).await;
    db::finish(tx, done).await
}

async fn retry_inside(conn: &mut PgConnection, id: JobId, if_revision: Option<i64>) -> Result<(), Error> {
    if retry_live(&mut *conn, id, if_revision).await? || retry_finished(&mut *conn, id, if_revision).await? {
        return Ok(());
    }
    // The finished row that it waited for may have been brought back by another retry: it is live again then.
    if retry_live(conn, id, if_revision).await? { Ok(()) } else { Err(Error::NotFound(id)) }
}

/// Answers whether there is such a live job.
async fn retry_live(conn: &mut PgConnection, id: JobId, if_revision: Option<i64>) -> Result<bool, Error> {
    let live = sqlx::query!(r#"select state as "state: JobState", revision from jobs where id = $1 for update"#, id.0,)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(row) = live {
        refuse_stale(id, if_revision, row.revision)?;
        let conflict = |why| Err(Error::Conflict { id, state: row.state, why });
        match row.state {
            JobState::Scheduled | JobState::Retryable => {}
            JobState::Running => return conflict("it runs: cancel it first, or wait"),
            JobState::Available => return conflict("it is due already and waits for a worker"),
            JobState::Completed | JobState::Cancelled | JobState::Discarded => {
                return conflict("a live row in a final state breaks an invariant: run `leasehold doctor`");
            }
        }
        sqlx::query!(
            r#"
            update jobs
               set state = 'available', run_at = (select lh_now()), revision = revision + 1,
                   max_attempts = greatest(max_attempts, attempt + 1)
             where id = $1
            "#,
            id.0,
        )
        .execute(conn)
        .await?;
        return Ok(true);
    }
    Ok(false)
}

/// Answers whether there is such a finished job.
async fn retry_finished(conn: &mut PgConnection, id: JobId, if_revision: Option<i64>) -> Result<bool, Error> {
    let done = sqlx::query!(
        r#"
        select state as "state: JobState", revision, kind, unique_key
          from jobs_finished
         where id = $1
           for update
        "#,
        id.0,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = done else { return Ok(false) };
    refuse_stale(id, if_revision, row.revision)?;
    if row.state == JobState::Completed {
        let why = "it is done: run-again does it once more, as a new job";
        return Err(Error::Conflict { id, state: row.state, why });
    }
    let back = sqlx::query!(
        r#"
        with back as (
            insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, attempt, max_attempts,
                              interruptions, max_interruptions, deadline_ms, protected, revision, fence, settled_fence,
                              steps, log_lines, tags, unique_key, concurrency_key, parent_id, traceparent, last_error)
            select id, kind, queue, 'available', priority, (select lh_now()), created_at, args, attempt,
                   greatest(max_attempts, attempt + 1), 0, max_interruptions, deadline_ms, protected, revision + 1,
                   fence, settled_fence,
                   (select coalesce(max(s.seq), 0) from job_steps s where s.job_id = f.id),
                   (select coalesce(max(l.seq), 0) from job_logs l where l.job_id = f.id),
                   tags, unique_key, concurrency_key, parent_id, traceparent, last_error
              from jobs_finished f
             where f.id = $1
                on conflict (kind, unique_key) where unique_key is not null do nothing
            returning id
        ), tried as (
            -- The finished row told of the last attempt; from now on an attempt's row does. One that a rescue ended
            -- has its row already.
            insert into job_attempts (job_id, attempt, outcome, first_fence, last_fence, worker_id, started_at,
                                      ended_at, error)
            select f.id, f.attempt, 'failed', f.fence, f.fence, f.worker_id, f.leased_at, f.finished_at, f.last_error
              from jobs_finished f
              join back b on b.id = f.id
             where f.settled_fence = f.fence
        )
        delete from jobs_finished f
         using back b
         where f.id = b.id
        "#,
        id.0,
    )
    .execute(&mut *conn)
    .await?;
    if back.rows_affected() == 0 {
        let why = "another live job of its kind carries its unique key: cancel that one first";
        return Err(Error::Conflict { id, state: row.state, why });
    }
    Ok(true)
}

pub(super) fn refuse_stale(id: JobId, expected: Option<i64>, found: i64) -> Result<(), Error> {
    match expected {
        Some(expected) if expected != found => Err(Error::Stale { id, expected, found }),
        Some(_) | None => Ok(()),
    }
}

async fn finished_or_absent(conn: &mut PgConnection, id: JobId, why: &'static str) -> Result<Error, sqlx::Error> {
    let state = sqlx::query_scalar!(r#"select state as "state: JobState" from jobs_finished where id = $1"#, id.0)
        .fetch_optional(conn)
        .await?;
    Ok(match state {
        Some(state) => Error::Conflict { id, state, why },
        None => Error::NotFound(id),
    })
}
