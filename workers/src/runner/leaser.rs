//! The loop that leases jobs: as many as there are free slots, and while jobs are short those that will soon begin; at
//! once while jobs keep coming, and by polls in turn with other workers while none do.
//!
//! Workers that look at once look at the same jobs, and what one of them has locked the others pass by: an empty answer
//! right after a full one is a lost race rather than an empty queue, and is asked again after a few milliseconds.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use domain::entropy;
use domain::queue::{Leased, LowWater, PollRequest, Polled, Turns};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::config::{ANSWER_LIMIT, BATCH, LINGER, LOST_RACE_PAUSE, MAX_PARTS, WALK_PAUSE_CAP, WALK_SHARE};
use super::core::Core;
use super::grip::Grip;
use super::keeper;
use super::lease::HeldLease;
use super::meters;
use super::outage::Outage;
use crate::seam::StoreError;

/// Leases until the worker drains; every job goes to the engine through `jobs`, and waits there for its slot.
pub(super) async fn run(core: Arc<Core>, jobs: mpsc::UnboundedSender<Arc<Grip>>) {
    let mut outage = Outage::new("leasing");
    let mut last_was_full = false;
    let mut turns = Turns::default();
    let mut low_water = LowWater::default();
    let mut from_the_start = Instant::now();
    let (mut woken, mut whole, mut held_up) = (false, false, false);
    let mut parts = 0;
    tokio::select! {
        () = core.registered.cancelled() => {}
        () = core.draining.cancelled() => return,
    }
    loop {
        let free = tokio::select! {
            biased;
            () = core.draining.cancelled() => return,
            free = room(&core) => free,
        };
        if !turns.is_rated() {
            core.held.reckon_ahead(Instant::now());
        }
        let limit = u16::try_from(free).unwrap_or(BATCH).min(BATCH);
        // Before the request: the local deadline counts from here.
        let sent = Instant::now();
        let ended = core.held.ended_batches();
        let wall_clock = core.rhythm.wants_beat(sent).then(keeper::wall_clock);
        let look = core.rhythm.wants_look(sent) || std::mem::take(&mut held_up);
        // What came to stand before the marks is found by a walk from the beginning, as often as its cost allows.
        let marked = !whole && (!look || sent < from_the_start);
        let low_water_now = if marked { Cow::Borrowed(&low_water) } else { Cow::Owned(low_water.from_the_start()) };
        let (turns_now, low_water_now) = (Some(&turns), Some(&*low_water_now));
        let request =
            PollRequest { limit, ended: &ended, look, wall_clock, turns: turns_now, low_water: low_water_now };
        // Not cut short by a drain: a lease that was taken and whose answer was dropped would wait for its expiry.
        let answer = timeout(ANSWER_LIMIT, core.store.poll(&core.registration.spec, &request)).await;
        let pause = match answer.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into()))) {
            Ok(Polled { leased, look, turns: next, more, short, contested }) => {
                outage.over();
                meters::lease_took(sent.elapsed());
                core.held.batches_removed(&ended);
                if wall_clock.is_some() {
                    core.rhythm.beaten(sent);
                }
                if let Some(look) = &look {
                    core.rhythm.heard(look, sent);
                    if look.batches_due || look.due {
                        core.sweep_wanted.notify_one();
                    }
                }
                if !marked {
                    from_the_start = sent + (sent.elapsed() * WALK_SHARE).min(WALK_PAUSE_CAP.max(sent.elapsed() * 2));
                }
                // Somebody told of a job, and it may stand before the marks: one that was taken over, for example.
                whole = woken && leased.is_empty() && marked;
                woken = false;
                low_water.walked(&leased, short);
                if !contested {
                    low_water.note(&leased);
                }
                turns = next;
                if turns.is_rated() {
                    core.held.lease_nothing_ahead();
                }
                parts = if more { parts + 1 } else { 0 };
                let found = leased.len();
                let was_full = std::mem::replace(&mut last_was_full, found >= usize::from(limit));
                let leased: Vec<_> = leased.into_iter().map(|job| Arc::new(hold(&core, job, sent))).collect();
                core.held.add_all(&leased);
                for held in leased {
                    let grip = Grip::new(Arc::clone(&core), held);
                    // A grip that goes nowhere hands its lease back: the worker began to drain meanwhile.
                    if !core.draining.is_cancelled() {
                        let _ = jobs.send(Arc::new(grip));
                    }
                }
                if found > 0 {
                    linger(&core).await;
                    continue;
                }
                // All that it looked at was at a limit: what comes behind may not be.
                if whole || (more && parts < MAX_PARTS) {
                    continue;
                }
                parts = 0;
                match look {
                    _ if was_full => LOST_RACE_PAUSE.mul_f64(0.5 + entropy::fraction()),
                    Some(look) => core.rhythm.until_turn(&look),
                    None => core.rhythm.a_round(Instant::now()),
                }
            }
            // Nothing is away, and nothing happened: what others hold, they hold for a moment, or for as long as a session
            // that hangs is left alone. The rest of the work does not wait for it.
            Err(StoreError::Held(_)) => {
                outage.over();
                turns.pass_once();
                held_up = true;
                LOST_RACE_PAUSE.mul_f64(0.5 + entropy::fraction())
            }
            Err(error) => outage.failed(&error),
        };
        tokio::select! {
            () = core.draining.cancelled() => return,
            () = core.wake.notified() => woken = true,
            // A job that ended may have been at a limit.
            () = core.held.room.notified(), if turns.is_wanted() => {}
            () = sleep(pause) => {}
        }
    }
}

/// Jobs keep coming: the next statement waits a moment until half of what may be leased is free, rather than one.
async fn linger(core: &Core) {
    let half = core.held.half();
    let enough = async {
        loop {
            let freed = core.held.room.notified();
            if core.held.free() >= half {
                return;
            }
            freed.await;
        }
    };
    // Its time being over is as good as enough.
    let _ = timeout(LINGER, enough).await;
}

async fn room(core: &Core) -> usize {
    loop {
        let freed = core.held.room.notified();
        let free = core.held.free();
        if free > 0 {
            return free;
        }
        freed.await;
    }
}

fn hold(core: &Core, leased: Leased, sent: Instant) -> HeldLease {
    let life = core.registry.get(&leased.kind).map_or(domain::queue::policy::DEFAULT_LEASE, |entry| entry.spec.lease);
    let meter = core.meters.of(&leased.queue, &leased.kind);
    let span = tracing::info_span!(
        "job",
        job.id = %leased.lease.job,
        job.kind = %leased.kind,
        job.attempt = leased.attempt,
        lease.fence = leased.lease.fence.0,
        worker.id = %core.registration.spec.worker,
        node.id = core.registration.node.as_deref(),
    );
    HeldLease::new(leased, life, sent, meter, span)
}
