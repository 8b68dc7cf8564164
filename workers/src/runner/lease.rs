//! One held lease: where it stands, when it is due, and what its handler is told.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::lease::Lease;
use domain::queue::{Leased, Outcome, policy};
use tokio_util::sync::CancellationToken;

use super::meters::Meter;

/// Where a held lease stands in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its handler has not begun.
    Waiting,
    /// Its handler runs.
    Running,
    /// Its outcome is being recorded. It is renewed until that is certain.
    Settling,
    /// It is ours no longer.
    Over,
}

impl Phase {
    const fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Waiting,
            1 => Self::Running,
            2 => Self::Settling,
            _ => Self::Over,
        }
    }
}

/// Why a handler was stopped without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Another worker owns the job.
    Lost,
    /// The lease could not be renewed in time: it may end at any moment.
    Expiring,
}

/// When a lease is due, on this process's monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    renew_at: Instant,
    stop_at: Instant,
}

impl Times {
    /// Counted from the moment *before* the request was sent: the database counts from a later one, so this end comes
    /// first, and one margin earlier still.
    fn after(sent: Instant, life: Duration) -> Self {
        Self { renew_at: sent + life / 3, stop_at: sent + (life - life / policy::MARGIN_SHARE) }
    }
}

/// A lease that this process holds.
pub(super) struct HeldLease {
    pub(super) leased: Arc<Leased>,
    pub(super) life: Duration,
    pub(super) meter: Arc<Meter>,
    pub(super) span: tracing::Span,
    /// Fires when the handler should end: asked to, or stopped.
    pub(super) cancel: CancellationToken,
    /// Fires when the handler must not take another step.
    pub(super) stopped: CancellationToken,
    why: OnceLock<Stop>,
    asked: OnceLock<String>,
    phase: AtomicU8,
    holds_slot: AtomicBool,
    /// How long its handler ran.
    ran_for: OnceLock<Duration>,
    /// What the handler recorded in a transaction of its own, which may have committed or not.
    inside: Mutex<Option<Outcome>>,
    times: Mutex<Times>,
}

impl HeldLease {
    pub(super) fn new(leased: Leased, life: Duration, sent: Instant, meter: Arc<Meter>, span: tracing::Span) -> Self {
        Self {
            leased: Arc::new(leased),
            life,
            meter,
            span,
            cancel: CancellationToken::new(),
            stopped: CancellationToken::new(),
            why: OnceLock::new(),
            asked: OnceLock::new(),
            phase: AtomicU8::new(Phase::Waiting as u8),
            holds_slot: AtomicBool::new(true),
            ran_for: OnceLock::new(),
            inside: Mutex::new(None),
            times: Mutex::new(Times::after(sent, life)),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        self.leased.lease
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Ordering::SeqCst))
    }

    fn enter(&self, from: Phase, to: Phase) -> bool {
        self.phase.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The handler begins; `false` where the lease was handed back before.
    pub(super) fn begin(&self) -> bool {
        self.enter(Phase::Waiting, Phase::Running)
    }

    /// Whoever gets `true` records the outcome, and nobody else does.
    pub(super) fn begin_settling(&self) -> bool {
        self.enter(Phase::Running, Phase::Settling) || self.begin_release()
    }

    /// As [`Self::begin_settling`], only where the handler has not begun.
    pub(super) fn begin_release(&self) -> bool {
        self.enter(Phase::Waiting, Phase::Settling)
    }

    fn times(&self) -> Times {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the lease is to be renewed.
    pub(super) fn renew_at(&self) -> Instant {
        self.times().renew_at
    }

    /// The lease is ours no longer.
    pub(super) fn let_go(&self) {
        self.phase.store(Phase::Over as u8, Ordering::SeqCst);
    }

    /// Whether it still held its slot, which it does not any more.
    pub(super) fn gives_slot_up(&self) -> bool {
        self.holds_slot.swap(false, Ordering::SeqCst)
    }

    /// Its handler ended after such a time.
    pub(super) fn ran(&self, time: Duration) {
        let _ = self.ran_for.set(time);
    }

    /// How long its handler ran; `None` where it did not, or runs.
    pub(super) fn ran_for(&self) -> Option<Duration> {
        self.ran_for.get().copied()
    }

    /// The moment from which the lease may no longer be acted under.
    pub(super) fn stop_at(&self) -> Instant {
        self.times().stop_at
    }

    /// The lease lives on, by the answer to a request of `sent`.
    pub(super) fn renewed(&self, sent: Instant) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner) = Times::after(sent, self.life);
    }

    /// The renewal failed: again after `pause`.
    pub(super) fn renew_again_in(&self, pause: Duration) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).renew_at = Instant::now() + pause;
    }

    /// Stops the handler; the first reason stays.
    pub(super) fn stop(&self, why: Stop) {
        let _ = self.why.set(why);
        self.stopped.cancel();
        self.cancel.cancel();
    }

    pub(super) fn why_stopped(&self) -> Option<Stop> {
        self.why.get().copied()
    }

    /// The handler recorded this in a transaction of its own; what an earlier try recorded was not committed.
    pub(super) fn settled_inside(&self, outcome: Outcome) {
        *self.inside.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    /// What became of the job where its handler settled it and that committed.
    pub(super) fn inside(&self) -> Option<Outcome> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the handler to end; `true` for the first time.
    pub(super) fn ask_to_end(&self, reason: String) -> bool {
        let first = self.asked.set(reason).is_ok();
        self.cancel.cancel();
        first
    }

    /// The reason with which somebody asked the handler to end.
    pub(super) fn asked_to_end(&self) -> Option<&str> {
        self.asked.get().map(String::as_str)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use domain::clock::Timestamp;
    use domain::ids::{BatchId, JobId, Kind, QueueName};
    use domain::lease::Fence;

    use super::super::meters::Meters;
    use super::*;

    /// A lease whose request was sent at `sent`.
    pub(in super::super) fn held(kind: &str, life: Duration, sent: Instant) -> Arc<HeldLease> {
        let (kind, queue) = (Kind::new(kind).expect("valid"), QueueName::new("default").expect("valid"));
        let meter = Meters::default().of(&queue, &kind);
        let at = Timestamp::UNIX_EPOCH;
        let leased = Leased {
            batch: BatchId(1),
            lease: Lease { job: JobId::generate(), fence: Fence(1) },
            kind,
            queue,
            args: serde_json::Value::Null,
            attempt: 1,
            max_attempts: 3,
            interruptions: 0,
            deadline: None,
            created_at: at,
            run_at: at,
            priority: 0,
            leased_at: at,
            expires_at: at,
            concurrency_key: None,
            traceparent: None,
        };
        Arc::new(HeldLease::new(leased, life, sent, meter, tracing::Span::none()))
    }

    #[test]
    fn only_one_settles_a_lease() {
        let lease = held("a.b", Duration::from_secs(30), Instant::now());
        assert!(lease.begin());
        assert!(!lease.begin_release(), "it has begun");
        assert!(lease.begin_settling());
        assert!(!lease.begin_settling());
        assert!(!lease.begin());
    }
}
