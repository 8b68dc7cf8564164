//! Why a job does not run.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::JobState;

/// Why a job does not run, or what it does instead of waiting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The job.
    pub job_id: Uuid,
    /// Its state.
    pub state: JobState,
    /// The moment of the answer, on the database's clock.
    pub now: DateTime<Utc>,
    /// At least one; the one to act on first stands first.
    #[schema(min_items = 1)]
    pub reasons: Vec<WhyReason>,
}

/// One reason. Facts that do not belong to it are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhyReason {
    /// `running`, `lease_expired`, `cancel_requested`, `scheduled`, `snoozed`, `waits_for_retry`, `due_soon`,
    /// `paused_queue`, `paused_kind`, `unserved_queue`, `unserved_kind`, `queue_limit`, `key_limit`, `rate_limit`,
    /// `workers_full`, `workers_draining`, `workers_silent`, `behind_others`, `next`, `completed`, `cancelled` or
    /// `discarded`. More may come.
    pub code: String,
    /// A sentence for people, with what to do where something can be done.
    pub message: String,
    /// The worker that it is about.
    pub worker_id: Option<Uuid>,
    /// Since when.
    pub since: Option<DateTime<Utc>>,
    /// Until when.
    pub until: Option<DateTime<Utc>>,
    /// Who paused it, by name.
    #[serde(default)]
    pub by: Option<String>,
    /// What they said why.
    #[serde(default)]
    pub reason: Option<String>,
    /// The concurrency key that is limited.
    #[serde(default)]
    pub key: Option<String>,
    /// Places that the limit has.
    #[serde(default)]
    pub limit: Option<i64>,
    /// Who holds places under the limit, the longest first: five at most.
    #[serde(default)]
    pub holders: Vec<WhyHolder>,
    /// How many workers it is about.
    pub workers: Option<i64>,
    /// Leases that these workers hold, or that have a place under the limit.
    pub running: Option<i64>,
    /// Jobs that these workers run at once.
    pub concurrency: Option<i64>,
    /// How many jobs it is about, counted up to 1,000.
    pub jobs: Option<i64>,
    /// Whether there may be more jobs than `jobs` says.
    pub jobs_at_least: bool,
    /// The error that led here.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
}

/// A job that holds a place under a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyHolder {
    /// The job.
    pub job_id: Uuid,
    /// The worker that runs it.
    pub worker_id: Uuid,
}
