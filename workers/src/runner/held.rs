//! Every lease that this process holds: how many may be, and which are due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use domain::ids::BatchId;
use domain::lease::Lease;
use tokio::sync::Notify;

use super::ahead::Ahead;
use super::lease::{HeldLease, Phase};

struct Inner {
    leases: HashMap<Lease, Arc<HeldLease>>,
    /// Leases whose handler runs or is about to.
    slots_taken: usize,
    /// How many leases of each batch have not ended as far as is known.
    batches: HashMap<BatchId, usize>,
    /// Batches of which every lease is known to have ended, until the database was told.
    ended: Vec<BatchId>,
    ahead: Ahead,
    /// When the renewing loop and the stopping loop mean to look next.
    next_renewal: Option<Instant>,
    next_stop: Option<Instant>,
}

impl Inner {
    fn left_batch(&mut self, batch: BatchId, ended: bool) {
        if !ended {
            self.batches.remove(&batch);
        } else if let Some(left) = self.batches.get_mut(&batch) {
            *left -= 1;
            if *left == 0 {
                self.batches.remove(&batch);
                self.ended.push(batch);
            }
        }
    }
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
                batches: HashMap::new(),
                ended: Vec::new(),
                ahead: Ahead::default(),
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

    /// How many jobs may be leased now: free slots and what is leased ahead, within the bound on leases held at all.
    pub(super) fn free(&self) -> usize {
        let inner = self.lock();
        let slots = (self.concurrency + inner.ahead.jobs()).saturating_sub(inner.slots_taken);
        slots.min((self.max_held + inner.ahead.jobs()).saturating_sub(inner.leases.len()))
    }

    /// Half of what may be leased at all.
    pub(super) fn half(&self) -> usize {
        (self.concurrency + self.lock().ahead.jobs()).div_ceil(2)
    }

    /// Reckons how many jobs to lease ahead.
    pub(super) fn reckon_ahead(&self, now: Instant) {
        self.lock().ahead.reckon(now, self.concurrency);
    }

    /// Starts are limited: what is leased has spent one, so nothing is leased that may go back for want of a slot.
    pub(super) fn lease_nothing_ahead(&self) {
        self.lock().ahead.nothing();
    }

    pub(super) fn len(&self) -> usize {
        self.lock().leases.len()
    }

    /// Takes all leases of one statement at once: none of them may be over before the last is known, or their batch would
    /// count as ended while one of its jobs runs.
    pub(super) fn add_all(&self, leases: &[Arc<HeldLease>]) {
        let (renewal_moved, stop_moved) = {
            let mut inner = self.lock();
            let (next_renewal, next_stop) = (inner.next_renewal, inner.next_stop);
            let (mut renewal_moved, mut stop_moved) = (false, false);
            for held in leases {
                renewal_moved |= next_renewal.is_none_or(|next| held.renew_at() < next);
                stop_moved |= next_stop.is_none_or(|next| held.stop_at() < next);
                inner.leases.insert(held.lease(), Arc::clone(held));
                *inner.batches.entry(held.leased.batch).or_default() += 1;
            }
            inner.slots_taken += leases.len();
            (renewal_moved, stop_moved)
        };
        if renewal_moved {
            self.renewal_moved.notify_one();
        }
        if stop_moved {
            self.stop_moved.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn add(&self, held: &Arc<HeldLease>) {
        self.add_all(std::slice::from_ref(held));
    }

    /// The handler ended: its slot is free, though the lease is still held until the outcome is recorded.
    pub(super) fn free_slot(&self, held: &HeldLease) {
        if held.gives_slot_up() {
            self.lock().slots_taken -= 1;
            self.room.notify_one();
        }
    }

    /// The database said that the lease is ours no longer.
    pub(super) fn remove(&self, held: &HeldLease) {
        self.let_go(held, true);
    }

    /// The lease is acted under no longer, and what became of it is not known: its batch stays until a sweep knows.
    pub(super) fn abandon(&self, held: &HeldLease) {
        self.let_go(held, false);
    }

    fn let_go(&self, held: &HeldLease, ended: bool) {
        held.let_go();
        let empty = {
            let mut inner = self.lock();
            if held.gives_slot_up() {
                inner.slots_taken -= 1;
            }
            if inner.leases.remove(&held.lease()).is_some() {
                if ended {
                    inner.ahead.ended(held.ran_for());
                }
                inner.left_batch(held.leased.batch, ended);
            }
            inner.leases.is_empty()
        };
        self.room.notify_one();
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Batches that the database may forget.
    pub(super) fn ended_batches(&self) -> Vec<BatchId> {
        self.lock().ended.clone()
    }

    /// The database forgot them.
    pub(super) fn batches_removed(&self, removed: &[BatchId]) {
        self.lock().ended.retain(|batch| !removed.contains(batch));
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
            let at = held.renew_at();
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
            let at = held.stop_at();
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
mod tests {
    use std::time::Duration;

    use super::super::config::AHEAD;
    use super::super::lease::tests::held;
    use super::*;

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
    fn what_is_leased_ahead_of_the_slots_goes_when_nothing_ends_and_at_once_where_starts_are_limited() {
        let (set, start) = (Held::new(4, 8), Instant::now());
        assert_eq!((set.free(), set.half()), (4, 2));
        let short = |step| {
            for _ in 0..100 {
                let lease = held("a.b", Duration::from_secs(30), start);
                set.add(&lease);
                lease.ran(Duration::from_micros(10));
                set.remove(&lease);
            }
            set.reckon_ahead(start + AHEAD * step);
        };
        (0..=20).for_each(short);
        assert!((4 + 98..=4 + 100).contains(&set.free()), "{}", set.free());
        set.lease_nothing_ahead();
        assert_eq!((set.free(), set.half()), (4, 2));

        (21..=40).for_each(short);
        assert!(set.free() > 4);
        // Leases of which nothing is known ended in no sense.
        let lost = held("a.b", Duration::from_secs(30), start);
        set.add(&lost);
        set.abandon(&lost);
        (41..60).for_each(|step| set.reckon_ahead(start + AHEAD * step));
        assert_eq!(set.free(), 4);
    }

    #[test]
    fn a_batch_is_told_as_ended_when_each_of_its_leases_is_known_to_have_ended() {
        let (set, now) = (Held::new(8, 16), Instant::now());
        let leases: Vec<_> = (0..4).map(|_| held("a.b", Duration::from_secs(30), now)).collect();
        set.add_all(&leases[..2]);
        set.remove(&leases[0]);
        assert!(set.ended_batches().is_empty(), "one is left");
        set.remove(&leases[1]);
        let ended = set.ended_batches();
        assert_eq!(ended, [leases[0].leased.batch]);
        set.batches_removed(&ended);
        assert!(set.ended_batches().is_empty(), "told once");

        set.add_all(&leases[2..]);
        set.abandon(&leases[2]);
        set.remove(&leases[3]);
        assert!(set.ended_batches().is_empty(), "of one nobody knows: a sweep finds out");
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
}
