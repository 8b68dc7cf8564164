//! What readers of the queue see.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JobState, Limits, Pause};
use crate::clock::Timestamp;
use crate::ids::{JobId, Kind, QueueName, WorkerId};
use crate::lease::Fence;

/// How far a handler is, in its own words; written under the fence.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Units done.
    pub done: i64,
    /// Units in all, where known.
    pub total: Option<i64>,
    /// What is counted, e.g. "objects".
    pub unit: String,
    /// One line for people.
    pub message: String,
    /// Expected time to the end, where known.
    pub eta_ms: Option<i64>,
    /// Figures of the kind's own.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

/// The lease that a running job is under.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseView {
    /// Its number.
    pub fence: Fence,
    /// Its holder.
    pub worker: WorkerId,
    /// When it began.
    pub leased_at: Timestamp,
    /// When it ends unless renewed.
    pub expires_at: Timestamp,
}

/// A job, live or finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its state.
    pub state: JobState,
    /// −100…100, lower first.
    pub priority: i16,
    /// When it is or was due.
    pub run_at: Timestamp,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its story ended.
    pub finished_at: Option<Timestamp>,
    /// Its arguments.
    pub args: Value,
    /// Attempts begun.
    pub attempt: i32,
    /// Failures that end it.
    pub max_attempts: i32,
    /// Leases lost without an outcome.
    pub interruptions: i32,
    /// Counts every change of the row.
    pub revision: i64,
    /// The present lease, while running.
    pub lease: Option<LeaseView>,
    /// The newest lease's number; 0 before the first.
    pub fence: Fence,
    /// The newest lease's holder.
    pub worker: Option<WorkerId>,
    /// Whether somebody asked it to end.
    pub cancel_requested: bool,
    /// How far it is.
    pub progress: Option<Value>,
    /// Free labels.
    pub tags: Vec<String>,
    /// At most one live job of the kind carries it.
    pub unique_key: Option<String>,
    /// The key whose concurrency is limited.
    pub concurrency_key: Option<String>,
    /// Why it failed last.
    pub last_error: Option<Value>,
    /// What it returned.
    pub result: Option<Value>,
    /// Whether no live worker serves its kind on its queue.
    pub unserved: bool,
}

/// One ended attempt that did not end the job.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: i32,
    /// `failed`, `snoozed`, `interrupted` or `released`.
    pub outcome: String,
    /// Number of its first lease.
    pub first_fence: Fence,
    /// Number of its last lease.
    pub last_fence: Fence,
    /// Who held it last.
    pub worker: Option<WorkerId>,
    /// When its first lease began.
    pub started_at: Timestamp,
    /// When its last lease ended.
    pub ended_at: Timestamp,
    /// Leases folded into it.
    pub passes: i32,
    /// What went wrong.
    pub error: Option<Value>,
}

/// A step that a handler recorded under its fence.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// 1 for the first.
    pub seq: i32,
    /// The lease that wrote it.
    pub fence: Fence,
    /// The handler's name for it.
    pub name: String,
    /// Where the next attempt goes on.
    pub cursor: Value,
    /// What was seen.
    pub evidence: Value,
    /// When.
    pub at: Timestamp,
}

/// A line of a job's log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// 1 for the first.
    pub seq: i32,
    /// The lease that wrote it.
    pub fence: Fence,
    /// When.
    pub at: Timestamp,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub line: String,
}

/// Evidence of a write that the fence refused.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedWrite {
    /// Rises with time; also the cursor.
    pub id: i64,
    /// The job.
    pub job: JobId,
    /// Its kind.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Who was late.
    pub worker: Option<WorkerId>,
    /// What was tried.
    pub operation: String,
    /// The lease that the late one held.
    pub fence_held: Fence,
    /// The newest lease at that time.
    pub fence_current: Option<Fence>,
    /// The job's state at that time.
    pub state_current: Option<String>,
    /// Time since the held lease ended.
    pub late_ms: Option<i64>,
    /// When it was refused.
    pub at: Timestamp,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// Its machine's name.
    pub host: String,
    /// Its process number there.
    pub pid: i32,
    /// Its program's version.
    pub version: String,
    /// The node whose work it does, if any.
    pub node: Option<String>,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// The kinds that it can run.
    pub kinds: Vec<String>,
    /// Jobs that it runs at once.
    pub concurrency: i32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was last heard.
    pub seen_at: Timestamp,
    /// `live`, `draining`, `silent` or `stopped`.
    pub state: String,
    /// Its wall clock less the database's.
    pub clock_skew_ms: Option<i64>,
    /// Leases that it holds.
    pub running: i64,
}

/// A queue with what its readers ask first. Counts are exact up to [`QueueView::COUNT_LIMIT`].
#[derive(Debug, Clone, PartialEq)]
pub struct QueueView {
    /// Its name.
    pub name: String,
    /// Due jobs, at most `COUNT_LIMIT`, where the rest is not counted.
    pub available: i64,
    /// Jobs that wait for their time or their next attempt, among the first `COUNT_LIMIT` of all queues to become due.
    pub waiting: i64,
    /// Whether more may wait than `waiting` says: so many wait in all queues that not all were looked at.
    pub waiting_at_least: bool,
    /// Leased jobs.
    pub running: i64,
    /// Since when the oldest due job waits.
    pub oldest_due_at: Option<Timestamp>,
    /// Whether a live worker names the queue.
    pub served: bool,
    /// Who paused it, where somebody did.
    pub pause: Option<Pause>,
    /// What an operator limited it to.
    pub limits: Limits,
}

impl QueueView {
    /// The highest count that is told exactly; what is more is told as this number.
    pub const COUNT_LIMIT: i64 = 10_000;
}

/// The figures of the first page.
#[derive(Debug, Clone, PartialEq)]
pub struct Overview {
    /// The moment of the figures, on the database's clock.
    pub now: Timestamp,
    /// Since when the oldest due job of all queues waits.
    pub oldest_due_at: Option<Timestamp>,
    /// Leased jobs.
    pub running: i64,
    /// Leases past their expiry that nobody rescued yet.
    pub expired: i64,
    /// Writes that the fence refused in the last hour.
    pub refused_last_hour: i64,
    /// Live workers.
    pub workers_live: i64,
    /// Workers that went silent without saying goodbye, within the last day.
    pub workers_silent: i64,
    /// Since when a day of finished jobs is to leave as a whole and others hold its table at each try.
    pub day_late_since: Option<Timestamp>,
}

/// One minute of one queue, kind and outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct ThroughputPoint {
    /// The minute's beginning.
    pub minute: Timestamp,
    /// The queue.
    pub queue: String,
    /// The kind.
    pub kind: String,
    /// `enqueued`, `completed`, `failed`, `snoozed`, `discarded`, `cancelled`, `released` or `rescued`.
    pub outcome: String,
    /// How many.
    pub total: i64,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this state.
    pub state: Option<JobState>,
    /// Only this kind.
    pub kind: Option<Kind>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only jobs with this tag.
    pub tag: Option<String>,
    /// Only jobs with ids below this one: lists run from the newest to the oldest.
    pub before: Option<JobId>,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<JobId>,
}

/// Marks that differ when something changed; they mean nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeMarks {
    /// Of jobs, throughput and refused writes.
    pub jobs: String,
    /// Of workers.
    pub workers: String,
}
