//! The leases that this process holds: how many may be, when each is due, and what its handler is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::lease::Lease;
use domain::queue::{Leased, policy};
use tokio::sync::Notify;
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

struct Inner {
    leases: HashMap<Lease, Arc<HeldLease>>,
    /// Leases whose handler runs or is about to.
    slots_taken: usize,
    /// When the renewing loop and the stopping loop mean to look next.
    next_renewal: Option<Instant>,
    next_stop: Option<Instant>,
}

/// Every lease that this process holds.
pub(super) struct Held {
    inner: Mutex<Inner>,
    concurrency: usize,
    max_held: usize,
    /// A slot became free.
    pub(super) room: Notify,
    /// A lease is due earlier than its loop means to look.
    pub(super) renewal_moved: Notify,
    pub(super) stop_moved: Notify,
    emptied: Notify,
}

impl Held {
    pub(super) fn new(concurrency: usize, max_held: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                leases: HashMap::with_capacity(max_held),
                slots_taken: 0,
                next_renewal: None,
                next_stop: None,
            }),
            concurrency,
            max_held,
            room: Notify::new(),
            renewal_moved: Notify::new(),
            stop_moved: Notify::new(),
            emptied: Notify::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs may be leased now: free slots, within the bound on leases held at all.
    pub(super) fn free(&self) -> usize {
        let inner = self.lock();
        let slots = self.concurrency.saturating_sub(inner.slots_taken);
        slots.min(self.max_held.saturating_sub(inner.leases.len()))
    }

    pub(super) fn len(&self) -> usize {
        self.lock().leases.len()
    }

    pub(super) fn add(&self, held: &Arc<HeldLease>) {
        let times = held.times();
        let (renewal_moved, stop_moved) = {
            let mut inner = self.lock();
            inner.leases.insert(held.lease(), Arc::clone(held));
            inner.slots_taken += 1;
            (
                inner.next_renewal.is_none_or(|next| times.renew_at < next),
                inner.next_stop.is_none_or(|next| times.stop_at < next),
            )
        };
        if renewal_moved {
            self.renewal_moved.notify_one();
        }
        if stop_moved {
            self.stop_moved.notify_one();
        }
    }

    /// The handler ended: its slot is free, though the lease is still held until the outcome is recorded.
    pub(super) fn free_slot(&self, held: &HeldLease) {
        if held.holds_slot.swap(false, Ordering::SeqCst) {
            self.lock().slots_taken -= 1;
            self.room.notify_one();
        }
    }

    /// The lease is ours no longer.
    pub(super) fn remove(&self, held: &HeldLease) {
        held.phase.store(Phase::Over as u8, Ordering::SeqCst);
        let empty = {
            let mut inner = self.lock();
            if held.holds_slot.swap(false, Ordering::SeqCst) {
                inner.slots_taken -= 1;
            }
            inner.leases.remove(&held.lease());
            inner.leases.is_empty()
        };
        self.room.notify_one();
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Waits until no lease is held.
    pub(super) async fn until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Leases whose handlers have not begun.
    pub(super) fn waiting(&self) -> Vec<Arc<HeldLease>> {
        self.lock().leases.values().filter(|held| held.phase() == Phase::Waiting).cloned().collect()
    }

    /// Leases that are due for renewal, and when the next one is.
    ///
    /// What will be due within a twelfth of its life goes along: leases of one batch stay in one statement.
    pub(super) fn due(&self, now: Instant) -> (Vec<Arc<HeldLease>>, Option<Instant>) {
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        let mut first_due = false;
        let mut inner = self.lock();
        let mut soon = Vec::new();
        for held in inner.leases.values() {
            let at = held.times().renew_at;
            if at <= now {
                first_due = true;
                due.push(Arc::clone(held));
            } else if at <= now + held.life / 12 {
                soon.push((at, Arc::clone(held)));
            } else {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        if first_due {
            due.extend(soon.into_iter().map(|(_, held)| held));
        } else if let Some(at) = soon.iter().map(|(at, _)| *at).min() {
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        inner.next_renewal = next;
        (due, next)
    }

    /// Leases that must not be acted under any longer, and when the next one will be so.
    pub(super) fn expiring(&self, now: Instant) -> (Vec<Arc<HeldLease>>, Option<Instant>) {
        let mut expiring = Vec::new();
        let mut next: Option<Instant> = None;
        let mut inner = self.lock();
        for held in inner.leases.values() {
            if held.stopped.is_cancelled() {
                continue;
            }
            let at = held.times().stop_at;
            if at <= now {
                expiring.push(Arc::clone(held));
            } else {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        inner.next_stop = next;
        (expiring, next)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use domain::clock::Timestamp;
    use domain::ids::{JobId, Kind, QueueName};
    use domain::lease::Fence;

    use super::super::meters::Meters;
    use super::*;

    /// A lease whose request was sent at `sent`.
    pub(in super::super) fn held(kind: &str, life: Duration, sent: Instant) -> Arc<HeldLease> {
        let (kind, queue) = (Kind::new(kind).expect("valid"), QueueName::new("default").expect("valid"));
        let meter = Meters::default().of(&queue, &kind);
        let at = Timestamp::UNIX_EPOCH;
        let leased = Leased {
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
            leased_at: at,
            expires_at: at,
            traceparent: None,
        };
        Arc::new(HeldLease::new(leased, life, sent, meter, tracing::Span::none()))
    }

    #[test]
    fn a_lease_is_renewed_at_a_third_of_its_life_and_stopped_a_margin_before_its_end() {
        let (set, sent, life) = (Held::new(4, 8), Instant::now(), Duration::from_secs(30));
        let lease = held("a.b", life, sent);
        set.add(&lease);

        assert!(set.due(sent + Duration::from_secs(9)).0.is_empty());
        assert_eq!(set.due(sent).1, Some(sent + Duration::from_secs(10)));
        assert_eq!(set.due(sent + Duration::from_secs(10)).0.len(), 1);
        assert!(set.expiring(sent + Duration::from_secs(24)).0.is_empty());
        assert_eq!(set.expiring(sent + Duration::from_secs(25)).0.len(), 1);

        // A renewal counts from its own request, however late its answer was.
        lease.renewed(sent + Duration::from_secs(10));
        assert_eq!(set.expiring(sent).1, Some(sent + Duration::from_secs(35)));
        set.remove(&lease);
        let (expiring, next) = set.expiring(sent + life * 10);
        assert!(expiring.is_empty() && next.is_none());
    }

    #[test]
    fn leases_of_one_batch_are_renewed_together_and_a_short_one_does_not_hurry_the_others() {
        let (set, sent) = (Held::new(4, 8), Instant::now());
        let (long, twin) = (
            held("a.b", Duration::from_secs(30), sent),
            held("a.b", Duration::from_secs(30), sent + Duration::from_secs(1)),
        );
        let short = held("a.c", Duration::from_secs(3), sent);
        for lease in [&long, &twin, &short] {
            set.add(lease);
        }
        let (due, next) = set.due(sent + Duration::from_secs(1));
        assert_eq!(due.iter().map(|held| held.lease()).collect::<Vec<_>>(), [short.lease()]);
        assert_eq!(next, Some(sent + Duration::from_secs(10)));
        short.renewed(sent + Duration::from_secs(60));
        assert_eq!(set.due(sent + Duration::from_secs(10)).0.len(), 2, "the twin goes along");
    }

    #[test]
    fn a_slot_is_free_when_its_handler_ended_and_what_is_held_is_bounded_beside() {
        let (set, now) = (Held::new(2, 3), Instant::now());
        let leases: Vec<_> = (0..3).map(|_| held("a.b", Duration::from_secs(30), now)).collect();
        set.add(&leases[0]);
        set.add(&leases[1]);
        assert_eq!(set.free(), 0);
        set.free_slot(&leases[0]);
        set.free_slot(&leases[0]);
        assert_eq!(set.free(), 1, "a slot is freed once");
        set.add(&leases[2]);
        set.free_slot(&leases[1]);
        assert_eq!(set.free(), 0, "three are held");
        set.remove(&leases[0]);
        assert_eq!(set.free(), 1);
        set.remove(&leases[1]);
        set.remove(&leases[2]);
        assert_eq!((set.free(), set.len()), (2, 0));
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
