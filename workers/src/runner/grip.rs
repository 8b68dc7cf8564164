//! The runner's grip on one lease: whoever drops it unsettled hands the lease back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::lease::LeaseLost;
use domain::queue::{Fate, Outcome};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::attempt::{self, Verdict};
use super::config::AHEAD_PATIENCE;
use super::core::Core;
use super::lease::{HeldLease, Phase};
use super::settler::Request;

/// One leased job on its way through an engine.
///
/// An engine calls [`Grip::run`], then [`Grip::conclude`]. An engine that dies drops its grips, and each hands its
/// lease back, so that the job does not wait for an expiry.
pub(super) struct Grip {
    core: Arc<Core>,
    held: Arc<HeldLease>,
    /// Held from the handler's begin to its end.
    slot: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Grip {
    pub(super) const fn new(core: Arc<Core>, held: Arc<HeldLease>) -> Self {
        Self { core, held, slot: Mutex::new(None) }
    }

    /// Runs the handler as soon as a slot is free; what it comes to is not recorded yet.
    pub(super) async fn run(&self) -> Verdict {
        if let Ok(slot) = Arc::clone(&self.core.slots).try_acquire_owned() {
            return self.run_in(slot).await;
        }
        tokio::select! {
            biased;
            () = self.held.stopped.cancelled() => Verdict::Lost,
            () = self.core.draining.cancelled() => Verdict::Settle(Outcome::Released),
            slot = Arc::clone(&self.core.slots).acquire_owned() => match slot {
                Ok(slot) => self.run_in(slot).await,
                // Nobody closes the semaphore; if somebody did, nothing would run here any more.
                Err(_) => Verdict::Settle(Outcome::Released),
            },
            // It was leased ahead of a slot that does not come: another worker may have one.
            () = sleep(AHEAD_PATIENCE) => Verdict::Settle(Outcome::Released),
        }
    }

    async fn run_in(&self, slot: OwnedSemaphorePermit) -> Verdict {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(slot);
        let began = Instant::now();
        let verdict = attempt::run(&self.core, &self.held).await;
        self.held.ran(began.elapsed());
        verdict
    }

    /// Records the verdict.
    ///
    /// # Errors
    /// [`LeaseLost`] where the fence refused it.
    pub(super) async fn conclude(&self, verdict: Verdict) -> Result<(), LeaseLost> {
        let lost = LeaseLost { lease: self.held.lease() };
        let (outcome, once) = match verdict {
            Verdict::HandedBack => return Ok(()),
            Verdict::Lost => {
                // Taken over, or merely not renewed in time: the database knows which.
                self.core.held.abandon(&self.held);
                return Err(lost);
            }
            Verdict::Settle(outcome) => (outcome, false),
            Verdict::SettleOnce(outcome) => (outcome, true),
        };
        if !self.held.begin_settling() {
            return Ok(());
        }
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.core.held.free_slot(&self.held);
        let (told, fate) = tokio::sync::oneshot::channel();
        let request = Request { held: Arc::clone(&self.held), outcome, once, told: Some(told) };
        if self.core.settlements.send(request).is_err() {
            // The settling loop is gone, which ends the worker; the lease ends by itself.
            return Ok(());
        }
        match fate.await {
            Ok(Fate::Lost) => Err(lost),
            Ok(Fate::Settled(_) | Fate::Already | Fate::Busy) | Err(_) => Ok(()),
        }
    }

    /// The engine itself failed under this job: a failure of the attempt, so that a job which breaks engines ends.
    pub(super) fn broken(&self, message: &str) -> Verdict {
        Verdict::Settle(self.failed("engine_failed", message))
    }

    fn failed(&self, code: &str, message: &str) -> Outcome {
        match self.core.registry.get(&self.held.leased.kind) {
            Some(entry) => attempt::failed(&entry.spec, &self.held, code, message, None),
            None => Outcome::Released,
        }
    }
}

/// Hands leases back whose handlers have not begun.
pub(super) fn release_waiting(core: &Core) {
    for held in core.held.waiting() {
        if held.begin_release() {
            core.held.free_slot(&held);
            let _ = core.settlements.send(Request { held, outcome: Outcome::Released, once: false, told: None });
        }
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let outcome = match self.held.phase() {
            Phase::Settling | Phase::Over => return,
            Phase::Waiting => Outcome::Released,
            // The worker was told to stop at once: no fault of the job.
            Phase::Running if self.core.stop_now.is_cancelled() || self.core.drained.is_cancelled() => {
                Outcome::Snoozed { after: Duration::ZERO }
            }
            Phase::Running => self.failed("dropped", "the runner dropped the handler before it ended"),
        };
        if self.held.begin_settling() {
            self.held.cancel.cancel();
            self.core.held.free_slot(&self.held);
            let held = Arc::clone(&self.held);
            let _ = self.core.settlements.send(Request { held, outcome, once: false, told: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use domain::ids::QueueName;

    use super::super::lease::Stop;
    use super::super::lease::tests::held;
    use super::super::{RunnerConfig, Worker};
    use super::*;
    use crate::jobs::{Environment, registry};
    use crate::seam::PgLeaseStore;

    /// A worker that never runs: its store connects nowhere.
    fn worker() -> Worker {
        let pool = domain::db::connect_lazy("postgres://nobody@127.0.0.1:1/none", 1).expect("a URL");
        let kinds = registry(&Environment::new(pool.clone()));
        let config =
            RunnerConfig { queues: vec![QueueName::new("default").expect("valid")], ..RunnerConfig::default() };
        Worker::builder(Arc::new(PgLeaseStore::new(&pool)), kinds, config).build().expect("it serves something")
    }

    fn taken(worker: &Worker) -> (Arc<HeldLease>, Grip) {
        let held = held("system.noop", Duration::from_secs(30), Instant::now());
        worker.core.held.add(&held);
        (Arc::clone(&held), Grip::new(Arc::clone(&worker.core), held))
    }

    #[tokio::test]
    async fn what_has_not_begun_is_handed_back_and_cannot_begin_any_more() {
        let mut worker = worker();
        let (waiting, grip) = taken(&worker);
        let (running, _kept) = taken(&worker);
        assert!(running.begin());

        release_waiting(&worker.core);

        let request = worker.settlements.try_recv().expect("one is handed back");
        assert_eq!((request.held.lease(), request.outcome), (waiting.lease(), Outcome::Released));
        assert!(worker.settlements.try_recv().is_err(), "the other runs");
        assert!(matches!(grip.run().await, Verdict::HandedBack));
    }

    #[tokio::test]
    async fn a_grip_that_is_dropped_hands_its_lease_back() {
        let mut worker = worker();
        let (_, grip) = taken(&worker);
        drop(grip);
        assert_eq!(worker.settlements.try_recv().expect("handed back").outcome, Outcome::Released);

        // The engine broke under a handler: the attempt failed, so that a job which breaks engines ends.
        let (held, grip) = taken(&worker);
        assert!(held.begin());
        drop(grip);
        let outcome = worker.settlements.try_recv().expect("handed back").outcome;
        assert!(matches!(&outcome, Outcome::Failed { error, .. } if error["code"] == "dropped"), "{outcome:?}");
        assert!(held.cancel.is_cancelled());

        // The worker was told to stop: no attempt is spent.
        worker.core.stop_now.cancel();
        let (held, grip) = taken(&worker);
        assert!(held.begin());
        drop(grip);
        let outcome = worker.settlements.try_recv().expect("handed back").outcome;
        assert_eq!(outcome, Outcome::Snoozed { after: Duration::ZERO });
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_leased_ahead_waits_for_a_slot_and_not_for_long() {
        let worker = worker();
        let slots = Arc::clone(&worker.core.slots);
        let all = u32::try_from(slots.available_permits()).expect("few");
        let taken_by_others = slots.clone().acquire_many_owned(all).await.expect("free");
        let (held, grip) = taken(&worker);
        let verdict = grip.run().await;
        assert!(matches!(verdict, Verdict::Settle(Outcome::Released)), "{verdict:?}");
        assert_eq!(held.phase(), Phase::Waiting, "its handler never began");

        // With a slot in time it runs.
        let (held, grip) = taken(&worker);
        // Joined in this order: it waits before the others go.
        let (verdict, ()) = futures::future::join(grip.run(), async move { drop(taken_by_others) }).await;
        assert!(
            matches!(verdict, Verdict::Settle(Outcome::Discarded { .. })),
            "it ran, with bad arguments: {verdict:?}"
        );
        assert_eq!(held.phase(), Phase::Running);
        assert_eq!(slots.available_permits(), all as usize - 1, "held until the verdict is concluded");
        drop(grip);
        assert_eq!(slots.available_permits(), all as usize);

        // What waits when its lease is lost, or when the worker drains, does not begin.
        let _none = slots.acquire_many_owned(all).await.expect("free");
        let (held, grip) = taken(&worker);
        held.stop(Stop::Lost);
        assert!(matches!(grip.run().await, Verdict::Lost));
        let (_, grip) = taken(&worker);
        worker.core.draining.cancel();
        assert!(matches!(grip.run().await, Verdict::Settle(Outcome::Released)));
    }

    #[tokio::test]
    async fn a_grip_whose_outcome_is_under_way_hands_nothing_back() {
        let mut worker = worker();
        let (held, grip) = taken(&worker);
        assert!(held.begin() && held.begin_settling());
        drop(grip);
        assert!(worker.settlements.try_recv().is_err());
    }
}
