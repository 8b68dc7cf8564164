//! What a handler holds: its lease, its signals, and writes that the fence guards.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::lease::Lease;
use domain::queue::{Enqueued, Leased, NewJob, Operation, Progress, Step, policy};
use futures::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::config::PROGRESS_INTERVAL;
use super::core::Core;
use super::job::JobError;
use super::lease::{HeldLease, Stop};
use super::outage;
use crate::seam::{LeaseStore, StoreError};

/// How serious a line of a job's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As expected.
    Info,
    /// Odd, but recovered.
    Warn,
    /// Somebody must act.
    Error,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A handler's hold on its job.
///
/// # Consistency
/// Every write is refused once the lease is another's ([`JobError::LeaseLost`]); the refusal fires `cancel` and is kept
/// as evidence. A handler that passes these errors on with `?` ends as it should.
///
/// # Retries
/// A database that does not answer is asked again, within the lease that the call began under: its restart spends no
/// attempt. A step or a child that was written before its answer was lost is not written twice; a line of the log may be.
///
/// # Cancellation
/// `cancel` fires when somebody asks the job to end, when the lease is lost, and when it can no longer be renewed in
/// time. In the latter two cases the handler is dropped at its next `await`; in the first it has a third of a lease to
/// end by itself. `draining` fires when the worker stops: a handler with a good place to stop snoozes there.
#[derive(Clone)]
pub struct JobContext {
    /// The job, as it was leased.
    pub leased: Arc<Leased>,
    /// Fires when the handler should end.
    pub cancel: CancellationToken,
    /// Fires when the worker stops; what runs beyond the drain time goes to another worker.
    pub draining: CancellationToken,
    store: Arc<dyn LeaseStore>,
    pub(super) runner: Option<(Arc<Core>, Arc<HeldLease>)>,
    progress: Arc<Mutex<Option<Instant>>>,
}

impl std::fmt::Debug for JobContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext").field("lease", &self.leased.lease).field("kind", &self.leased.kind).finish()
    }
}

impl JobContext {
    pub(super) fn of(core: &Arc<Core>, held: &Arc<HeldLease>) -> Self {
        Self {
            leased: Arc::clone(&held.leased),
            cancel: held.cancel.clone(),
            draining: core.draining.clone(),
            store: Arc::clone(&core.store),
            runner: Some((Arc::clone(core), Arc::clone(held))),
            progress: Arc::default(),
        }
    }

    /// A context without a runner, for tests of a handler: the lease is not renewed and nothing is settled.
    #[must_use]
    pub fn detached(store: Arc<dyn LeaseStore>, leased: Leased) -> Self {
        Self {
            leased: Arc::new(leased),
            cancel: CancellationToken::new(),
            draining: CancellationToken::new(),
            store,
            runner: None,
            progress: Arc::default(),
        }
    }

