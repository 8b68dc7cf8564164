//! A store that stands before a real one and fails where a test wants it to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use domain::clock::Timestamp;
use domain::ids::{JobId, WorkerId};
use domain::lease::Lease;
use domain::queue::hints::Hint;
use domain::queue::{
    Enqueued, Fate, NewJob, Operation, PollRequest, Polled, Progress, PruneStep, Renewed, Settlement, Step, WorkerSpec,
};
use tests::db::Database;
use tokio::sync::watch;
use workers::seam::{Hints, LeaseStore, PgLeaseStore, Registration, StoreError, Swept};

/// What goes wrong, and what was seen.
#[derive(Debug, Default)]
pub struct Faults {
    /// Renewals are sent and never answered.
    pub renewals_hang: AtomicBool,
    /// So many renewals fail.
    pub renewals_fail: AtomicUsize,
    /// So many leasings fail before anything happens.
    pub leasings_fail: AtomicUsize,
    /// So many leasings are held up by others.
    pub leasings_held: AtomicUsize,
    /// So many polls commit, and their answers are lost.
    pub polls_lost: AtomicUsize,
    /// So many settlements commit, and their answers are lost.
    pub answers_lost: AtomicUsize,
    /// So many writes of handlers fail before anything happens.
    pub writes_fail: AtomicUsize,
    /// So many writes of handlers commit, and their answers are lost.
    pub writes_lost: AtomicUsize,
    /// Settlements of a single lease fail, so many of them, before anything happens.
    pub single_settlements_fail: AtomicUsize,
    /// The next sweep panics.
    pub sweep_dies: AtomicBool,
    /// The thread that renews dies at its start.
    pub keeper_dies: AtomicBool,
    /// Answers to leasings wait here while it is shut.
    pub leasing: Gate,
    /// Settlements wait here, before the database hears of them, while it is shut.
    pub settling: Gate,
    /// Leases given and not settled yet.
    held: AtomicUsize,
    /// The most of them at any time.
    pub most_held: AtomicUsize,
    /// Renewals, polls, sweeps and beats asked.
    pub renewals: AtomicUsize,
    pub polls: AtomicUsize,
    pub sweeps: AtomicUsize,
    pub beats: AtomicUsize,
    /// Polls answered, and times that somebody began to listen for hints.
    pub polled: AtomicUsize,
    pub listened: AtomicUsize,
}

/// A door that a test shuts and opens.
#[derive(Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
    /// How many came to the door.
    pub arrived: AtomicUsize,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(true), arrived: AtomicUsize::new(0) }
    }
}

impl Gate {
    pub fn shut(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        self.arrived.fetch_add(1, SeqCst);
        self.open.subscribe().wait_for(|open| *open).await.expect("the gate stands");
    }
}

impl Faults {
    fn take(count: &AtomicUsize) -> bool {
        count.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl Faults {
    /// A handler's write, on a day of faults.
    async fn writing<T>(&self, write: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if Self::take(&self.writes_fail) {
            return Err(away());
        }
        let written = write.await?;
        if Self::take(&self.writes_lost) { Err(away()) } else { Ok(written) }
    }
}

/// The database is not there.
fn away() -> StoreError {
    StoreError::Unavailable("a fault of the test's making".into())
}

#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn LeaseStore>,
    pub faults: Arc<Faults>,
}

impl Faulty {
    pub fn before(db: &Database) -> Arc<Self> {
        Arc::new(Self { inner: Arc::new(PgLeaseStore::new(db.pool())), faults: Arc::default() })
    }
}

#[async_trait]
impl LeaseStore for Faulty {
    fn on_own_connections(&self) -> Arc<dyn LeaseStore> {
        assert!(!self.faults.keeper_dies.load(SeqCst), "a fault of the test's making");
        Arc::new(Self { inner: self.inner.on_own_connections(), faults: Arc::clone(&self.faults) })
    }

    async fn poll(&self, worker: &WorkerSpec, request: &PollRequest<'_>) -> Result<Polled, StoreError> {
        if Faults::take(&self.faults.leasings_fail) {
            return Err(away());
        }
        if Faults::take(&self.faults.leasings_held) {
            return Err(StoreError::Held("a fault of the test's making".into()));
        }
        self.faults.polls.fetch_add(1, SeqCst);
        let polled = self.inner.poll(worker, request).await?;
        if !polled.leased.is_empty() && Faults::take(&self.faults.polls_lost) {
            return Err(away());
        }
        let leased = &polled.leased;
        if !leased.is_empty() {
            self.faults.leasing.pass().await;
        }
        let held = self.faults.held.fetch_add(leased.len(), SeqCst) + leased.len();
        self.faults.most_held.fetch_max(held, SeqCst);
        self.faults.polled.fetch_add(1, SeqCst);
        Ok(polled)
    }

    async fn renew(&self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, StoreError> {
        self.faults.renewals.fetch_add(1, SeqCst);
        if self.faults.renewals_hang.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        if Faults::take(&self.faults.renewals_fail) {
            return Err(away());
        }
        self.inner.renew(leases).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError> {
        self.faults.settling.pass().await;
        if settlements.len() == 1 && Faults::take(&self.faults.single_settlements_fail) {
            return Err(away());
        }
        let fates = self.inner.settle(settlements).await?;
        if Faults::take(&self.faults.answers_lost) {
            return Err(away());
        }
        self.faults.held.fetch_sub(settlements.len(), SeqCst);
        Ok(fates)
    }

    async fn progress(&self, lease: Lease, progress: &Progress) -> Result<(), StoreError> {
        self.inner.progress(lease, progress).await
    }

    async fn step(
        &self,
        lease: Lease,
        name: &str,
        cursor: &serde_json::Value,
        evidence: &serde_json::Value,
    ) -> Result<(), StoreError> {
        self.faults.writing(self.inner.step(lease, name, cursor, evidence)).await
    }

    async fn steps(&self, job: JobId) -> Result<Vec<Step>, StoreError> {
        self.faults.writing(self.inner.steps(job)).await
    }

    async fn log(&self, lease: Lease, level: &str, line: &str) -> Result<(), StoreError> {
        self.faults.writing(self.inner.log(lease, level, line)).await
    }

    async fn enqueue_child(&self, lease: Lease, child: &NewJob) -> Result<Enqueued, StoreError> {
        self.faults.writing(self.inner.enqueue_child(lease, child)).await
    }

    async fn refused_write(&self, lease: Lease, worker: WorkerId, operation: Operation) -> Result<i64, StoreError> {
        self.inner.refused_write(lease, worker, operation).await
    }

    async fn register(&self, worker: &Registration) -> Result<(), StoreError> {
        self.inner.register(worker).await
    }

    async fn seen(&self, worker: WorkerId, wall_clock: Timestamp) -> Result<(), StoreError> {
        self.faults.beats.fetch_add(1, SeqCst);
        self.inner.seen(worker, wall_clock).await
    }

    async fn draining(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.inner.draining(worker).await
    }

    async fn stopped(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.inner.stopped(worker).await
    }

    async fn sweep(&self, limit: u16) -> Result<Swept, StoreError> {
        assert!(!self.faults.sweep_dies.swap(false, SeqCst), "a fault of the test's making");
        self.faults.sweeps.fetch_add(1, SeqCst);
        self.inner.sweep(limit).await
    }

    async fn upkeep(&self) -> Result<(), StoreError> {
        self.inner.upkeep().await
    }

    async fn hints(&self) -> Result<Option<Hints>, StoreError> {
        let hints = self.inner.hints().await?;
        self.faults.listened.fetch_add(1, SeqCst);
        Ok(hints)
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
