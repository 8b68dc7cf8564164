//! The seam between the runner and the queue: everything that a runner needs of it, and nothing else.
//!
//! No type of the runtime and none of the database's driver crosses it, so that a worker can one day hold its leases
//! over HTTP, and so that a test can stand in for a database that hangs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::clock::Timestamp;
use domain::ids::{JobId, WorkerId};
use domain::lease::{Lease, LeaseLost};
use domain::queue::hints::Hint;
use domain::queue::{
    Enqueued, Fate, NewJob, Operation, Outcome, PollRequest, Polled, Progress, PruneStep, Renewed, Settlement, Step,
    WorkerSpec,
};
use futures::stream::BoxStream;

mod postgres;

pub use postgres::PgLeaseStore;

/// What is heard of due jobs, each with the turn that it deals out; ends when the connection is lost.
pub type Hints = BoxStream<'static, (u32, Hint)>;

/// Why the queue refused or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The fence refused the write: another worker owns the job, or nobody does.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// Nothing is known about the call's effect; the same call may be made again.
    #[error("reach the queue")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Others hold what the call waited for: nothing happened, and the same call may be made again at once. Told of
    /// [`LeaseStore::poll`] alone; other calls wait, or pass by.
    #[error("others hold what the queue needs for this")]
    Held(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The queue does not take this, now or later.
    #[error("the queue does not take this")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Who a worker is.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Its id, and what it serves.
    pub spec: WorkerSpec,
    /// Its machine's name: for people, never for a decision.
    pub host: String,
    /// Its process number there.
    pub pid: u32,
    /// Its program's version.
    pub version: &'static str,
    /// The node whose work it does, if any.
    pub node: Option<String>,
    /// Jobs that it runs at once.
    pub concurrency: u16,
}

/// What one sweep found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Jobs taken from holders that had gone silent, and made available again.
    pub rescued: u64,
    /// Jobs that ended in the rescue: interrupted too often, or asked to end.
    pub ended: u64,
    /// Jobs whose time had come.
    pub staged: u64,
    /// It stopped at a bound: more is to be done.
    pub more: bool,
}

/// The queue, as its workers need it.
///
/// # Consistency
/// Every method that takes a [`Lease`] writes under its fence: a stale one changes nothing and is answered with
/// [`StoreError::LeaseLost`], [`Renewed::Lost`] or [`Fate::Lost`].
///
/// # Retries
/// Lost races are tried again inside; an outage is not: its caller knows how long it may wait. Neither is a poll that
/// others hold up: by then its caller may ask for something else.
///
/// # Cancellation
/// Every call may be dropped. Its effect is unknown then, as after an outage.
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// The same queue over connections that belong to the calling thread's runtime, for the thread that renews.
    fn on_own_connections(&self) -> Arc<dyn LeaseStore>;

    /// Leases jobs, and does what else the request asks for, in one statement.
    ///
    /// # Errors
    /// [`StoreError::Held`] where it waited for a moment and others still hold a place that it needs: nothing happened.
    /// Else [`StoreError::Unavailable`], or [`StoreError::Refused`].
    async fn poll(&self, worker: &WorkerSpec, request: &PollRequest<'_>) -> Result<Polled, StoreError>;

    /// Lengthens leases, each by its own life; the answers stand in the order of `leases`.
    async fn renew(&self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, StoreError>;

    /// Records outcomes; the answers stand in their order.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError>;

    /// Hands back leases whose jobs have not begun.
    async fn release(&self, leases: &[Lease]) -> Result<Vec<Fate>, StoreError> {
        let settlements: Vec<Settlement> =
            leases.iter().map(|lease| Settlement { lease: *lease, outcome: Outcome::Released }).collect();
        self.settle(&settlements).await
    }

    /// Replaces a job's progress.
    async fn progress(&self, lease: Lease, progress: &Progress) -> Result<(), StoreError>;

    /// Appends a step.
    async fn step(
        &self,
        lease: Lease,
        name: &str,
        cursor: &serde_json::Value,
        evidence: &serde_json::Value,
    ) -> Result<(), StoreError>;

    /// Every step of a job, oldest first, those of earlier attempts included.
    async fn steps(&self, job: JobId) -> Result<Vec<Step>, StoreError>;

    /// Appends a line to a job's log.
    async fn log(&self, lease: Lease, level: &str, line: &str) -> Result<(), StoreError>;

    /// Enqueues a child of the leased job.
    async fn enqueue_child(&self, lease: Lease, child: &NewJob) -> Result<Enqueued, StoreError>;

    /// Keeps the evidence of a refused write; returns how many of this lease were refused so far.
    async fn refused_write(&self, lease: Lease, worker: WorkerId, operation: Operation) -> Result<i64, StoreError>;

    /// Registers a worker, or confirms it.
    async fn register(&self, worker: &Registration) -> Result<(), StoreError>;

    /// Notes that a worker lives, where its polls do not.
    async fn seen(&self, worker: WorkerId, wall_clock: Timestamp) -> Result<(), StoreError>;

    /// Notes that a worker takes no more work.
    async fn draining(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Notes that a worker ended in order.
    async fn stopped(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Rescues expired leases and makes due jobs available, at most `limit` of each.
    async fn sweep(&self, limit: u16) -> Result<Swept, StoreError>;

    /// What must be done now and then: partitions ahead, cancellations that were ignored, idempotency keys that aged.
    async fn upkeep(&self) -> Result<(), StoreError>;

    /// Listens for hints that jobs are due, from now on; `None` where there are none to be had, and polls must do.
    async fn hints(&self) -> Result<Option<Hints>, StoreError> {
        Ok(None)
    }

    /// Tells other workers that jobs are due. It may be lost.
    async fn tell(&self, _hint: &Hint) -> Result<(), StoreError> {
        Ok(())
    }

    /// Takes one small step of pruning what is over and past its time; nothing where this store keeps everything.
    async fn prune(&self) -> Result<PruneStep, StoreError>;

    /// Adds what this process did; `counts` are (queue, kind, outcome, how many).
    async fn add_throughput(&self, counts: &[(String, String, String, i64)]) -> Result<(), StoreError>;
}
