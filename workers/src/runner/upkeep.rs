//! What any worker does beside its jobs: bounded sweeps and pruning without a leader, and its counts.

use std::sync::Arc;
use std::time::Instant;

use domain::queue::{PollRequest, PruneStep};
use tokio::time::{sleep, timeout};

use super::config::{ANSWER_LIMIT, BATCH, BLIND_LOOK, FLUSH_INTERVAL, PRUNE_TURN};
use super::core::Core;
use super::outage::Outage;
use crate::seam::{StoreError, Swept};

/// Rescues expired leases and stages due jobs when a poll saw that there are some, and looks by itself while this
/// worker's slots are taken and it does not poll; at once while a sweep stops at its bound. The rarer upkeep now and
/// then.
pub(super) async fn sweep(core: Arc<Core>) {
    let mut outage = Outage::new("sweeping");
    loop {
        let mut wanted = tokio::select! {
            () = core.sweep_wanted.notified() => true,
            () = sleep(BLIND_LOOK / 2) => false,
        };
        loop {
            let now = Instant::now();
            let upkeep = core.rhythm.takes_upkeep(now);
            let blind = core.held.free() == 0 && core.rhythm.is_blind(now);
            if !wanted && !upkeep && !blind {
                break;
            }
            let swept = timeout(ANSWER_LIMIT, async {
                let has_work = wanted || look(&core, now).await?;
                let swept = if has_work { core.store.sweep(BATCH).await? } else { Swept::default() };
                if upkeep {
                    core.store.upkeep().await?;
                    core.prune_wanted.notify_one();
                }
                Ok(swept)
            })
            .await
            .unwrap_or_else(|late| Err(StoreError::Unavailable(late.into())));
            match swept {
                Ok(swept) => {
                    outage.over();
                    note(&core, swept);
                    // What stopped at its bound goes on, however it was begun.
                    wanted = swept.more;
                    if !wanted {
                        break;
                    }
                }
                Err(error) => sleep(outage.failed(&error)).await,
            }
        }
    }
}

/// What a poll would see, where this worker has no slot to poll for: whether the sweeps have work.
async fn look(core: &Core, now: Instant) -> Result<bool, StoreError> {
    let request = PollRequest { limit: 0, ended: &[], look: true, wall_clock: None, turns: None, low_water: None };
    let Some(look) = core.store.poll(&core.registration.spec, &request).await?.look else { return Ok(true) };
    core.rhythm.heard(&look, now);
    Ok(look.batches_due || look.due)
}

fn note(core: &Core, swept: Swept) {
    if swept.rescued + swept.ended > 0 {
        tracing::info!(rescued = swept.rescued, ended = swept.ended, "took jobs from workers that went silent");
        metrics::counter!("leasehold_jobs_rescued_total", "result" => "available").increment(swept.rescued);
        metrics::counter!("leasehold_jobs_rescued_total", "result" => "ended").increment(swept.ended);
    }
    let due = swept.rescued + swept.staged;
    if due > 0 {
        core.wake.notify_one();
        // They may be others' queues and kinds, or more than this worker has slots for.
        core.outbox.add_any(due);
    }
}

/// Prunes when it is this worker's turn, which comes with the upkeep's; beside the sweeps, which must not wait for it.
/// Between two steps it rests for as long as the last one took.
pub(super) async fn prune(core: Arc<Core>) {
    let mut outage = Outage::new("pruning");
    loop {
        core.prune_wanted.notified().await;
        let turn = Instant::now();
        while turn.elapsed() < PRUNE_TURN {
            let began = Instant::now();
            let step = timeout(ANSWER_LIMIT, core.store.prune()).await;
            match step.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into()))) {
                Ok(step) => {
                    outage.over();
                    note_pruned(&step);
                    if !step.more {
                        break;
                    }
                    sleep(began.elapsed()).await;
                }
                Err(error) => {
                    sleep(outage.failed(&error)).await;
                    break;
                }
            }
        }
    }
}

fn note_pruned(step: &PruneStep) {
    for (what, rows) in step.pruned.by_sort() {
        if rows > 0 {
            metrics::counter!("leasehold_pruned_total", "what" => what).increment(rows.unsigned_abs());
        }
    }
    if step.pruned.days > 0 {
        tracing::info!(days = step.pruned.days, "a day of finished jobs left as a whole");
    }
    if step.held {
        tracing::debug!("pruning waits: another session takes a step, or holds what this one needed");
    }
}

/// Writes counts down once a second.
pub(super) async fn flush_counts(core: Arc<Core>) {
    let mut outage = Outage::new("counting");
    loop {
        let pause = match flush_once(&core).await {
            Ok(()) => {
                outage.over();
                FLUSH_INTERVAL
            }
            Err(error) => outage.failed(&error).max(FLUSH_INTERVAL),
        };
        sleep(pause).await;
    }
}

/// Writes down what was counted since the last time; what cannot be written is kept.
///
/// A write whose answer was lost is made again: these are counts for people, and a minute that counts twice once in an
/// outage is better than a row for each job.
pub(super) async fn flush_once(core: &Core) -> Result<(), StoreError> {
    let taken = core.meters.take();
    if taken.is_empty() {
        return Ok(());
    }
    let written = timeout(ANSWER_LIMIT, core.store.add_throughput(&taken.rows())).await;
    let written = written.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into())));
    if written.is_err() {
        taken.give_back();
    }
    written
}
