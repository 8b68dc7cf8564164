//! Settling in groups: one statement for all that finished meanwhile; each caller learns the fate of its own.
//!
//! # Retries
//! A failed settle is not a lost lease: it is tried again until the lease's local deadline, which moves on while
//! renewals succeed. Settling is idempotent for one fence, so a try whose answer was lost does no harm. One outcome
//! that the database cannot store stops none of the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::queue::{Fate, JobState, Outcome, Settlement, policy};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::attempt;
use super::config::{self, ANSWER_LIMIT, BUSY, LINGER, SHORTEST_ANSWER_LIMIT};
use super::core::Core;
use super::lease::HeldLease;
use super::meters::Tally;
use super::outage::Outage;
use crate::chain::chain;
use crate::seam::StoreError;

/// Outcomes that one statement records at most.
const BATCH: usize = config::BATCH as usize;

/// One outcome to record.
pub(super) struct Request {
    pub(super) held: Arc<HeldLease>,
    pub(super) outcome: Outcome,
    /// Given up after one try.
    pub(super) once: bool,
    /// Who wants to know; dropped unanswered where the outcome could not be recorded in time.
    pub(super) told: Option<oneshot::Sender<Fate>>,
}

/// A request on its way, apart from what the database is told.
struct Waiting {
    held: Arc<HeldLease>,
    once: bool,
    told: Option<oneshot::Sender<Fate>>,
}

/// Settles until `closing` fires and nothing is left to settle.
pub(super) async fn run(core: Arc<Core>, mut requests: mpsc::UnboundedReceiver<Request>, closing: CancellationToken) {
    let mut outage = Outage::new("settling");
    let mut incoming: Vec<Request> = Vec::with_capacity(BATCH);
    let mut waiting: Vec<Waiting> = Vec::with_capacity(BATCH);
    let mut settlements: Vec<Settlement> = Vec::with_capacity(BATCH);
    let mut last_answer: Option<Instant> = None;
    loop {
        if waiting.is_empty() {
            tokio::select! {
                biased;
                _ = requests.recv_many(&mut incoming, BATCH) => {}
                () = closing.cancelled() => return,
            }
            if last_answer.is_some_and(|at| at.elapsed() < BUSY) {
                linger(&core, &mut requests, &mut incoming).await;
            }
        } else {
            while waiting.len() + incoming.len() < BATCH
                && let Ok(request) = requests.try_recv()
            {
                incoming.push(request);
            }
        }
        for Request { held, outcome, once, told } in incoming.drain(..) {
            settlements.push(Settlement { lease: held.lease(), outcome: storable(outcome) });
            waiting.push(Waiting { held, once, told });
        }
        match answer(&core, &settlements, shortest_margin(&waiting)).await {
            Ok(fates) => {
                outage.over();
                last_answer = Some(Instant::now());
                let answered: Vec<_> = waiting.drain(..).zip(settlements.drain(..)).zip(fates).collect();
                for ((entry, settlement), fate) in answered {
                    if fate == Fate::Busy {
                        waiting.push(entry);
                        settlements.push(settlement);
                    } else {
                        finish(&core, entry, &settlement.outcome, fate);
                    }
                }
                // Rows that other sessions hold: with what comes next, until their leases may have ended.
                give_up_late(&core, &mut waiting, &mut settlements);
            }
            Err(StoreError::Refused(_) | StoreError::LeaseLost(_)) => {
                if let Err(away) = settle_one_by_one(&core, &mut waiting, &mut settlements).await {
                    rest(&core, outage.failed(&away), &mut waiting, &mut settlements).await;
                }
            }
            Err(away @ (StoreError::Unavailable(_) | StoreError::Held(_))) => {
                rest(&core, outage.failed(&away), &mut waiting, &mut settlements).await;
            }
        }
    }
}

/// The database is away: waits for it, but for no lease longer than it lives.
async fn rest(core: &Core, pause: Duration, waiting: &mut Vec<Waiting>, settlements: &mut Vec<Settlement>) {
    give_up_late(core, waiting, settlements);
    if !waiting.is_empty() {
        tokio::time::sleep(pause.min(shortest_margin(waiting))).await;
    }
}

/// Waits a moment for what finishes meanwhile, until that is half of what may be leased: the other half is leased and
/// runs while this one is recorded.
async fn linger(core: &Core, requests: &mut mpsc::UnboundedReceiver<Request>, incoming: &mut Vec<Request>) {
    let more = async {
        while incoming.len() < BATCH.min(core.held.len()).min(core.held.half()) {
            requests.recv_many(incoming, BATCH - incoming.len()).await;
        }
    };
    // Its time being over is as good as more.
    let _ = tokio::time::timeout(LINGER, more).await;
}

/// A connection that hangs is left within `margin`, so that there is time for another try.
async fn answer(core: &Core, settlements: &[Settlement], margin: Duration) -> Result<Vec<Fate>, StoreError> {
    let limit = margin.clamp(SHORTEST_ANSWER_LIMIT, ANSWER_LIMIT);
    match tokio::time::timeout(limit, core.store.settle(settlements)).await {
        Ok(answer) => answer,
        Err(late) => Err(StoreError::Unavailable(late.into())),
    }
}

