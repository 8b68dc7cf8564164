//! The queue in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::clock::Timestamp;
use domain::ids::{JobId, WorkerId};
use domain::lease::Lease;
use domain::queue::hints::{CHANNEL, Hint};
use domain::queue::{
    self, Enqueued, Fate, NewJob, Operation, Outcome, PollRequest, Polled, Progress, Renewed, Settlement, Step,
    WorkerSpec,
};
use domain::{db, entropy, idempotency};
use futures::StreamExt as _;
use futures::stream;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgListener};
use sqlx::{PgPool, Postgres};

use super::{Hints, LeaseStore, Registration, StoreError, Swept};

/// Connections for leasing, settling, sweeping and counting: one for each of these loops, one for the rare rest. No
/// handler reaches them, so none can keep the runner from settling.
const RUNNER_CONNECTIONS: u32 = 5;
/// Connections for what handlers write through their contexts, all handlers together.
const HANDLER_CONNECTIONS: u32 = 4;
/// Connections of the thread that renews: one for renewals, one for evidence, so that neither waits for the other.
const OWN_CONNECTIONS: u32 = 2;
/// Longest wait of the runner's own statements for a lock, in milliseconds.
const LOCK_PATIENCE_MS: &str = "200";
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
/// Idempotency keys forgotten in one sweep.
const IDEMPOTENCY_BATCH: u16 = 1000;

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
}

impl PgLeaseStore {
    /// The queue in the database of `pool`, over connections of its own. Call it inside a runtime; it connects at its
    /// first use, so a worker may start while the database is away.
    #[must_use]
    pub fn new(pool: &PgPool) -> Self {
        // Its statements are the hot ones.
        let options = db::hot(pool.connect_options().as_ref().clone());
        Self {
            pool: db::aside(impatient(options.clone()), RUNNER_CONNECTIONS),
            handlers: db::aside(options, HANDLER_CONNECTIONS),
            hints: Some(db::aside(pool.connect_options().as_ref().clone(), HINT_CONNECTIONS)),
            contested: Arc::default(),
        }
    }

    /// The same queue without hints: polls alone find what is due.
    #[must_use]
    pub fn without_hints(self) -> Self {
        Self { hints: None, ..self }
    }

    async fn connection(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.pool.acquire().await
    }

    /// Settles around the rows that other sessions hold, at the price of locking each row first; remembers whether there
    /// were any, since they will be asked for again.
    async fn settle_around(&self, settlements: &[Settlement]) -> Result<Vec<Fate>, StoreError> {
        let fates = retried(async || queue::settle(&mut *self.connection().await?, settlements).await).await?;
        self.contested.store(fates.contains(&Fate::Busy), Ordering::Relaxed);
        Ok(fates)
    }
}

