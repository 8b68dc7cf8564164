//! What a holder writes while it works. Every statement carries id, fence and `state = 'running'` (Q-004), and locks
//! the job's row, so that no takeover can slip between the check and the write.

use sqlx::{Connection as _, PgConnection};

use crate::db;
use crate::ids::JobId;
use crate::lease::{Lease, LeaseLost};
use crate::queue::{Enqueued, Error, NewJob, Progress, policy};

/// Most lines that a job's log keeps.
const MAX_LOG_LINES: i32 = 1000;
/// Most steps that a job keeps.
const MAX_STEPS: i32 = 10_000;

/// Whether the lease is the job's; the row stays locked until the caller's transaction ends.
///
/// # Errors
/// Only the database's.
pub async fn check_lease(conn: &mut PgConnection, lease: Lease) -> Result<bool, sqlx::Error> {
    let row = sqlx::query_scalar!(
        r#"
        select id as "id: JobId"
          from jobs
         where id = $1
           and fence = $2
           and state = 'running'
           for no key update
        "#,
        lease.job.0,
        lease.fence.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.is_some())
}

/// Replaces the job's progress.
///
/// # Errors
/// [`Error::LeaseLost`], [`Error::Invalid`] for more than [`policy::MAX_PROGRESS_BYTES`], or the database's.
pub async fn set_progress(conn: &mut PgConnection, lease: Lease, progress: &Progress) -> Result<(), Error> {
    let value = serde_json::json!(progress);
    let size = value.to_string().len();
    if size > policy::MAX_PROGRESS_BYTES {
        let rule =
            format!("{size} bytes, more than {}: keep details in steps or in the log", policy::MAX_PROGRESS_BYTES);
        return Err(Error::Invalid { field: "progress", rule });
    }
    let done = sqlx::query!(
        r#"
        update jobs
           set progress = $3
         where id = $1
           and fence = $2
           and state = 'running'
        "#,
        lease.job.0,
        lease.fence.0,
        value,
    )
    .execute(conn)
    .await?;
    told(done.rows_affected(), lease)
}

/// Appends a step, which a later attempt reads back (Q-012).
///
/// Safe to repeat when its answer was lost: the job's last step again, from the same lease with the same name and
/// cursor, is that step and adds no row.
///
/// # Errors
/// [`Error::LeaseLost`], [`Error::Invalid`] beyond 10,000 steps or for one of more than 64 KiB, or the database's.
pub async fn append_step(
    conn: &mut PgConnection,
    lease: Lease,
    name: &str,
    cursor: &serde_json::Value,
    evidence: &serde_json::Value,
) -> Result<(), Error> {
    let size = name.len() + cursor.to_string().len() + evidence.to_string().len();
    if size > policy::MAX_STEP_BYTES {
        let limit = policy::MAX_STEP_BYTES;
        let rule = format!("name, cursor and evidence are {size} bytes, more than {limit}: keep large data elsewhere");
        return Err(Error::Invalid { field: "step", rule });
    }
    let done = sqlx::query!(
        r#"
        with held as (
            update jobs j
               set steps = j.steps + 1
             where j.id = $1
               and j.fence = $2
               and j.state = 'running'
               and j.steps < $6
               and not exists (
                   select
                     from job_steps s
                    where s.job_id = j.id and s.seq = j.steps and s.fence = $2 and s.name = $3 and s.cursor = $4
                   )
            returning j.id, j.steps
        )
        insert into job_steps (job_id, seq, fence, name, cursor, evidence, at)
        select h.id, h.steps, $2, $3, $4, $5, (select lh_now())
          from held h
        "#,
        lease.job.0,
        lease.fence.0,
        name,
        cursor,
        evidence,
        MAX_STEPS,
    )
    .execute(&mut *conn)
    .await?;
    if done.rows_affected() == 0 && check_lease(&mut *conn, lease).await? {
        if is_last_step(conn, lease, name, cursor).await? {
            return Ok(());
        }
        return Err(Error::Invalid { field: "step", rule: format!("a job keeps at most {MAX_STEPS} steps") });
    }
    told(done.rows_affected(), lease)
}

