//! Limits and pauses of queues, and pauses of kinds.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// So many within any span of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many, 1…1,000.
    #[schema(minimum = 1, maximum = 1000)]
    pub starts: i64,
    /// The span, 1 second to 1 day.
    #[schema(minimum = 1, maximum = 86_400)]
    pub span_seconds: i64,
}

/// What limits a queue, on all workers together; what is null does not limit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Jobs of the queue that run at once.
    pub running: Option<i64>,
    /// Jobs of each concurrency key that run at once.
    pub running_per_key: Option<i64>,
    /// Jobs of each concurrency key that start within any such span.
    pub starts_per_key: Option<Rate>,
}

/// The limits that a queue shall have, in place of all those that it has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Jobs of the queue that run at once, 1…10,000; no limit where it is absent or null.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10_000)]
    pub running: Option<i64>,
    /// Jobs of each concurrency key that run at once, 1…1,000; no limit where it is absent or null.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000)]
    pub running_per_key: Option<i64>,
    /// Jobs of each concurrency key that start within any such span; no limit where it is absent or null.
    #[serde(default)]
    pub starts_per_key: Option<Rate>,
    /// Why, at most 1,000 characters; needed.
    #[serde(default)]
    pub reason: Option<String>,
}

/// The limits of a queue, and who set them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueLimits {
    /// The queue.
    pub queue: String,
    /// Jobs of the queue that run at once; null for no limit.
    pub running: Option<i64>,
    /// Jobs of each concurrency key that run at once; null for no limit.
    pub running_per_key: Option<i64>,
    /// Jobs of each concurrency key that start within any such span; null for no limit.
    pub starts_per_key: Option<Rate>,
    /// Counts the changes; 0 where nobody set any.
    pub revision: i64,
    /// Who set them last; null for the program itself.
    pub set_by_id: Option<Uuid>,
    /// That identity's name.
    pub set_by: Option<String>,
    /// Why, in their words.
    pub reason: String,
    /// When; null where nobody set any.
    pub set_at: Option<DateTime<Utc>>,
}

/// A kind that shall be paused, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KindPause {
    /// Why, at most 1,000 characters; needed.
    #[serde(default)]
    pub reason: Option<String>,
    /// Pause it although the API does not know it: for kinds that only newer workers know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unknown_kind: bool,
}

/// A pause: jobs that run go on, no other begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    /// `queue` for a queue with all of its kinds, `kind` for a kind on all queues.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// Who paused it; null for the program itself.
    pub paused_by_id: Option<Uuid>,
    /// That identity's name.
    pub paused_by: Option<String>,
    /// Why, in their words.
    pub reason: String,
    /// Since when.
    pub paused_at: DateTime<Utc>,
    /// In the answer to a call that found it paused: this is that pause, with its own reason, and not the call's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already: bool,
}

/// What is not paused any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resumed {
    /// `queue` or `kind`.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// The pause that ended; null where there was none.
    pub ended: Option<Pause>,
}