/// The runner's own statements pass by rows that others hold, or come back later: none of them may wait for long.
fn impatient(options: PgConnectOptions) -> PgConnectOptions {
    options.options([("lock_timeout", LOCK_PATIENCE_MS)])
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
        Arc::new(Self { handlers: pool.clone(), pool, hints: None, contested: Arc::default() })
    }

    async fn poll(&self, worker: &WorkerSpec, request: &PollRequest<'_>) -> Result<Polled, StoreError> {
        retried(async || queue::poll(&mut *self.connection().await?, worker, request).await).await
    }

    async fn renew(&self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, StoreError> {
        retried(async || queue::renew(&mut *self.connection().await?, leases).await).await
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
            let short = db::retry_races(
                async || queue::complete_swiftly(&mut *self.connection().await?, &done).await,
                db::lost_a_race,
            );
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
            Err(StoreError::Unavailable(_)) if !completed.is_empty() => vec![Fate::Busy; others.len()],
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
        retried_fenced(async || queue::set_progress(&mut *self.handlers.acquire().await?, lease, progress).await).await
    }

    async fn step(
        &self,
        lease: Lease,
        name: &str,
        cursor: &serde_json::Value,
        evidence: &serde_json::Value,
    ) -> Result<(), StoreError> {
        retried_fenced(async || {
            queue::append_step(&mut *self.handlers.acquire().await?, lease, name, cursor, evidence).await
        })
        .await
    }

    async fn steps(&self, job: JobId) -> Result<Vec<Step>, StoreError> {
        retried(async || queue::steps(&mut *self.handlers.acquire().await?, job).await).await
    }

    async fn log(&self, lease: Lease, level: &str, line: &str) -> Result<(), StoreError> {
        retried_fenced(async || queue::append_log(&mut *self.handlers.acquire().await?, lease, level, line).await).await
    }

    async fn enqueue_child(&self, lease: Lease, child: &NewJob) -> Result<Enqueued, StoreError> {
        retried_fenced(async || queue::enqueue_child(&mut *self.handlers.acquire().await?, lease, child).await).await
    }

    async fn refused_write(&self, lease: Lease, worker: WorkerId, operation: Operation) -> Result<i64, StoreError> {
        retried(async || queue::note_refused(&mut *self.connection().await?, lease, Some(worker), operation).await)
            .await
    }

    async fn register(&self, worker: &Registration) -> Result<(), StoreError> {
        let Registration { spec, host, pid, version, node, concurrency } = worker;
        retried(async || {
            let mut conn = self.connection().await?;
            queue::register_worker(&mut conn, spec, host, *pid, version, node.as_deref(), *concurrency).await
        })
        .await
    }

    async fn seen(&self, worker: WorkerId, wall_clock: Timestamp) -> Result<(), StoreError> {
        retried(async || queue::seen_worker(&mut *self.connection().await?, worker, Some(wall_clock)).await).await
    }

    async fn draining(&self, worker: WorkerId) -> Result<(), StoreError> {
        retried(async || queue::drain_worker(&mut *self.connection().await?, worker).await).await
    }

    async fn stopped(&self, worker: WorkerId) -> Result<(), StoreError> {
        retried(async || queue::stop_worker(&mut *self.connection().await?, worker).await).await
    }

    async fn sweep(&self, limit: u16) -> Result<Swept, StoreError> {
        retried(async || {
            let mut conn = self.connection().await?;
            let rescued = queue::rescue_expired(&mut conn, limit).await?;
            let staged = queue::stage_due(&mut conn, limit).await?;
            let ended = rescued.discarded + rescued.cancelled;
            Ok(Swept { rescued: rescued.again, ended, staged, more: rescued.more || staged >= u64::from(limit) })
        })
        .await
    }

    async fn upkeep(&self) -> Result<(), StoreError> {
        retried(async || {
            let mut conn = self.connection().await?;
            if !queue::ensure_partitions(&mut conn, PARTITION_DAYS).await? {
                tracing::info!("partitions of finished jobs are made later: others hold the lock");
            }
            queue::cancel_ignored(&mut conn, CANCEL_BATCH).await?;
            let adopted = queue::adopt_strays(&mut conn, STRAY_BATCH).await?;
            if adopted > 0 {
                tracing::error!(
                    adopted,
                    "running jobs stood in no batch: an older worker leases beside us, or this is a fault"
                );
            }
            queue::forget_slots(&mut conn, SLOT_BATCH).await?;
            idempotency::sweep(&mut conn, IDEMPOTENCY_BATCH).await?;
            Ok(())
        })
        .await
    }

    async fn hints(&self) -> Result<Option<Hints>, StoreError> {
        let Some(pool) = &self.hints else { return Ok(None) };
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
        queue::tell(&mut *pool.acquire().await.map_err(told)?, &text).await.map_err(told)
    }

    async fn add_throughput(&self, counts: &[(String, String, String, i64)]) -> Result<(), StoreError> {
        retried(async || queue::add_throughput(&mut *self.connection().await?, counts).await).await
    }
}