    /// The right to write: also for domain transactions (`require_lease`) and as a version in the world.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.leased.lease
    }

    /// Refuses to go on where the handler should end: a check between two steps that costs nothing.
    ///
    /// # Errors
    /// [`JobError::LeaseLost`] or [`JobError::Cancel`].
    pub fn check(&self) -> Result<(), JobError> {
        if !self.cancel.is_cancelled() {
            return Ok(());
        }
        let held = self.runner.as_ref().map(|(_, held)| held);
        if held.is_some_and(|held| held.why_stopped().is_some()) {
            return Err(JobError::LeaseLost);
        }
        let reason = held.and_then(|held| held.asked_to_end()).unwrap_or("asked to end");
        Err(JobError::Cancel(reason.to_owned()))
    }

    /// Reports how far the job is, at most twice a second: what comes sooner is left out, except the end.
    ///
    /// # Errors
    /// [`JobError::LeaseLost`]; a database that is away is no error here, since the next report says the same and more.
    pub async fn progress(&self, progress: &Progress) -> Result<(), JobError> {
        let is_end = progress.total.is_some_and(|total| progress.done >= total);
        {
            let mut last = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_end && last.is_some_and(|at| at.elapsed() < PROGRESS_INTERVAL) {
                return Ok(());
            }
            *last = Some(Instant::now());
        }
        match self.store.progress(self.lease(), progress).await {
            Err(StoreError::Unavailable(source) | StoreError::Held(source)) => {
                tracing::debug!(error = %source, "progress was not written");
                Ok(())
            }
            written => self.told(Operation::Progress, written),
        }
    }

    /// Records a step, which a later attempt reads back: record it *after* the act that it tells of. The last
    /// step again, with the same name and cursor, is that step.
    ///
    /// # Errors
    /// [`JobError::LeaseLost`], or a retry where the database did not take it.
    pub async fn step(&self, name: &str, cursor: &Value, evidence: &Value) -> Result<(), JobError> {
        let written = self.answered(|| self.store.step(self.lease(), name, cursor, evidence)).await;
        self.told(Operation::Step, written)
    }

    /// Every step of the job, oldest first, those of earlier attempts included.
    ///
    /// # Errors
    /// A retry where the database did not answer in time.
    pub async fn steps(&self) -> Result<Vec<Step>, JobError> {
        Ok(self.answered(|| self.store.steps(self.lease().job)).await?)
    }

    /// Appends a line to the job's log; no payloads and no secrets.
    ///
    /// # Errors
    /// [`JobError::LeaseLost`], or a retry where the database did not take it.
    pub async fn log(&self, level: Level, line: &str) -> Result<(), JobError> {
        let written = self.answered(|| self.store.log(self.lease(), level.as_str(), line)).await;
        self.told(Operation::Log, written)
    }

    /// Enqueues a child of this job, under this job's fence, and tells of it as [`JobContext::tell_enqueued`] does. It counts
    /// once, however often it was tried; a handler that enqueues the same `child` again counts it again.
    ///
    /// # Errors
    /// [`JobError::LeaseLost`], or a retry where the queue did not take it.
    pub async fn enqueue_child(&self, child: &NewJob) -> Result<Enqueued, JobError> {
        let made = self.answered(|| self.store.enqueue_child(self.lease(), child)).await;
        let made = self.told(Operation::EnqueueChild, made)?;
        self.tell_enqueued(child, made);
        Ok(made)
    }

    /// Counts a job that the handler enqueued on a connection of its own, and tells idle workers of it: call it after that
    /// commit. What is told may be lost; the job then waits for a poll.
    pub fn tell_enqueued(&self, job: &NewJob, made: Enqueued) {
        if let Some((core, _)) = &self.runner {
            core.meters.enqueued(&job.queue, &job.kind, made);
            if made.is_due() {
                core.outbox.add(&job.queue, 1);
            }
        }
    }

    /// Tells the runner of a refusal that the handler met in a domain transaction of its own.
    pub fn refused(&self, operation: Operation) {
        if let Some((core, held)) = &self.runner {
            core.refused(held, operation);
            held.stop(Stop::Lost);
        }
        self.cancel.cancel();
    }

    /// Calls until there is an answer: at most as long as the lease lives that it began under, by its local deadline,
    /// and not once the job is to end.
    async fn answered<'a, T>(
        &'a self,
        call: impl Fn() -> BoxFuture<'a, Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let held = self.runner.as_ref().map(|(_, held)| held);
        let deadline = held.map_or_else(|| Instant::now() + policy::DEFAULT_LEASE, |held| held.stop_at());
        let mut failures = 0;
        loop {
            let away = match call().await {
                Err(away @ (StoreError::Unavailable(_) | StoreError::Held(_))) => away,
                answer => return answer,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                // No renewal came through either: the handler is dropped here, which spends no attempt.
                if let Some(held) = held.filter(|held| held.stop_at() <= deadline) {
                    held.stopped.cancelled().await;
                }
                return Err(away);
            }
            failures += 1;
            let pause = outage::pause(failures).min(left);
            if self.cancel.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Err(away);
            }
        }
    }

    fn told<T>(&self, operation: Operation, written: Result<T, StoreError>) -> Result<T, JobError> {
        if matches!(written, Err(StoreError::LeaseLost(_))) {
            self.refused(operation);
        }
        Ok(written?)
    }
}
