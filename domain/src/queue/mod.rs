//! Durable jobs under fenced leases.
//!
//! # Consistency
//! A job is a row. A worker leases it for seconds, renews the lease while it works, and writes everything under the
//! lease's fence: id, fence and `state = 'running'` stand in the statement of every such write, so a worker whose
//! lease was taken over matches no row (I1). Enqueueing takes the caller's connection (I2).
//!
//! # Retries
//! Settling is idempotent for one fence: a second try learns [`Fate::Already`]. Statements that touch many rows either
//! pass by those that others hold, or lock them in the order of their ids; a lost deadlock is still possible and is worth a
//! retry.
//!
//! # Crash consistency
//! A holder that dies leaves a lease that expires; [`rescue_expired`] gives the job to the next, from any worker.

use std::time::Duration;

use serde_json::Value;

use crate::clock::Timestamp;
use crate::ids::{JobId, Kind, QueueName};
use crate::lease::Lease;

mod fenced;
pub mod hints;
mod limits;
mod low_water;
mod operation;
pub mod policy;
mod poll;
mod pruned;
mod retention;
pub mod state;
mod store;
mod view;
pub mod why;

pub use fenced::{fenced, require_lease};
pub use limits::{Limits, LimitsView, Pause, Paused, Rate};
pub use low_water::LowWater;
pub use operation::Operation;
pub use policy::{Backoff, KindSpec};
pub use poll::{Leased, Look, PollRequest, Polled, Renewed, Turns, WorkerSpec};
pub use pruned::{FinishedJobs, Prunable, PruneStep, Pruned};
pub use retention::{MIN_RETENTION, Retention};
pub use state::JobState;
pub use store::evidence::{note_refused, recent_refused};
pub use store::figures::{overview, queue, queues, queues_after, throughput, throughput_after};
pub use store::hints::tell;
pub use store::lease::{lease_next, poll};
pub use store::limits::{change_limits, count_running, forget_slots, limits, pause, pauses_after, resume, set_limits};
pub use store::maintenance::{add_throughput, cancel_ignored, ensure_partitions, stage_due};
pub use store::marks::change_marks;
pub use store::operate::{Cancelled, cancel, retry};
pub use store::operate_again::run_again;
pub use store::prune::{begin_pruning, prunable, prune_step};
pub use store::read::{get, list};
pub use store::read_parts::{
    attempts, attempts_before, logs, logs_after, newest_logs, newest_steps, steps, steps_after,
};
pub use store::renew::renew;
pub use store::rescue::{Rescued, rescue_expired};
pub use store::settle::{complete_swiftly, settle};
pub use store::settle_in::settle_in;
pub use store::steer::{give, hand_to, nudge, recall};
pub use store::strays::adopt_strays;
pub use store::submit::{enqueue, enqueue_many};
pub use store::under_lease::{append_log, append_step, check_lease, enqueue_child, set_progress};
pub use store::why::why;
pub use store::workers::{
    drain_worker, list_workers, register_worker, seen_worker, stop_worker, worker, workers_before,
};
pub use view::{
    Attempt, ChangeMarks, Filter, Job, LeaseView, LogLine, Overview, Page, Progress, QueueView, RefusedWrite, Step,
    ThroughputPoint, WorkerView,
};

/// Why the queue refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer fence exists, or the job is no longer running under this one.
    #[error(transparent)]
    LeaseLost(#[from] crate::lease::LeaseLost),
    /// This very lease was settled before: its transaction committed, and the answer was lost.
    #[error("job {} was settled before under fence {}", .0.job, .0.fence)]
    SettledBefore(Lease),
    /// The payload is larger than [`policy::MAX_PAYLOAD_BYTES`].
    #[error(
        "the arguments are {size_bytes} bytes, more than the {limit_bytes} that a job may carry: store the data elsewhere \
         and pass its address"
    )]
    PayloadTooLarge {
        /// Size of the JSON text.
        size_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A field is out of its bounds.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The rule in words.
        rule: String,
    },
    /// No such job, live or kept.
    #[error("job {0} does not exist")]
    NotFound(JobId),
    /// The job's state does not allow this.
    #[error("job {id} is {state}: {why}")]
    Conflict {
        /// The job.
        id: JobId,
        /// Its present state.
        state: JobState,
        /// What the state forbids and what to do instead.
        why: &'static str,
    },
    /// Another live job of the kind carries the job's unique key.
    #[error("job {holder} is live and carries the unique key of job {id}: wait for it, or cancel it first")]
    KeyTaken {
        /// The job that was to be.
        id: JobId,
        /// Who has the key.
        holder: JobId,
    },
    /// The job changed since the caller read it.
    #[error("job {id} is at revision {found}, not {expected}: read it again")]
    Stale {
        /// The job.
        id: JobId,
        /// The revision that the caller expected.
        expected: i64,
        /// The present revision.
        found: i64,
    },
    /// The limits of a queue changed since the caller read them.
    #[error("the limits of queue {queue} are at revision {found}, not {expected}: read them again")]
    StaleLimits {
        /// The queue.
        queue: QueueName,
        /// The revision that the caller expected.
        expected: i64,
        /// The present revision.
        found: i64,
    },
    /// The database's.
    #[error("use the queue's tables")]
    Store(#[from] sqlx::Error),
}

