//! Jobs: as they are asked for and as they are answered.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// Most jobs of one batch.
pub const MAX_BATCH_JOBS: usize = 10_000;

/// A job to enqueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// Its kind; `GET /v1/kinds` lists them.
    #[schema(example = "system.noop")]
    pub kind: String,
    /// Its arguments, of the shape that its kind's schema gives; at most 256 KiB of JSON.
    #[serde(default = "empty_object", skip_serializing_if = "is_empty_object")]
    #[schema(value_type = Object)]
    pub args: Value,
    /// Its queue; the kind's own where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// −100…100, lower first; 0 where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i64>,
    /// Earliest start; now where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<DateTime<Utc>>,
    /// Failures that end it, 1…1000; the kind's own where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_attempts: Option<i64>,
    /// Run time of one lease; the kind's own where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub deadline_ms: Option<i64>,
    /// Free labels, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// At most one live job of the kind carries this key; where one does, it is the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Jobs of one key share the limits that their queue sets for each key, and take turns with those of other keys: a
    /// tenant, for example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// Enqueue although the API does not know the kind: for kinds that only newer workers know.
    ///
    /// Needs the permission `jobs.operate` too. A kind whose name begins with `artifact.`, `instance.`, `node.` or
    /// `platform.` is never taken so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unknown_kind: bool,
}

impl NewJob {
    /// A job of this kind with these arguments and every default.
    #[must_use]
    pub fn new(kind: impl Into<String>, args: Value) -> Self {
        Self {
            kind: kind.into(),
            args,
            queue: None,
            priority: None,
            run_at: None,
            max_attempts: None,
            deadline_ms: None,
            tags: Vec::new(),
            unique_key: None,
            concurrency_key: None,
            allow_unknown_kind: false,
        }
    }
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Many jobs to enqueue: all of them, or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// 1…10,000 jobs.
    #[schema(min_items = 1, max_items = 10_000)]
    pub jobs: Vec<NewJob>,
}

/// What became of a batch, in the order of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Batched {
    /// One for each job.
    pub items: Vec<BatchItem>,
}

/// What became of one job of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchItem {
    /// The job, new or old.
    pub id: Uuid,
    /// False where a live job carried the unique key already.
    pub created: bool,
}

/// Where a job stands; the last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for its `run_at`.
    Scheduled,
    /// Due.
    Available,
    /// Leased.
    Running,
    /// Failed; waits for its next attempt.
    Retryable,
    /// Done.
    Completed,
    /// Ended on request.
    Cancelled,
    /// Ended without success.
    Discarded,
}

impl JobState {
    /// Every state, in the order of a job's life.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Available,
        Self::Running,
        Self::Retryable,
        Self::Completed,
        Self::Cancelled,
        Self::Discarded,
    ];

    /// As it stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Available => "available",
            Self::Running => "running",
            Self::Retryable => "retryable",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
        }
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    pub id: Uuid,
    /// Its kind.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: JobState,
    /// Its arguments.
    #[schema(value_type = Object)]
    pub args: Value,
    /// −100…100, lower first.
    pub priority: i16,
    /// Free labels.
    pub tags: Vec<String>,
    /// When it is or was due.
    pub run_at: DateTime<Utc>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// Attempts begun.
    pub attempt: i32,
    /// Failures that end it.
    pub max_attempts: i32,
    /// Leases that ended without an outcome: a budget of their own.
    pub interruptions: i32,
    /// Counts every change; also the `ETag`.
    pub revision: i64,
    /// The lease it is under, while it runs.
    pub lease: Option<Lease>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// At most one live job of the kind carries it.
    pub unique_key: Option<String>,
    /// The key whose concurrency is limited.
    pub concurrency_key: Option<String>,
    /// Why it failed last.
    #[schema(value_type = Option<Object>)]
    pub last_error: Option<Value>,
    /// When its story ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What it returned.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// Whether somebody asked it to end.
    pub cancel_requested: bool,
    /// Whether no live worker serves its kind on its queue.
    pub unserved: bool,
}

/// The lease that a running job is under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Its number: rises with every lease of any job.
    pub fence: i64,
    /// Its holder.
    pub worker_id: Uuid,
    /// When it ends unless renewed.
    pub expires_at: DateTime<Utc>,
}

/// How far a handler is, in its own words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Progress {
    /// Units done.
    pub done: i64,
    /// Units in all, where known.
    pub total: Option<i64>,
    /// What is counted.
    pub unit: String,
    /// One line for people.
    pub message: String,
    /// Expected time to the end, where known.
    pub eta_ms: Option<i64>,
    /// Figures of the kind's own.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Object>)]
    pub detail: Value,
}

/// An ended attempt that did not end the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: i32,
    /// `failed`, `snoozed`, `interrupted` or `released`.
    pub outcome: String,
    /// Number of its first lease.
    pub first_fence: i64,
    /// Number of its last lease.
    pub last_fence: i64,
    /// Who held it last.
    pub worker_id: Option<Uuid>,
    /// When its first lease began.
    pub started_at: DateTime<Utc>,
    /// When its last lease ended.
    pub ended_at: DateTime<Utc>,
    /// Leases folded into it.
    pub passes: i32,
    /// What went wrong.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
}

/// A step that a handler recorded under its fence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// 1 for the first.
    pub seq: i32,
    /// The lease that wrote it.
    pub fence: i64,
    /// The handler's name for it.
    pub name: String,
    /// Where the next attempt goes on.
    #[schema(value_type = Object)]
    pub cursor: Value,
    /// What was seen.
    #[schema(value_type = Object)]
    pub evidence: Value,
    /// When.
    pub at: DateTime<Utc>,
}

/// A line of a job's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// 1 for the first.
    pub seq: i32,
    /// The lease that wrote it.
    pub fence: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub line: String,
}

/// Why an operator acts; kept in the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// In the operator's words, at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub reason: Option<String>,
}
