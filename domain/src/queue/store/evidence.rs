//! Refused writes, kept as evidence (Q-006).

use sqlx::PgConnection;

use crate::ids::{JobId, WorkerId};
use crate::lease::{Fence, Lease};
use crate::queue::{Operation, RefusedWrite};

/// Rows kept for one lost lease; what comes after is only counted.
const MAX_ROWS: i64 = 100;

/// Records that a write under `lease` was refused; returns how many of this lease were refused so far.
///
/// Runs on a connection of its own: the refused transaction is rolled back and would take the evidence with it.
///
/// # Errors
/// Only the database's.
pub async fn note_refused(
    conn: &mut PgConnection,
    lease: Lease,
    worker: Option<WorkerId>,
    operation: Operation,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        with counted as (
            insert into fenced_write_totals (job_id, fence_held, total)
            values ($1, $2, 1)
                on conflict (job_id, fence_held) do update set total = fenced_write_totals.total + 1
            returning total
        ), now as (
            select j.kind, j.queue, j.fence, j.state from jobs j where j.id = $1
             union all
            select f.kind, f.queue, f.fence, f.state from jobs_finished f where f.id = $1
             limit 1
        ), noted as (
            insert into fenced_writes (job_id, kind, queue, worker_id, operation, fence_held, fence_current,
                                       state_current, late_ms, at)
            select $1, coalesce(n.kind, ''), coalesce(n.queue, ''), $3, $4, $2, n.fence, n.state,
                   -- The lease ended when it expired; the row of the interrupted attempt says when.
                   (select (extract(epoch from (select lh_now()) - t.ended_at) * 1000)::bigint
                      from job_attempts t
                     where t.job_id = $1 and t.last_fence = $2),
                   (select lh_now())
              from counted c
              left join now n on true
             where c.total <= $5
        )
        select total as "total!" from counted
        "#,
        lease.job.0,
        lease.fence.0,
        worker.map(|w| w.0),
        operation.as_str(),
        MAX_ROWS,
    )
    .fetch_one(conn)
    .await
}

/// Refused writes with ids below `$1`, newest first, at most `$2`.
macro_rules! refused {
    ($narrowed:literal, $order:literal, $($parameter:expr),+) => {
        sqlx::query_as!(
            RefusedWrite,
            r#"
            select id, job_id as "job: JobId", kind, queue, worker_id as "worker: WorkerId", operation,
                   fence_held as "fence_held: Fence", fence_current as "fence_current: Fence", state_current, late_ms,
                   at
              from fenced_writes
             where id < $1 "# + $narrowed + r#"
             order by "# + $order + r#"
             limit $2
            "#,
            $($parameter),+
        )
    };
}

/// The newest refused writes, at most `limit`, with ids below `before`, of one job or of all.
///
/// # Errors
/// Only the database's.
pub async fn recent_refused(
    conn: &mut PgConnection,
    job: Option<JobId>,
    before: Option<i64>,
    limit: u16,
) -> Result<Vec<RefusedWrite>, sqlx::Error> {
    // One plan cannot follow the index of one job and that of all.
    let before = before.unwrap_or(i64::MAX);
    let Some(job) = job else {
        return refused!("", "id desc", before, i64::from(limit)).fetch_all(conn).await;
    };
    // Said as a range, which only the index of jobs has in this order.
    refused!("and (job_id, id) < ($3, $1) and job_id >= $3", "job_id desc, id desc", before, i64::from(limit), job.0)
        .fetch_all(conn)
        .await
}
