//! The queue in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::clock::Timestamp;
use domain::db::{self, Manner, Session};
use domain::ids::{JobId, WorkerId};
use domain::lease::Lease;
use domain::queue::hints::{CHANNEL, Hint};
use domain::queue::{
    self, Enqueued, Fate, NewJob, Operation, Outcome, PollRequest, Polled, Progress, PruneStep, Renewed, Retention,
    Settlement, Step, WorkerSpec,
};
use domain::{entropy, idempotency};
use futures::StreamExt as _;
use futures::stream;
use sqlx::PgPool;
use sqlx::postgres::PgListener;

use super::{Hints, LeaseStore, Registration, StoreError, Swept};

/// Connections for leasing, settling, sweeping and counting: one for each of these loops, one for the rare rest. No
/// handler reaches them, so none can keep the runner from settling.
const RUNNER_CONNECTIONS: u32 = 5;
/// Connections for what handlers write through their contexts, all handlers together.
const HANDLER_CONNECTIONS: u32 = 4;
/// Connections of the thread that renews: one for renewals, one for evidence, so that neither waits for the other.
const OWN_CONNECTIONS: u32 = 2;
/// Connections for hints: one that listens, one that tells, and one for the moment in which the first is made anew.
const HINT_CONNECTIONS: u32 = 3;
/// Partitions of finished jobs made ahead.
const PARTITION_DAYS: u16 = 7;
/// Cancellations fenced off in one sweep.
const CANCEL_BATCH: u16 = 100;
/// Live jobs that one upkeep looks at for strays.
const STRAY_BATCH: u16 = 20_000;
/// Places under limits that one upkeep looks at.
const SLOT_BATCH: u16 = 5000;
/// Finished jobs that one step of pruning looks at.
const PRUNE_BATCH: u16 = 500;
/// Idempotency keys forgotten in one sweep.
const IDEMPOTENCY_BATCH: u16 = 1000;

/// One verb of the queue in a session of its own: what it wrote stands before anybody is told.
macro_rules! run {
    ($session:expr, $verb:path $(, $argument:expr)*) => {
        async {
            let mut conn = $session.await?;
            let told = $verb(&mut conn $(, $argument)*).await?;
            conn.done(told).await.map_err(Into::into)
        }
        .await
    };
}

/// The queue, over small pools of its own.
#[derive(Debug, Clone)]
pub struct PgLeaseStore {
    pool: PgPool,
    /// For handlers' writes.
    handlers: PgPool,
    /// For hints; `None` where nobody hears or tells any.
    hints: Option<PgPool>,
    /// The last outcomes met rows that other sessions hold.
    contested: Arc<AtomicBool>,
    /// How long what is over is kept; `None` keeps everything.
    kept: Option<Arc<Retention>>,
}

impl PgLeaseStore {
    /// The queue in the database of `pool`, over connections of its own. Call it inside a runtime; it connects at its
    /// first use, so a worker may start while the database is away.
    #[must_use]
    pub fn new(pool: &PgPool) -> Self {
        // Its statements are the hot ones.
        let options = db::hot(pool.connect_options().as_ref().clone());
        Self {
            pool: db::aside(db::impatient(options.clone()), RUNNER_CONNECTIONS),
            handlers: db::aside(options, HANDLER_CONNECTIONS),
            hints: Some(db::aside(pool.connect_options().as_ref().clone(), HINT_CONNECTIONS)),
            contested: Arc::default(),
            kept: Some(Arc::default()),
        }
    }

    /// The same queue without hints: polls alone find what is due.
    #[must_use]
    pub fn without_hints(self) -> Self {
        Self { hints: None, ..self }
    }

    async fn session(&self) -> Result<Session, sqlx::Error> {
        db::session_in(&self.pool, Manner::Impatient).await
    }

    /// For what a handler writes.
    async fn handlers_session(&self) -> Result<Session, sqlx::Error> {
        db::session_in(&self.handlers, Manner::Hot).await
    }

    /// With other times than the default ones; `None` keeps everything that is over until an operator prunes it.
    #[must_use]
    pub fn keeping(mut self, kept: Option<Retention>) -> Self {
        self.kept = kept.map(Arc::new);
        self
    }

