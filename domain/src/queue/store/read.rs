//! Reading jobs. Every list is bounded and ordered; nothing here counts the backlog.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::ids::{JobId, Kind, QueueName, WorkerId};
use crate::lease::Fence;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{Filter, Job, JobState, LeaseView, Page};

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

/// Jobs, live and finished, newest first, with one list of columns for all readers: what follows `from jobs`, what
/// follows `from jobs_finished`, and the parameters, of which the first is [`SILENT_AFTER`] in seconds.
macro_rules! jobs {
    ($live:literal, $finished:literal, $($parameter:expr),+ $(,)?) => {
        sqlx::query_as!(
            Row,
            r#"
            select j.id as "id!: JobId", j.kind as "kind!: Kind", j.queue as "queue!: QueueName",
                   j.state as "state!: JobState", j.priority as "priority!", j.run_at as "run_at!",
                   j.created_at as "created_at!", j.finished_at, j.args as "args!", j.attempt as "attempt!",
                   j.max_attempts as "max_attempts!", j.interruptions as "interruptions!", j.revision as "revision!",
                   j.fence as "fence!: Fence", j.worker_id as "worker: WorkerId", j.leased_at, j.lease_expires_at,
                   j.cancel_requested as "cancel_requested!", j.progress, j.tags as "tags!", j.unique_key,
                   j.concurrency_key, j.last_error, j.result,
                   (j.state in ('available', 'scheduled', 'retryable') and not exists (
                       select from workers w
                        where w.stopped_at is null
                          and w.seen_at > (select lh_now()) - $1::float8 * interval '1 second'
                          and j.queue = any (w.queues)
                          and j.kind = any (w.kinds))) as "unserved!"
              from (
                   (select id, kind, queue, state, priority, run_at, created_at, null::timestamptz as finished_at, args,
                           attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at,
                           lease_expires_at, cancel_requested_at is not null as cancel_requested, progress, tags,
                           unique_key, concurrency_key, last_error, null::jsonb as result
                      from jobs "# + $live + r#")
                    union all
                   (select id, kind, queue, state, priority, run_at, created_at, finished_at, args,
                           attempt, max_attempts, interruptions, revision, fence, worker_id, leased_at,
                           null, false, progress, tags,
                           unique_key, concurrency_key, last_error, result
                      from jobs_finished "# + $finished + r#")
                   ) j
             order by j.id desc
            "#,
            $($parameter),+
        )
    };
}

/// Most jobs, of the live and of the finished ones each, that one look for a filter reads.
const LOOK: i64 = 20_000;
/// Most looks that one page takes.
const LOOKS: usize = 10;

/// One job, live or finished.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, id: JobId) -> Result<Option<Job>, sqlx::Error> {
    let rows = jobs!("where id = $2", "where id = $2", SILENT_AFTER.as_secs_f64(), id.0).fetch_all(conn).await?;
    Ok(rows.into_iter().next().map(Job::from))
}

/// Jobs that match, newest first, 1 to 200 of them.
///
/// Bounded whatever the filter: a page reads at most some 200,000 live and as many finished jobs. It may hold fewer than
/// `limit`, or none, and still say where the next one begins.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Page<Job>, sqlx::Error> {
    let limit = limit.clamp(1, 200);
    let mut items: Vec<Job> = Vec::new();
    let mut before = filter.before.map_or(Uuid::max(), |id| id.0);
    for _ in 0..LOOKS {
        // Every job behind this one is left to the next look, so one that ends in between is missed by none.
        let horizon = horizon(conn, filter, before).await?;
        let wanted = i64::from(limit) + 1 - i64::try_from(items.len()).unwrap_or_default();
        items.extend(look(conn, filter, before, horizon, wanted).await?.into_iter().map(Job::from));
        if items.len() > usize::from(limit) {
            items.truncate(usize::from(limit));
            let next = items.last().map(|job| job.id);
            return Ok(Page { items, next });
        }
        let Some(horizon) = horizon else { return Ok(Page { items, next: None }) };
        before = horizon;
    }
    Ok(Page { items, next: Some(JobId(before)) })
}

/// How a state is looked for: by the index that holds little else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Among all of the table.
    All,
    /// Among those that hold a lease.
    Leased,
    /// Among those that were cancelled or discarded.
    Ended,
}

