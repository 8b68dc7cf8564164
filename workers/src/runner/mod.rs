//! The runner: lease, run, renew, settle.
//!
//! # Consistency
//! A handler runs under one lease, and everything that it writes through its context carries the lease's fence. It ends
//! as soon as this process knows, or must fear, that the lease is gone: on an answer that says so, or one margin before
//! the database's expiry when no renewal came through.
//!
//! # Retries
//! Durable ones are rows: a failed attempt is settled as such. Loops here only retry the database's answers.
//!
//! # Cancellation
//! Dropping an engine drops its handlers, and every grip on a lease that was not settled hands it back.
//!
//! # Crash consistency
//! A process that dies leaves leases that expire; whoever leases next finishes. Its worker id dies with it.
//!
//! # Parts
//! `leaser` leases as slots free · an engine (`apalis` or `plain`) drives `attempt` · `settler` records outcomes in
//! groups · `keeper` is the thread that renews and stops in time · `upkeep` sweeps and counts · `hints` hears and tells. If one of them dies, the
//! worker ends with an error: a runner without its renewals is no runner.

use std::sync::Arc;
use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{PollRequest, WorkerSpec};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

mod ahead;
mod apalis;
mod attempt;
mod config;
mod context;
mod core;
mod grip;
mod held;
mod hints;
mod inside;
mod job;
mod keeper;
mod lease;
mod leaser;
mod meters;
mod outage;
mod plain;
mod rhythm;
mod settler;
mod upkeep;

pub use config::{Engine, RunnerConfig};
pub use context::{JobContext, Level};
pub use job::{Done, Job, JobError, Registry};

use self::core::Core;
use crate::seam::{LeaseStore, Registration};