    /// Settles around the rows that other sessions hold, at the price of locking each row first; remembers whether there
    /// were any, since they will be asked for again.
    async fn settle_around(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError> {
        let fates = retried(async || run!(self.session(), queue::settle, settlements)).await?;
        self.contested.store(fates.contains(&Fate::Busy), Ordering::Relaxed);
        Ok(fates)
    }
}

/// Runs a single statement, again while it loses races.
async fn retried<T, F, Fut>(statement: F) -> Result<T, StoreError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, sqlx::Error>>,
{
    db::retry_races(statement, db::lost_a_race).await.map_err(told)
}

/// Runs a fenced transaction, again while it loses races.
async fn retried_fenced<T, F, Fut>(transaction: F) -> Result<T, StoreError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, queue::Error>>,
{
    let is_race = |error: &queue::Error| matches!(error, queue::Error::Store(e) if db::lost_a_race(e));
    db::retry_races(transaction, is_race).await.map_err(|error| match error {
        queue::Error::LeaseLost(lost) => StoreError::LeaseLost(lost),
        queue::Error::Store(source) => told(source),
        refused @ (queue::Error::PayloadTooLarge { .. }
        | queue::Error::Invalid { .. }
        | queue::Error::NotFound(_)
        | queue::Error::Conflict { .. }
        | queue::Error::KeyTaken { .. }
        | queue::Error::SettledBefore(_)
        | queue::Error::Stale { .. }
        | queue::Error::StaleLimits { .. }) => StoreError::Refused(refused.into()),
    })
}

fn told(source: sqlx::Error) -> StoreError {
    if db::unavailable(&source) || db::lost_a_race(&source) {
        StoreError::Unavailable(source.into())
    } else {
        StoreError::Refused(source.into())
    }
}

#[async_trait]
impl LeaseStore for PgLeaseStore {
    fn on_own_connections(&self) -> Arc<dyn LeaseStore> {
        let pool = db::aside(self.pool.connect_options().as_ref().clone(), OWN_CONNECTIONS);
        Arc::new(Self { handlers: pool.clone(), pool, hints: None, contested: Arc::default(), kept: self.kept.clone() })
    }

    async fn poll(&self, worker: &WorkerSpec, request: &PollRequest<'_>) -> Result<Polled, StoreError> {
        // It waits for nobody but who takes a place for the first time: that is no outage.
        let polled =
            db::retry_races(async || run!(self.session(), queue::poll, worker, request), db::lost_a_race).await;
        polled.map_err(|error| if db::lock_timed_out(&error) { StoreError::Held(error.into()) } else { told(error) })
    }

