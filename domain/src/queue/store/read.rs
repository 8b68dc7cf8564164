//! Reading jobs. Every list is bounded and ordered; nothing here counts the backlog.

use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{JobId, Kind, QueueName, WorkerId};
use crate::lease::Fence;
use crate::queue::{Attempt, Filter, Job, JobState, LeaseView, LogLine, Page, Step};

struct Row {
    id: JobId,
    kind: Kind,
    queue: QueueName,
    state: JobState,
    priority: i16,
    run_at: Timestamp,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    args: serde_json::Value,
    attempt: i32,
    max_attempts: i32,
    interruptions: i32,
    revision: i64,
    fence: Fence,
    worker: Option<WorkerId>,
    leased_at: Option<Timestamp>,
    lease_expires_at: Option<Timestamp>,
    cancel_requested: bool,
    progress: Option<serde_json::Value>,
    tags: Vec<String>,
    unique_key: Option<String>,
    concurrency_key: Option<String>,
    last_error: Option<serde_json::Value>,
    result: Option<serde_json::Value>,
    unserved: bool,
}

impl From<Row> for Job {
    fn from(r: Row) -> Self {
        let lease = match (r.state, r.worker, r.leased_at, r.lease_expires_at) {
            (JobState::Running, Some(worker), Some(leased_at), Some(expires_at)) => {
                Some(LeaseView { fence: r.fence, worker, leased_at, expires_at })
            }
            _ => None,
        };
        Self {
            id: r.id,
            kind: r.kind,
            queue: r.queue,
            state: r.state,
            priority: r.priority,
            run_at: r.run_at,
            created_at: r.created_at,
            finished_at: r.finished_at,
            args: r.args,
            attempt: r.attempt,
            max_attempts: r.max_attempts,
            interruptions: r.interruptions,
            revision: r.revision,
            lease,
            fence: r.fence,
            worker: r.worker,
            cancel_requested: r.cancel_requested,
            progress: r.progress,
            tags: r.tags,
            unique_key: r.unique_key,
            concurrency_key: r.concurrency_key,
            last_error: r.last_error,
            result: r.result,
            unserved: r.unserved,
        }
    }
}

/// One job, live or finished.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, id: JobId) -> Result<Option<Job>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select j.id as "id!: JobId", j.kind as "kind!: Kind", j.queue as "queue!: QueueName", j.state as "state!: JobState",
               j.priority as "priority!", j.run_at as "run_at!", j.created_at as "created_at!", j.finished_at,
               j.args as "args!", j.attempt as "attempt!", j.max_attempts as "max_attempts!",
               j.interruptions as "interruptions!", j.revision as "revision!", j.fence as "fence!: Fence",
               j.worker_id as "worker: WorkerId", j.leased_at, j.lease_expires_at,
               j.cancel_requested as "cancel_requested!", j.progress, j.tags as "tags!", j.unique_key,
               j.concurrency_key, j.last_error, j.result,
               (j.state in ('available', 'scheduled', 'retryable') and not exists (
                   select from workers w
                    where w.stopped_at is null
                      and w.seen_at > (select lh_now()) - interval '30 seconds'
                      and j.queue = any (w.queues)
                      and j.kind = any (w.kinds))) as "unserved!"
          from (
               select id, kind, queue, state, priority, run_at, created_at, null::timestamptz as finished_at, args,
                      attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at, lease_expires_at,
                      cancel_requested_at is not null as cancel_requested, progress, tags, unique_key, concurrency_key,
                      last_error, null::jsonb as result
                 from jobs where id = $1
                union all
               select id, kind, queue, state, priority, run_at, created_at, finished_at, args,
                      attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at, null,
                      false, progress, tags, unique_key, concurrency_key, last_error, result
                 from jobs_finished where id = $1
               ) j
         limit 1
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Job::from))
}

/// Jobs that match, newest first, 1 to 200 of them.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Page<Job>, sqlx::Error> {
    let limit = limit.clamp(1, 200);
    let state = filter.state;
    let want_live = state.is_none_or(|s| !s.is_final());
    let want_final = state.is_none_or(JobState::is_final);
    let rows = sqlx::query_as!(
        Row,
        r#"
        select j.id as "id!: JobId", j.kind as "kind!: Kind", j.queue as "queue!: QueueName", j.state as "state!: JobState",
               j.priority as "priority!", j.run_at as "run_at!", j.created_at as "created_at!", j.finished_at,
               j.args as "args!", j.attempt as "attempt!", j.max_attempts as "max_attempts!",
               j.interruptions as "interruptions!", j.revision as "revision!", j.fence as "fence!: Fence",
               j.worker_id as "worker: WorkerId", j.leased_at, j.lease_expires_at,
               j.cancel_requested as "cancel_requested!", j.progress, j.tags as "tags!", j.unique_key,
               j.concurrency_key, j.last_error, j.result,
               (j.state in ('available', 'scheduled', 'retryable') and not exists (
                   select from workers w
                    where w.stopped_at is null
                      and w.seen_at > (select lh_now()) - interval '30 seconds'
                      and j.queue = any (w.queues)
                      and j.kind = any (w.kinds))) as "unserved!"
          from (
               (select id, kind, queue, state, priority, run_at, created_at, null::timestamptz as finished_at, args,
                       attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at, lease_expires_at,
                       cancel_requested_at is not null as cancel_requested, progress, tags, unique_key, concurrency_key,
                       last_error, null::jsonb as result
                  from jobs
                 where $6
                   and ($1::text is null or state = $1)
                   and ($2::text is null or kind = $2)
                   and ($3::text is null or queue = $3)
                   and ($4::text is null or $4 = any (tags))
                   and ($5::uuid is null or id < $5)
                 order by id desc
                 limit $8)
                union all
               (select id, kind, queue, state, priority, run_at, created_at, finished_at, args,
                       attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at, null,
                       false, progress, tags, unique_key, concurrency_key, last_error, result
                  from jobs_finished
                 where $7
                   and ($1::text is null or state = $1)
                   and ($2::text is null or kind = $2)
                   and ($3::text is null or queue = $3)
                   and ($4::text is null or $4 = any (tags))
                   and ($5::uuid is null or id < $5)
                 order by id desc
                 limit $8)
               ) j
         order by j.id desc
         limit $8
        "#,
        state.map(JobState::as_str),
        filter.kind.as_ref().map(Kind::as_str),
        filter.queue.as_ref().map(QueueName::as_str),
        filter.tag.as_deref(),
        filter.before.map(|b| b.0),
        want_live,
        want_final,
        i64::from(limit) + 1,
    )
    .fetch_all(conn)
    .await?;
    let mut items: Vec<Job> = rows.into_iter().map(Job::from).collect();
    let more = items.len() > usize::from(limit);
    items.truncate(usize::from(limit));
    let next = if more { items.last().map(|j| j.id) } else { None };
    Ok(Page { items, next })
}

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
           and ($2::bigint is null or last_fence < $2)
         order by last_fence desc
         limit $3
        "#,
        id.0,
        before,
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
