//! What stands around the jobs: kinds, queues, workers, refused writes, throughput.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Limits, Pause};

/// A kind of job that this system knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Kind {
    /// Its name.
    pub kind: String,
    /// One sentence.
    pub summary: String,
    /// Where its jobs go unless told otherwise.
    pub queue: String,
    /// Life of one lease.
    pub lease_seconds: f64,
    /// Run time of one lease; null for no limit.
    pub deadline_seconds: Option<f64>,
    /// Failures that end a job.
    pub max_attempts: i32,
    /// Never discarded and not cancelled by the queue's verbs.
    pub protected: bool,
    /// Whether callers may enqueue it.
    pub public: bool,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// A queue. Counts are exact below 10,000, which stands for "10,000 or more".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Due jobs.
    pub available: i64,
    /// Jobs that wait for their time or their next attempt.
    pub waiting: i64,
    /// Whether more may wait than `waiting` says: where more than 10,000 jobs of all queues wait, only those that are
    /// due first are looked at.
    pub waiting_at_least: bool,
    /// Leased jobs.
    pub running: i64,
    /// Since when the oldest due job waits.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Whether a live worker names the queue.
    pub served: bool,
    /// Who paused it, since when and why; null where it is not paused.
    #[serde(default)]
    pub paused: Option<Pause>,
    /// What limits it.
    #[serde(default)]
    pub limits: Limits,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its id, new at every start.
    pub id: Uuid,
    /// Its machine's name.
    pub host: String,
    /// Its process number there.
    pub pid: i32,
    /// Its program's version.
    pub version: String,
    /// The node whose work it does, if any.
    pub node: Option<String>,
    /// `live`, `draining`, `silent` or `stopped`.
    pub state: String,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// The kinds that it can run.
    pub kinds: Vec<String>,
    /// Jobs that it runs at once.
    pub concurrency: i32,
    /// Leases that it holds.
    pub running: i64,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// When it was last heard.
    pub seen_at: DateTime<Utc>,
    /// Its wall clock less the database's.
    pub clock_skew_ms: Option<i64>,
}

/// A write that the fence refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FencedWrite {
    /// Rises with time.
    pub id: i64,
    /// The job.
    pub job_id: Uuid,
    /// Its kind.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Who was late.
    pub worker_id: Option<Uuid>,
    /// What was tried.
    pub operation: String,
    /// The lease that the late one held.
    pub fence_held: i64,
    /// The newest lease at that time.
    pub fence_current: Option<i64>,
    /// The job's state at that time.
    pub state_current: Option<String>,
    /// Time since the held lease ended.
    pub late_ms: Option<i64>,
    /// When it was refused.
    pub at: DateTime<Utc>,
}

/// One minute of one queue, kind and outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThroughputPoint {
    /// The minute's beginning.
    pub minute: DateTime<Utc>,
    /// The queue.
    pub queue: String,
    /// The kind.
    pub kind: String,
    /// `enqueued`, `completed`, `failed`, `snoozed`, `discarded`, `cancelled`, `released` or `rescued`.
    pub outcome: String,
    /// How many.
    pub total: i64,
}