/// Why a worker could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has nothing to do: no queue, or no kind.
    #[error("the worker serves {0}: name at least one")]
    NothingToServe(&'static str),
    /// The operating system gave no thread.
    #[error("start the thread that renews leases")]
    Thread(#[source] std::io::Error),
    /// The engine ended by itself.
    #[error("drive the handlers")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A loop that the worker cannot do without ended.
    #[error("the worker's loop for {0} ended: the worker cannot go on")]
    LoopDied(&'static str),
}

impl Error {
    const fn is_of_the_engine(&self) -> bool {
        match self {
            Self::Engine(_) => true,
            Self::NothingToServe(_) | Self::Thread(_) | Self::LoopDied(_) => false,
        }
    }
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Who it was.
    pub worker: WorkerId,
    /// Leases that could not be handed back, for a handler that blocks or a database that is away; they expire.
    pub abandoned: usize,
}

/// A worker before it runs.
#[derive(Debug)]
pub struct Builder {
    store: Arc<dyn LeaseStore>,
    registry: Registry,
    config: RunnerConfig,
    wake: Arc<Notify>,
    stop_now: CancellationToken,
}

/// A runner of jobs. See [`Worker::builder`].
pub struct Worker {
    config: RunnerConfig,
    core: Arc<Core>,
    settlements: mpsc::UnboundedReceiver<settler::Request>,
    refusals: mpsc::Receiver<keeper::Refusal>,
}

/// A hand on a worker that runs.
#[derive(Debug, Clone)]
pub struct Handle {
    worker: WorkerId,
    stop_now: CancellationToken,
    wake: Arc<Notify>,
}

impl Handle {
    /// Its id, random for each start.
    #[must_use]
    pub const fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Ends the worker at once: handlers are dropped, their leases handed back if that takes no more than a second.
    pub fn stop_now(&self) {
        self.stop_now.cancel();
    }

    /// Lets the worker look for jobs before its next poll: a hint, which may be lost.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

impl Builder {
    /// Shares a wake-up with whoever hears of new jobs.
    #[must_use]
    pub fn wake(mut self, wake: Arc<Notify>) -> Self {
        self.wake = wake;
        self
    }

    /// Shares the token that ends the worker at once.
    #[must_use]
    pub fn stop_now(mut self, stop_now: CancellationToken) -> Self {
        self.stop_now = stop_now;
        self
    }

    /// The worker, ready to run.
    ///
    /// # Errors
    /// [`Error::NothingToServe`].
    pub fn build(self) -> Result<Worker, Error> {
        let Self { store, registry, config, wake, stop_now } = self;
        let registry = match &config.kinds {
            Some(kinds) => registry.only(kinds),
            None => registry,
        };
        let kinds: Vec<_> = registry.specs().iter().map(|spec| (spec.kind.clone(), spec.lease)).collect();
        if kinds.is_empty() {
            return Err(Error::NothingToServe("no kind"));
        }
        if config.queues.is_empty() {
            return Err(Error::NothingToServe("no queue"));
        }
        let concurrency = config.concurrency.max(1);
        let registration = Registration {
            spec: WorkerSpec { worker: WorkerId::generate(), queues: config.queues.clone(), kinds },
            host: config.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            node: config.node.clone(),
            concurrency,
        };
        let (settle, settlements) = mpsc::unbounded_channel();
        let (refuse, refusals) = mpsc::channel(config::EVIDENCE_QUEUE);
        let slots = usize::from(concurrency);
        let core = Arc::new(Core {
            registration,
            registry,
            store,
            held: held::Held::new(slots, slots * config::HELD_FACTOR),
            slots: Arc::new(Semaphore::new(slots)),
            meters: meters::Meters::default(),
            registered: CancellationToken::new(),
            draining: CancellationToken::new(),
            drained: CancellationToken::new(),
            stop_now,
            wake,
            rhythm: rhythm::Rhythm::default(),
            sweep_wanted: Notify::new(),
            outbox: hints::Outbox::default(),
            prune_wanted: Notify::new(),
            settlements: settle,
            refusals: refuse,
        });
        Ok(Worker { config, core, settlements, refusals })
    }

    /// Builds the worker and runs it: see [`Worker::run`].
    ///
    /// # Errors
    /// Those of [`Self::build`] and [`Worker::run`].
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, Error> {
        self.build()?.run(shutdown).await
    }
}

/// The loops that run beside the engine until the worker ends.
struct Loops {
    beside: JoinSet<&'static str>,
    /// Ends by itself when the worker drains.
    leasing: JoinHandle<()>,
    settling: JoinHandle<()>,
    /// Ends the settling loop when nothing is left to settle.
    closing: CancellationToken,
    keeper: keeper::Keeper,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("spec", &self.core.registration.spec).field("config", &self.config).finish()
    }
}

impl Worker {
    /// A worker that serves `config`'s queues with `registry`'s kinds.
    #[must_use]
    pub fn builder(store: Arc<dyn LeaseStore>, registry: Registry, config: RunnerConfig) -> Builder {
        Builder { store, registry, config, wake: Arc::default(), stop_now: CancellationToken::new() }
    }

    /// A hand on it while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            worker: self.core.registration.spec.worker,
            stop_now: self.core.stop_now.clone(),
            wake: Arc::clone(&self.core.wake),
        }
    }

    /// Runs until `shutdown` fires and the drain is over: no more leases; what has not begun is handed back;
    /// handlers are told and given the drain time; what still runs then is snoozed, without an attempt spent.
    ///
    /// A database that is away is survived: the worker waits for it.
    ///
    /// # Errors
    /// [`Error::Thread`], [`Error::Engine`] or [`Error::LoopDied`]; leases were handed back as far as possible.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, Error> {
        let Self { config, core, settlements, refusals } = self;
        let worker = core.registration.spec.worker;
        tracing::info!(
            worker.id = %worker,
            queues = ?core.registration.spec.queues.iter().map(|queue| queue.as_str()).collect::<Vec<_>>(),
            kinds = core.registration.spec.kinds.len(),
            concurrency = core.registration.concurrency,
            engine = ?config.engine,
            "worker started",
        );
        let keeper = keeper::start(Arc::clone(&core), refusals).map_err(Error::Thread)?;
        let closing = CancellationToken::new();
        let (give, jobs) = mpsc::unbounded_channel();
        let mut loops = Loops {
            beside: JoinSet::new(),
            leasing: tokio::spawn(leaser::run(Arc::clone(&core), give)),
            settling: tokio::spawn(settler::run(Arc::clone(&core), settlements, closing.clone())),
            closing,
            keeper,
        };
        loops.beside.spawn(upkeep::sweep(Arc::clone(&core)).map(|()| "sweeps"));
        loops.beside.spawn(upkeep::prune(Arc::clone(&core)).map(|()| "pruning"));
        loops.beside.spawn(upkeep::flush_counts(Arc::clone(&core)).map(|()| "counts"));
        loops.beside.spawn(hints::tell(Arc::clone(&core)).map(|()| "telling hints"));
        loops.beside.spawn(hints::listen(Arc::clone(&core)).map(|()| "listening for hints"));
        let mut engine: BoxFuture<'static, Result<(), Error>> = match config.engine {
            Engine::Plain => plain::run(jobs, core.draining.clone()).map(Ok).boxed(),
            Engine::Apalis => {
                let (name, draining) = (worker.to_string(), core.draining.clone());
                async move { apalis::run(&name, jobs, draining).await.map_err(|e| Error::Engine(Box::new(e))) }.boxed()
            }
        };
        let ended = watch(&core, &mut engine, &mut loops, shutdown, config.drain).await;
        // Also after an error: no more leases, and what the engine still holds is handed back as it is dropped. Only a
        // fault of the engine may be one of a job: no other spends an attempt.
        core.draining.cancel();
        if !ended.as_ref().is_err_and(Error::is_of_the_engine) {
            core.drained.cancel();
        }
        drop(engine);
        let abandoned = wind_up(&core, loops).await;
        match &ended {
            Ok(()) => tracing::info!(worker.id = %worker, abandoned, "worker stopped"),
            Err(error) => tracing::error!(worker.id = %worker, abandoned, %error, "worker failed"),
        }
        ended.map(|()| Summary { worker, abandoned })
    }
}