/// The database took none of the group, for what stands in one of them: each by itself then.
///
/// # Errors
/// The database went away meanwhile; what it has not answered stands in `waiting` and `settlements` again.
async fn settle_one_by_one(
    core: &Core,
    waiting: &mut Vec<Waiting>,
    settlements: &mut Vec<Settlement>,
) -> Result<(), StoreError> {
    let mut away = Ok(());
    for (entry, mut settlement) in waiting.drain(..).zip(settlements.drain(..)).collect::<Vec<_>>() {
        if away.is_err() {
            waiting.push(entry);
            settlements.push(settlement);
            continue;
        }
        let margin = shortest_margin(std::slice::from_ref(&entry));
        let mut fates = answer(core, std::slice::from_ref(&settlement), margin).await;
        if let Err(StoreError::Refused(source)) = &fates {
            let job = settlement.lease.job;
            // What the database says may quote the outcome: it goes to the job, not to the log.
            tracing::error!(job.id = %job, "the database refused an outcome: it is recorded without its text");
            settlement.outcome = without_text(settlement.outcome, &chain(&**source));
            fates = answer(core, std::slice::from_ref(&settlement), margin).await;
        }
        match fates {
            Ok(fates) => match fates.first().copied() {
                Some(Fate::Busy) => {
                    waiting.push(entry);
                    settlements.push(settlement);
                }
                Some(fate) => finish(core, entry, &settlement.outcome, fate),
                None => give_up(core, entry),
            },
            Err(error @ (StoreError::Unavailable(_) | StoreError::Held(_))) => {
                waiting.push(entry);
                settlements.push(settlement);
                away = Err(error);
            }
            Err(StoreError::Refused(_) | StoreError::LeaseLost(_)) => give_up(core, entry),
        }
    }
    away
}

/// The same outcome with a note in the place of what the database refused: a job that is done is not run again for it.
fn without_text(outcome: Outcome, why: &str) -> Outcome {
    let note = |code| attempt::error(code, &format!("the database does not store it: {why}"));
    match outcome {
        Outcome::Completed { .. } => Outcome::Completed { result: note("result_unstorable") },
        Outcome::Failed { after, .. } => Outcome::Failed { error: note("error_unstorable"), after },
        Outcome::Discarded { .. } => Outcome::Discarded { error: note("error_unstorable") },
        Outcome::Cancelled { .. } => {
            Outcome::Cancelled { reason: "a reason that the database does not store".to_owned() }
        }
        same @ (Outcome::Snoozed { .. } | Outcome::Released) => same,
    }
}

/// Gives up those whose leases may have ended: whoever rescues them knows better.
fn give_up_late(core: &Core, waiting: &mut Vec<Waiting>, settlements: &mut Vec<Settlement>) {
    let now = Instant::now();
    for (entry, settlement) in waiting.drain(..).zip(settlements.drain(..)).collect::<Vec<_>>() {
        if entry.once || entry.held.stop_at() <= now {
            give_up(core, entry);
        } else {
            waiting.push(entry);
            settlements.push(settlement);
        }
    }
}

fn give_up(core: &Core, entry: Waiting) {
    let _entered = entry.held.span.enter();
    tracing::warn!("the outcome could not be recorded before the lease ended: the job will run again");
    core.held.abandon(&entry.held);
}

/// Time until the first of these leases is given up, so that it gets its last try.
fn shortest_margin(waiting: &[Waiting]) -> Duration {
    let now = Instant::now();
    let first = waiting.iter().map(|entry| entry.held.stop_at().saturating_duration_since(now)).min();
    first.unwrap_or_default().max(Duration::from_millis(10))
}

fn finish(core: &Core, entry: Waiting, outcome: &Outcome, fate: Fate) {
    let held = &entry.held;
    // Recorded before means here: what the handler recorded itself, whatever it returned afterwards.
    let inside = held.inside().filter(|_| fate == Fate::Already);
    let outcome = inside.as_ref().unwrap_or(outcome);
    // First ours no longer, then told: whoever was told may look.
    core.held.remove(held);
    if fate == Fate::Settled(JobState::Available) {
        core.outbox.add(&held.leased.queue, 1);
    }
    if let Some(tally) = Tally::of(outcome, fate) {
        held.meter.count(tally);
        let _entered = held.span.enter();
        report(outcome, fate, tally);
    } else {
        core.refused(held, outcome.operation());
    }
    if let Some(told) = entry.told {
        // Nobody waits where the engine was dropped meanwhile.
        let _ = told.send(fate);
    }
}

/// One line per change of state, without payloads.
fn report(outcome: &Outcome, fate: Fate, tally: Tally) {
    let state = match fate {
        Fate::Settled(state) => state.as_str(),
        Fate::Already => "as recorded before",
        Fate::Busy => "held by another session",
        Fate::Lost => "lost",
    };
    let problem = match outcome {
        Outcome::Failed { error, .. } | Outcome::Discarded { error } => Some(error),
        Outcome::Completed { .. } | Outcome::Snoozed { .. } | Outcome::Cancelled { .. } | Outcome::Released => None,
    };
    match problem {
        None => tracing::info!(state, outcome = tally.as_str(), "job settled"),
        Some(error) => {
            // The message stays with the job: it may quote what the job is about.
            let code = error["code"].as_str();
            if fate == Fate::Settled(JobState::Discarded) {
                tracing::error!(state, outcome = tally.as_str(), code, "job ended without success");
            } else {
                tracing::warn!(state, outcome = tally.as_str(), code, "job failed");
            }
        }
    }
}

/// A result beyond the bound of a payload is not kept; that it was there is.
fn storable(outcome: Outcome) -> Outcome {
    let Outcome::Completed { result } = outcome else { return outcome };
    // Most results are small; only what can be large is measured.
    let size_bytes = match &result {
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => 0,
        serde_json::Value::String(_) | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            result.to_string().len()
        }
    };
    if size_bytes <= policy::MAX_PAYLOAD_BYTES {
        return Outcome::Completed { result };
    }
    let note = serde_json::json!({
        "code": "result_too_large",
        "size_bytes": size_bytes,
        "limit_bytes": policy::MAX_PAYLOAD_BYTES,
    });
    Outcome::Completed { result: note }
}