const fn way(state: Option<JobState>) -> Way {
    match state {
        Some(JobState::Running) => Way::Leased,
        Some(JobState::Cancelled | JobState::Discarded) => Way::Ended,
        None | Some(JobState::Scheduled | JobState::Available | JobState::Retryable | JobState::Completed) => Way::All,
    }
}

/// The id behind which one look at jobs below `before` does not go; `None` where it needs no such bound: nothing is
/// left out, or all that there is lies before it.
async fn horizon(conn: &mut PgConnection, filter: &Filter, before: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    let narrowed = filter.kind.is_some() || filter.queue.is_some() || filter.tag.is_some();
    match way(filter.state) {
        // As few as workers hold at once.
        Way::Leased => Ok(None),
        Way::All if !narrowed && filter.state.is_none() => Ok(None),
        Way::Ended => {
            sqlx::query_scalar!(
                r#"
                select id
                  from jobs_finished
                 where state in ('cancelled', 'discarded')
                   and id < $1
                 order by id desc
                offset $2
                 limit 1
                "#,
                before,
                LOOK - 1,
            )
            .fetch_optional(conn)
            .await
        }
        Way::All => {
            sqlx::query_scalar!(
                r#"
                select greatest((select id from jobs where $3 and id < $1 order by id desc offset $2 limit 1),
                                (select id from jobs_finished where $4 and id < $1 order by id desc offset $2 limit 1))
                "#,
                before,
                LOOK - 1,
                filter.state.is_none_or(|state| !state.is_final()),
                filter.state.is_none_or(JobState::is_final),
            )
            .fetch_one(conn)
            .await
        }
    }
}

/// Plans are made once for every call, so an optional bound would be no condition of an index: each bound has a value
/// that bounds nothing.
async fn look(
    conn: &mut PgConnection,
    filter: &Filter,
    before: Uuid,
    horizon: Option<Uuid>,
    wanted: i64,
) -> Result<Vec<Row>, sqlx::Error> {
    let horizon = horizon.unwrap_or_else(Uuid::nil);
    let states = JobState::ALL.into_iter().filter(|state| filter.state.is_none_or(|wanted| wanted == *state));
    let states: Vec<String> = states.map(|state| state.as_str().to_owned()).collect();
    let (kind, queue) = (filter.kind.as_ref().map(Kind::as_str), filter.queue.as_ref().map(QueueName::as_str));
    let (silent, tag) = (SILENT_AFTER.as_secs_f64(), filter.tag.as_deref());
    match way(filter.state) {
        Way::Leased => {
            jobs!(
                r#"where id = any (array(select r.id from running_jobs r where r.id < $2 and r.id >= $3))
                     and state = any ($4)
                     and ($5::text is null or kind = $5) and ($6::text is null or queue = $6)
                     and ($7::text is null or $7 = any (tags))
                   order by id desc limit $8"#,
                "where false",
                silent,
                before,
                horizon,
                &states,
                kind,
                queue,
                tag,
                wanted
            )
            .fetch_all(conn)
            .await
        }
        Way::Ended => {
            jobs!(
                "where false",
                r#"where state in ('cancelled', 'discarded') and id < $2 and id >= $3 and state = any ($4)
                     and ($5::text is null or kind = $5) and ($6::text is null or queue = $6)
                     and ($7::text is null or $7 = any (tags))
                   order by id desc limit $8"#,
                silent,
                before,
                horizon,
                &states,
                kind,
                queue,
                tag,
                wanted
            )
            .fetch_all(conn)
            .await
        }
        Way::All => {
            let mut rows = jobs!(
                r#"where $9 and id < $2 and id >= $3 and state = any ($4)
                     and ($5::text is null or kind = $5) and ($6::text is null or queue = $6)
                     and ($7::text is null or $7 = any (tags))
                   order by id desc limit $8"#,
                r#"where $10 and id < $2 and id >= $3 and state = any ($4)
                     and ($5::text is null or kind = $5) and ($6::text is null or queue = $6)
                     and ($7::text is null or $7 = any (tags))
                   order by id desc limit $8"#,
                silent,
                before,
                horizon,
                &states,
                kind,
                queue,
                tag,
                wanted,
                filter.state.is_none_or(|state| !state.is_final()),
                filter.state.is_none_or(JobState::is_final)
            )
            .fetch_all(conn)
            .await?;
            rows.truncate(usize::try_from(wanted).unwrap_or_default());
            Ok(rows)
        }
    }
}