/// A job to enqueue.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Its id, made by the caller, so that a lost answer can be looked up.
    pub id: JobId,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its arguments, decoded by the handler.
    pub args: Value,
    /// −100…100, lower first.
    pub priority: i16,
    /// Earliest start; `None` is now.
    pub run_at: Option<Timestamp>,
    /// Failures that end it, 1…1000.
    pub max_attempts: i32,
    /// Leases lost without an outcome that end it, 1…1000.
    pub max_interruptions: i32,
    /// Run time of one lease; `None` is no limit.
    pub deadline: Option<Duration>,
    /// Never discarded, not cancelled by the queue's verbs.
    pub protected: bool,
    /// Free labels.
    pub tags: Vec<String>,
    /// At most one live job of the kind carries this key.
    pub unique_key: Option<String>,
    /// Jobs of one key share the limits that their queue sets for each key, and take turns with those of others (Q-034,
    ///
    pub concurrency_key: Option<String>,
    /// W3C trace context of the enqueuer.
    pub traceparent: Option<String>,
}

impl NewJob {
    /// A job of `spec` with its defaults.
    #[must_use]
    pub fn new(spec: &KindSpec, args: Value) -> Self {
        Self {
            id: JobId::generate(),
            kind: spec.kind.clone(),
            queue: spec.queue.clone(),
            args,
            priority: 0,
            run_at: None,
            max_attempts: spec.max_attempts,
            max_interruptions: spec.max_interruptions,
            deadline: spec.deadline,
            protected: spec.protected,
            tags: Vec::new(),
            unique_key: None,
            concurrency_key: None,
            traceparent: None,
        }
    }

    /// On another queue.
    #[must_use]
    pub fn on(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// Under a unique key.
    #[must_use]
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// Under a concurrency key.
    #[must_use]
    pub fn keyed(mut self, key: impl Into<String>) -> Self {
        self.concurrency_key = Some(key.into());
        self
    }

    /// Checks every bound; the same rules hold for one job and for many.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`], [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let size_bytes = self.args.to_string().len();
        if size_bytes > policy::MAX_PAYLOAD_BYTES {
            return Err(Error::PayloadTooLarge { size_bytes, limit_bytes: policy::MAX_PAYLOAD_BYTES });
        }
        let invalid = |field, rule: &str| Err(Error::Invalid { field, rule: rule.to_owned() });
        if !(-100..=100).contains(&self.priority) {
            return invalid("priority", "must be between -100 and 100");
        }
        if !(1..=1000).contains(&self.max_attempts) {
            return invalid("max_attempts", "must be between 1 and 1000");
        }
        if !(1..=1000).contains(&self.max_interruptions) {
            return invalid("max_interruptions", "must be between 1 and 1000");
        }
        if self.tags.len() > policy::MAX_TAGS {
            return invalid("tags", "at most 20");
        }
        if self.tags.iter().any(|t| t.is_empty() || t.chars().count() > policy::MAX_KEY_CHARS) {
            return invalid("tags", "each must have 1 to 255 characters");
        }
        let bad_key = |k: &String| k.is_empty() || k.chars().count() > policy::MAX_KEY_CHARS;
        if self.unique_key.as_ref().is_some_and(bad_key) {
            return invalid("unique_key", "must have 1 to 255 characters");
        }
        if self.concurrency_key.as_ref().is_some_and(bad_key) {
            return invalid("concurrency_key", "must have 1 to 255 characters");
        }
        if self.run_at.is_some_and(|moment| !crate::clock::is_plausible(moment)) {
            return invalid("run_at", "must be in the years 2000 to 9999");
        }
        if self.deadline.is_some_and(|d| d.is_zero() || d.as_millis() > 366 * 24 * 3_600_000) {
            return invalid("deadline", "must be between 1 ms and 366 days");
        }
        Ok(())
    }
}

/// What became of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// A new job, due at once by the database's clock.
    Created(JobId),
    /// A new job that is due later; or the child of an [`enqueue_child`] that is repeated and that no worker may take now.
    Scheduled(JobId),
    /// A live job of the same kind carries the unique key already.
    Existing(JobId),
}

impl Enqueued {
    /// The job, new or old.
    #[must_use]
    pub const fn job(self) -> JobId {
        match self {
            Self::Created(id) | Self::Scheduled(id) | Self::Existing(id) => id,
        }
    }

    /// Whether the call made the job, or repeats the one that did.
    #[must_use]
    pub const fn is_new(self) -> bool {
        match self {
            Self::Created(_) | Self::Scheduled(_) => true,
            Self::Existing(_) => false,
        }
    }

    /// Whether the call made a job that a worker may take now: idle ones should be told.
    #[must_use]
    pub const fn is_due(self) -> bool {
        match self {
            Self::Created(_) => true,
            Self::Scheduled(_) | Self::Existing(_) => false,
        }
    }

    const fn made(id: JobId, due: bool) -> Self {
        if due { Self::Created(id) } else { Self::Scheduled(id) }
    }
}

/// How a lease ended, in the words of its holder.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done.
    Completed {
        /// What the handler returned; kept with the finished job.
        result: Value,
    },
    /// Failed; the job is tried again after the wait unless its attempts are spent.
    Failed {
        /// What went wrong.
        error: Value,
        /// The wait before the next attempt.
        after: Duration,
    },
    /// Not now: no attempt is spent.
    Snoozed {
        /// The wait.
        after: Duration,
    },
    /// Never: the handler gave up.
    Discarded {
        /// Why.
        error: Value,
    },
    /// Ended by the handler or because it was asked to end.
    Cancelled {
        /// Why.
        reason: String,
    },
    /// Handed back before it began: no attempt is spent.
    Released,
}

/// One lease to settle.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// How it ended.
    pub outcome: Outcome,
}

/// What became of one settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Recorded; the job is now in this state.
    Settled(JobState),
    /// This very lease was settled before: the answer to the first try was lost.
    Already,
    /// Nothing was recorded: the lease is the job's, but another session holds its row. Ask again soon.
    Busy,
    /// Refused: the lease is no longer the job's.
    Lost,
}