async fn is_last_step(
    conn: &mut PgConnection,
    lease: Lease,
    name: &str,
    cursor: &serde_json::Value,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
               select
                 from jobs j
                 join job_steps s on s.job_id = j.id and s.seq = j.steps
                where j.id = $1 and s.fence = $2 and s.name = $3 and s.cursor = $4
               ) as "is_last!"
        "#,
        lease.job.0,
        lease.fence.0,
        name,
        cursor,
    )
    .fetch_one(conn)
    .await
}

/// Appends a line to the job's log; beyond 1,000 lines the oldest leave.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn append_log(conn: &mut PgConnection, lease: Lease, level: &str, line: &str) -> Result<(), Error> {
    // PostgreSQL's text has no NUL; a handler's line is not lost for one.
    let line = line.replace('\0', "\u{fffd}");
    let done = sqlx::query!(
        r#"
        with held as (
            update jobs
               set log_lines = log_lines + 1
             where id = $1
               and fence = $2
               and state = 'running'
            returning id, log_lines
        ), gone as (
            delete from job_logs l using held h where l.job_id = h.id and l.seq <= h.log_lines - $5
        )
        insert into job_logs (job_id, seq, fence, at, level, line)
        select h.id, h.log_lines, $2, (select lh_now()), $3, left($4, 4000)
          from held h
        "#,
        lease.job.0,
        lease.fence.0,
        level,
        line,
        MAX_LOG_LINES,
    )
    .execute(conn)
    .await?;
    told(done.rows_affected(), lease)
}

/// Enqueues a child in the same transaction as the check of the parent's lease.
///
/// The parent's row stays locked until the caller's transaction ends, or this one where the caller has none.
///
/// Safe to repeat with the same `child` when its answer was lost: a child that is there already is answered with, as the new
/// job that it was. It is [`Enqueued::Created`] while a worker may take it, and [`Enqueued::Scheduled`] where none may: it
/// waits for its time or another attempt, it runs, or it has ended.
///
/// # Errors
/// [`Error::LeaseLost`], what [`crate::queue::enqueue`] refuses, or the database's.
pub async fn enqueue_child(conn: &mut PgConnection, lease: Lease, child: &NewJob) -> Result<Enqueued, Error> {
    // Between the check and the insert the lease must not change hands, whatever the caller's connection is in.
    let mut tx = conn.begin().await?;
    let made = enqueue_inside(&mut tx, lease, child).await;
    db::finish(tx, made).await
}

async fn enqueue_inside(conn: &mut PgConnection, lease: Lease, child: &NewJob) -> Result<Enqueued, Error> {
    if !check_lease(&mut *conn, lease).await? {
        return Err(LeaseLost { lease }.into());
    }
    if let Some(due) = due_child(&mut *conn, lease.job, child.id).await? {
        return Ok(Enqueued::made(child.id, due));
    }
    let mut made = super::submit::enqueue_under(conn, std::slice::from_ref(child), Some(lease.job)).await?;
    Ok(made.swap_remove(0))
}

/// Whether a worker may take a child that is there already; `None` where there is no such child.
async fn due_child(conn: &mut PgConnection, parent: JobId, child: JobId) -> Result<Option<bool>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select state = 'available' as "due!" from jobs where id = $1 and parent_id = $2
         union all
        select false from jobs_finished where id = $1 and parent_id = $2
         limit 1
        "#,
        child.0,
        parent.0,
    )
    .fetch_optional(conn)
    .await
}

fn told(rows: u64, lease: Lease) -> Result<(), Error> {
    if rows == 1 { Ok(()) } else { Err(LeaseLost { lease }.into()) }
}
