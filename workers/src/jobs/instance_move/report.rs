//! What a round tells: the job's progress while it runs, one line and the move's status when it is over.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::ids::{Host, MoveId};
use domain::instances::moves::policy::{self, Bearing};
use domain::instances::moves::{Move, Round, RoundEnd, RoundNumbers};
use domain::queue::Progress;
use serde_json::json;

use crate::jobs::halt::obstacle_of_unready;
use crate::jobs::{JobContext, JobError};
use crate::mirror::{NotReady, Observer, Outcome, PassReport, RecordError, RoundProgress};
use crate::runner::Level;

/// Shows one round.
#[derive(Debug)]
pub(super) struct Narrator {
    context: JobContext,
    id: MoveId,
    host: Host,
    number: i32,
    so_far: Mutex<SoFar>,
}

/// What the earlier iterations of the round moved, so that the progress of a round only grows.
#[derive(Debug, Default)]
struct SoFar {
    iteration: u32,
    earlier: u64,
    present: u64,
}

impl SoFar {
    /// Takes note of the present iteration; returns what the earlier ones moved.
    fn turn_to(&mut self, iteration: u32, moved: u64) -> u64 {
        if self.iteration != iteration {
            self.earlier += self.present;
            self.iteration = iteration;
        }
        self.present = moved;
        self.earlier
    }
}

impl Narrator {
    pub(super) fn new(context: JobContext, found: &Move, round: Round) -> Self {
        Self { context, id: found.id, host: found.host.clone(), number: round.number, so_far: Mutex::default() }
    }

    /// One line a round: keys, bytes, differences, time.
    pub(super) async fn round_ended(&self, report: &PassReport, end: &RoundEnd) -> Result<(), JobError> {
        let code = end.obstacle.as_ref().map_or("none", |obstacle| obstacle.code.as_str());
        tracing::info!(
            host = %self.host,
            move.id = %self.id,
            round = self.number,
            outcome = end.outcome,
            obstacle = code,
            source_keys = report.source_keys,
            copied_keys = report.copied,
            copied_bytes = report.copied_bytes,
            deleted_keys = report.deleted,
            differing_keys = report.found.copies + report.found.deletes,
            iterations = report.iterations,
            elapsed_ms = millis(report.elapsed),
            "round ended"
        );
        let line = format!(
            "round {}: {} keys, copied {} ({} bytes), deleted {}, {} differ, {} iterations in {} ms: {}",
            self.number,
            report.source_keys,
            report.copied,
            report.copied_bytes,
            report.deleted,
            report.found.copies + report.found.deletes,
            report.iterations,
            millis(report.elapsed),
            end.obstacle.as_ref().map_or(end.outcome, |obstacle| obstacle.code.as_str()),
        );
        self.context.log(level(end), &line).await
    }

    /// One line a failed round.
    pub(super) async fn round_failed(&self, end: &RoundEnd) -> Result<(), JobError> {
        let Some(obstacle) = &end.obstacle else { return Ok(()) };
        tracing::warn!(
            host = %self.host,
            move.id = %self.id,
            round = self.number,
            code = obstacle.code,
            permanent = obstacle.permanent,
            "round failed: {}",
            obstacle.message
        );
        let line = format!("round {} failed, {}: {}", self.number, obstacle.code, obstacle.message);
        self.context.log(level(end), &line).await
    }
}

fn level(end: &RoundEnd) -> Level {
    match &end.obstacle {
        Some(obstacle) if obstacle.permanent => Level::Error,
        Some(_) if end.bearing == Bearing::Failed => Level::Warn,
        Some(_) | None => Level::Info,
    }
}

#[async_trait]
impl Observer for Narrator {
    async fn round(&self, seen: &RoundProgress) -> Result<(), RecordError> {
        let moved = seen.copied + seen.deleted;
        let earlier = self.so_far.lock().unwrap_or_else(PoisonError::into_inner).turn_to(seen.iteration, moved);
        let progress = Progress {
            done: signed(earlier + moved),
            total: Some(signed(earlier + (seen.found.copies + seen.found.deletes).max(moved))),
            unit: "objects".to_owned(),
            message: format!(
                "round {}, iteration {}: {} of {} copied, {} of {} deleted, {} keys in all",
                self.number,
                seen.iteration,
                seen.copied,
                seen.found.copies,
                seen.deleted,
                seen.found.deletes,
                seen.source_keys,
            ),
            eta_ms: eta(seen),
            detail: json!({
                "round": self.number,
                "iteration": seen.iteration,
                "source_keys": seen.source_keys,
                "copied": seen.copied,
                "copied_bytes": seen.copied_bytes,
                "copy_bytes": seen.found.copy_bytes,
                "deleted": seen.deleted,
                "lost": seen.lost,
                "elapsed_ms": millis(seen.elapsed),
            }),
        };
        match self.context.progress(&progress).await {
            Ok(()) => Ok(()),
            Err(JobError::LeaseLost) => Err(RecordError::LeaseLost),
            Err(error @ (JobError::Retry { .. } | JobError::Discard(_) | JobError::Cancel(_))) => {
                Err(RecordError::Store(Box::new(error)))
            }
        }
    }
}

/// What is left at the speed so far; `None` before anything was copied.
fn eta(seen: &RoundProgress) -> Option<i64> {
    let left = seen.found.copy_bytes.checked_sub(seen.copied_bytes)?;
    if seen.copied_bytes == 0 || seen.finished {
        return None;
    }
    let spent = u128::from(millis(seen.elapsed));
    i64::try_from(spent * u128::from(left) / u128::from(seen.copied_bytes)).ok()
}

/// How a round ended that listed both sides.
pub(super) fn end_of(found: &Move, report: &PassReport) -> RoundEnd {
    let numbers = RoundNumbers {
        iterations: report.iterations,
        source_keys: report.source_keys,
        copied: report.copied,
        copied_bytes: report.copied_bytes,
        deleted: report.deleted,
        lost: report.lost,
        differ_copies: report.found.copies,
        differ_bytes: report.found.copy_bytes,
        differ_deletes: report.found.deletes,
        lag_ms: report.lag.map(millis),
        newest_txid: report.newest.map(|txid| txid.0),
        requests: report.requests.total(),
        elapsed_ms: millis(report.elapsed),
    };
    // No round puts that right, and it is looked at anew before the next one.
    let not_cut = found.status.obstacle.clone().filter(|it| policy::NOT_CUT.contains(&it.code.as_str()));
    let (outcome, numbers, obstacle) = match &report.outcome {
        Outcome::InSync => ("in_sync", Some(numbers), not_cut),
        Outcome::WithinBars => ("within_bars", Some(numbers), not_cut),
        Outcome::NotReady(why) => {
            let obstacle = obstacle_of_unready(why, || {
                format!(
                    "the instance writes faster than a round ends: after {} iterations {} keys ({} bytes) still differ",
                    report.iterations,
                    report.found.copies + report.found.deletes,
                    report.found.copy_bytes
                )
            });
            // Only a busy round listed both sides to the end.
            let numbers = matches!(why, NotReady::Busy).then_some(numbers);
            ("not_ready", numbers, Some(obstacle))
        }
    };
    RoundEnd { outcome, numbers, evidence: json!({}), obstacle, bearing: Bearing::Good }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
