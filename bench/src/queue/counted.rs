//! A worker's store that counts what was recorded as completed: when the answer is here, as the limit counts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::clock::Timestamp;
use domain::ids::{JobId, WorkerId};
use domain::lease::Lease;
use domain::queue::hints::Hint;
use domain::queue::{
    Enqueued, Fate, NewJob, Operation, Outcome, PollRequest, Polled, Progress as JobProgress, PruneStep, Renewed,
    Settlement, Step, WorkerSpec,
};
use serde_json::Value;
use workers::seam::{Hints, LeaseStore, Registration, StoreError, Swept};

use super::progress::Progress;

/// The store of `inner`, counted.
#[derive(Debug)]
pub(super) struct Counted<S> {
    pub(super) inner: S,
    pub(super) progress: Arc<Progress>,
}

#[async_trait]
impl<S: LeaseStore> LeaseStore for Counted<S> {
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError> {
        let fates = self.inner.settle(settlements).await?;
        let completed = settlements.iter().zip(&fates).filter(|(settlement, fate)| {
            matches!(settlement.outcome, Outcome::Completed { .. }) && matches!(fate, Fate::Settled(_) | Fate::Already)
        });
        self.progress.add(completed.count());
        Ok(fates)
    }

    fn on_own_connections(&self) -> Arc<dyn LeaseStore> {
        // The thread that renews settles nothing.
        self.inner.on_own_connections()
    }

    async fn poll(&self, worker: &WorkerSpec, request: &PollRequest<'_>) -> Result<Polled, StoreError> {
        self.inner.poll(worker, request).await
    }

    async fn renew(&self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, StoreError> {
        self.inner.renew(leases).await
    }

    async fn progress(&self, lease: Lease, progress: &JobProgress) -> Result<(), StoreError> {
        self.inner.progress(lease, progress).await
    }

    async fn step(&self, lease: Lease, name: &str, cursor: &Value, evidence: &Value) -> Result<(), StoreError> {
        self.inner.step(lease, name, cursor, evidence).await
    }

    async fn steps(&self, job: JobId) -> Result<Vec<Step>, StoreError> {
        self.inner.steps(job).await
    }

    async fn log(&self, lease: Lease, level: &str, line: &str) -> Result<(), StoreError> {
        self.inner.log(lease, level, line).await
    }

    async fn enqueue_child(&self, lease: Lease, child: &NewJob) -> Result<Enqueued, StoreError> {
        self.inner.enqueue_child(lease, child).await
    }

    async fn refused_write(&self, lease: Lease, worker: WorkerId, operation: Operation) -> Result<i64, StoreError> {
        self.inner.refused_write(lease, worker, operation).await
    }

    async fn register(&self, worker: &Registration) -> Result<(), StoreError> {
        self.inner.register(worker).await
    }

    async fn seen(&self, worker: WorkerId, wall_clock: Timestamp) -> Result<(), StoreError> {
        self.inner.seen(worker, wall_clock).await
    }

    async fn draining(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.inner.draining(worker).await
    }

    async fn stopped(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.inner.stopped(worker).await
    }

    async fn sweep(&self, limit: u16) -> Result<Swept, StoreError> {
        self.inner.sweep(limit).await
    }

    async fn upkeep(&self) -> Result<(), StoreError> {
        self.inner.upkeep().await
    }

    async fn hints(&self) -> Result<Option<Hints>, StoreError> {
        self.inner.hints().await
    }

    async fn tell(&self, hint: &Hint) -> Result<(), StoreError> {
        self.inner.tell(hint).await
    }

    async fn prune(&self) -> Result<PruneStep, StoreError> {
        self.inner.prune().await
    }

    async fn add_throughput(&self, counts: &[(String, String, String, i64)]) -> Result<(), StoreError> {
        self.inner.add_throughput(counts).await
    }
}