/// Waits for the end of the engine, through the stages of a drain.
async fn watch(
    core: &Arc<Core>,
    engine: &mut BoxFuture<'static, Result<(), Error>>,
    loops: &mut Loops,
    shutdown: CancellationToken,
    drain: Duration,
) -> Result<(), Error> {
    /// Where the shutdown is; with the moment at which the next stage begins.
    enum Stage {
        Serving,
        Draining(Instant),
        Drained(Instant),
    }
    let mut stage = Stage::Serving;
    let far = || Instant::now() + Duration::from_secs(3600);
    loop {
        let next = match stage {
            Stage::Serving => far(),
            Stage::Draining(at) | Stage::Drained(at) => at,
        };
        tokio::select! {
            biased;
            () = core.stop_now.cancelled() => return Ok(()),
            _ = &mut loops.keeper.ended => return Err(Error::LoopDied("renewals")),
            _ = &mut loops.settling => return Err(Error::LoopDied("settling")),
            Some(ended) = loops.beside.join_next() => match ended {
                Ok(name) => return Err(Error::LoopDied(name)),
                Err(_) => return Err(Error::LoopDied("sweeps, counts or hints")),
            },
            _ = &mut loops.leasing, if matches!(stage, Stage::Serving) => return Err(Error::LoopDied("leasing")),
            ended = &mut *engine => return match stage {
                Stage::Serving => ended.and(Err(Error::Engine("it ended by itself".into()))),
                Stage::Draining(_) | Stage::Drained(_) => ended,
            },
            () = shutdown.cancelled(), if matches!(stage, Stage::Serving) => {
                tracing::info!(held = core.held.len(), drain_ms = drain.as_millis(), "worker drains");
                core.draining.cancel();
                grip::release_waiting(core);
                let (store, worker) = (Arc::clone(&core.store), core.registration.spec.worker);
                // For people only, so nothing waits for it.
                tokio::spawn(async move { timeout(config::LAST_WRITES, store.draining(worker)).await });
                stage = Stage::Draining(Instant::now() + drain);
            }
            () = sleep_until(next) => match stage {
                Stage::Serving => {}
                Stage::Draining(_) => {
                    core.drained.cancel();
                    stage = Stage::Drained(Instant::now() + config::LAST_WRITES);
                }
                // What is left does not yield, or the database is away.
                Stage::Drained(_) => return Ok(()),
            },
        }
    }
}

/// Records what is left, in a bounded time; returns how many leases were left behind.
async fn wind_up(core: &Arc<Core>, mut loops: Loops) -> usize {
    let limit = if core.stop_now.is_cancelled() { config::STOP_NOW_WRITES } else { config::LAST_WRITES };
    let last_writes = async {
        // A lease that was being taken when the drain began is handed back when its answer is here.
        if !loops.leasing.is_finished() {
            let _ = (&mut loops.leasing).await;
        }
        core.held.until_empty().await;
        loops.closing.cancel();
        // Polled again after it ended, a handle panics: it may be why we are here.
        if !loops.settling.is_finished() {
            let _ = (&mut loops.settling).await;
        }
        let _ = upkeep::flush_once(core).await;
        // The last batches; one of which this is not told is the sweeps'.
        let ended = core.held.ended_batches();
        let request =
            PollRequest { limit: 0, ended: &ended, look: false, wall_clock: None, turns: None, low_water: None };
        if !ended.is_empty() && core.store.poll(&core.registration.spec, &request).await.is_ok() {
            core.held.batches_removed(&ended);
        }
        if let Err(error) = core.store.stopped(core.registration.spec.worker).await {
            tracing::warn!(%error, "the worker's end was not written down");
        }
    };
    let _ = timeout(limit, last_writes).await;
    loops.leasing.abort();
    loops.settling.abort();
    loops.keeper.stop.cancel();
    if !loops.keeper.ended.is_terminated() {
        let _ = timeout(limit, &mut loops.keeper.ended).await;
    }
    core.held.len()
}