    async fn renew(&self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, StoreError> {
        retried(async || run!(self.session(), queue::renew, leases)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError> {
        if self.contested.load(Ordering::Relaxed) {
            return self.settle_around(settlements).await;
        }
        // Nearly all outcomes are completions: those go the short way, the others beside them.
        let mut done: Vec<(Lease, &serde_json::Value)> = Vec::with_capacity(settlements.len());
        let mut others: Vec<Settlement> = Vec::new();
        for settlement in settlements {
            match &settlement.outcome {
                Outcome::Completed { result } => done.push((settlement.lease, result)),
                Outcome::Failed { .. }
                | Outcome::Snoozed { .. }
                | Outcome::Discarded { .. }
                | Outcome::Cancelled { .. }
                | Outcome::Released => others.push(settlement.clone()),
            }
        }
        let completed = if done.is_empty() {
            Vec::new()
        } else {
            let short = db::retry_races(async || run!(self.session(), queue::complete_swiftly, &done), db::lost_a_race);
            match short.await {
                Ok(fates) => fates,
                Err(blocked) if db::lock_timed_out(&blocked) => return self.settle_around(settlements).await,
                Err(error) => return Err(told(error)),
            }
        };
        if others.is_empty() {
            return Ok(completed);
        }
        let rest = match self.settle_around(&others).await {
            Ok(fates) => fates,
            // What completed is recorded and must be told: the others are to be asked for again.
            Err(StoreError::Unavailable(_) | StoreError::Held(_)) if !completed.is_empty() => {
                vec![Fate::Busy; others.len()]
            }
            Err(error) => return Err(error),
        };
        let (mut completed, mut rest) = (completed.into_iter(), rest.into_iter());
        Ok(settlements
            .iter()
            .map(|settlement| match settlement.outcome {
                Outcome::Completed { .. } => completed.next(),
                Outcome::Failed { .. }
                | Outcome::Snoozed { .. }
                | Outcome::Discarded { .. }
                | Outcome::Cancelled { .. }
                | Outcome::Released => rest.next(),
            })
            // Each was asked for once and is answered once; if not, nothing is known of it.
            .map(|fate| fate.unwrap_or(Fate::Busy))
            .collect())
    }

    async fn progress(&self, lease: Lease, progress: &Progress) -> Result<(), StoreError> {
        retried_fenced(async || run!(self.handlers_session(), queue::set_progress, lease, progress)).await
    }

    async fn step(
        &self,
        lease: Lease,
        name: &str,
        cursor: &serde_json::Value,
        evidence: &serde_json::Value,
    ) -> Result<(), StoreError> {
        retried_fenced(async || run!(self.handlers_session(), queue::append_step, lease, name, cursor, evidence)).await
    }

    async fn steps(&self, job: JobId) -> Result<Vec<Step>, StoreError> {
        retried(async || run!(self.handlers_session(), queue::steps, job)).await
    }

    async fn log(&self, lease: Lease, level: &str, line: &str) -> Result<(), StoreError> {
        retried_fenced(async || run!(self.handlers_session(), queue::append_log, lease, level, line)).await
    }

    async fn enqueue_child(&self, lease: Lease, child: &NewJob) -> Result<Enqueued, StoreError> {
        retried_fenced(async || run!(self.handlers_session(), queue::enqueue_child, lease, child)).await
    }

    async fn refused_write(&self, lease: Lease, worker: WorkerId, operation: Operation) -> Result<i64, StoreError> {
        retried(async || run!(self.session(), queue::note_refused, lease, Some(worker), operation)).await
    }

    async fn register(&self, worker: &Registration) -> Result<(), StoreError> {
        let Registration { spec, host, pid, version, node, concurrency } = worker;
        let node = node.as_deref();
        retried(async || run!(self.session(), queue::register_worker, spec, host, *pid, version, node, *concurrency))
            .await
    }

    async fn seen(&self, worker: WorkerId, wall_clock: Timestamp) -> Result<(), StoreError> {
        retried(async || run!(self.session(), queue::seen_worker, worker, Some(wall_clock))).await
    }

    async fn draining(&self, worker: WorkerId) -> Result<(), StoreError> {
        retried(async || run!(self.session(), queue::drain_worker, worker)).await
    }

    async fn stopped(&self, worker: WorkerId) -> Result<(), StoreError> {
        retried(async || run!(self.session(), queue::stop_worker, worker)).await
    }

    async fn sweep(&self, limit: u16) -> Result<Swept, StoreError> {
        let rescued = retried(async || run!(self.session(), queue::rescue_expired, limit)).await?;
        let staged = retried(async || run!(self.session(), queue::stage_due, limit)).await?;
        let ended = rescued.discarded + rescued.cancelled;
        Ok(Swept { rescued: rescued.again, ended, staged, more: rescued.more || staged >= u64::from(limit) })
    }

    async fn upkeep(&self) -> Result<(), StoreError> {
        if !retried(async || run!(self.session(), queue::ensure_partitions, PARTITION_DAYS)).await? {
            tracing::info!("partitions of finished jobs are made later: others hold the lock");
        }
        retried(async || run!(self.session(), queue::cancel_ignored, CANCEL_BATCH)).await?;
        let adopted = retried(async || run!(self.session(), queue::adopt_strays, STRAY_BATCH)).await?;
        if adopted > 0 {
            tracing::error!(
                adopted,
                "running jobs stood in no batch: an older worker leases beside us, or this is a fault"
            );
        }
        retried(async || run!(self.session(), queue::forget_slots, SLOT_BATCH)).await?;
        retried(async || run!(self.session(), queue::count_running, None)).await?;
        retried(async || run!(self.session(), idempotency::sweep, IDEMPOTENCY_BATCH)).await?;
        Ok(())
    }

    async fn hints(&self) -> Result<Option<Hints>, StoreError> {
        let Some(pool) = self.hints.as_ref().filter(|pool| !db::is_behind_pooler(&pool.connect_options())) else {
            // A pooler lends no session for as long as one listens.
            return Ok(None);
        };
        let mut listener = PgListener::connect_with(pool).await.map_err(told)?;
        // Whoever listens anew looks first: it must know of a connection that was lost.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await.map_err(told)?;
        let heard = stream::unfold(listener, async |mut listener| {
            loop {
                let Ok(Some(heard)) = listener.try_recv().await else { return None };
                if let Some(hint) = Hint::read(heard.payload()) {
                    return Some((hint, listener));
                }
            }
        });
        Ok(Some(heard.boxed()))
    }

    async fn tell(&self, hint: &Hint) -> Result<(), StoreError> {
        let Some(pool) = &self.hints else { return Ok(()) };
        let text = hint.text(entropy::turn());
        retried(async || run!(db::session(pool), queue::tell, &text)).await
    }

    async fn prune(&self) -> Result<PruneStep, StoreError> {
        let Some(kept) = self.kept.as_deref() else { return Ok(PruneStep::default()) };
        retried_fenced(async || run!(self.session(), queue::prune_step, kept, PRUNE_BATCH)).await
    }

    async fn add_throughput(&self, counts: &[(String, String, String, i64)]) -> Result<(), StoreError> {
        retried(async || run!(self.session(), queue::add_throughput, counts)).await
    }
}
