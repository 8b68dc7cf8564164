//! Counts and times, by queue and kind: in this process for Prometheus, and added up for the database once a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ids::{Kind, QueueName};
use domain::queue::{Enqueued, Fate, JobState, Operation, Outcome};
use metrics::{Counter, Gauge, Histogram};

/// How a lease ended, in the words of the throughput table; `Enqueued` is what handlers enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tally {
    Enqueued,
    Completed,
    Failed,
    Snoozed,
    Discarded,
    Cancelled,
    Released,
}

impl Tally {
    const ALL: [Self; 7] = [
        Self::Enqueued,
        Self::Completed,
        Self::Failed,
        Self::Snoozed,
        Self::Discarded,
        Self::Cancelled,
        Self::Released,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Enqueued => "enqueued",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Snoozed => "snoozed",
            Self::Discarded => "discarded",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
        }
    }

    /// What became of the job counts, not what its handler wished: a last failure is a discard. A lost lease counts as
    /// nothing here: its successor's outcome counts.
    pub(super) const fn of(outcome: &Outcome, fate: Fate) -> Option<Self> {
        match fate {
            Fate::Busy | Fate::Lost => None,
            Fate::Settled(JobState::Completed) => Some(Self::Completed),
            Fate::Settled(JobState::Cancelled) => Some(Self::Cancelled),
            Fate::Settled(JobState::Discarded) => Some(Self::Discarded),
            Fate::Settled(JobState::Retryable) => Some(Self::Failed),
            Fate::Settled(JobState::Scheduled | JobState::Available | JobState::Running) | Fate::Already => {
                Some(match outcome {
                    Outcome::Completed { .. } => Self::Completed,
                    Outcome::Failed { .. } => Self::Failed,
                    Outcome::Snoozed { .. } => Self::Snoozed,
                    Outcome::Discarded { .. } => Self::Discarded,
                    Outcome::Cancelled { .. } => Self::Cancelled,
                    Outcome::Released => Self::Released,
                })
            }
        }
    }
}

/// The counts of one queue and kind. The handles are made once: a name and its labels are not built for every job.
pub(super) struct Meter {
    queue: QueueName,
    kind: Kind,
    pub(super) started: Counter,
    pub(super) running: Gauge,
    pub(super) run_seconds: Histogram,
    pub(super) wait_seconds: Histogram,
    finished: [Counter; Tally::ALL.len()],
    unwritten: [AtomicI64; Tally::ALL.len()],
}

impl Meter {
    fn new(queue: QueueName, kind: Kind) -> Self {
        let labels = [("queue", queue.to_string()), ("kind", kind.to_string())];
        Self {
            started: metrics::counter!("leasehold_jobs_started_total", &labels),
            running: metrics::gauge!("leasehold_jobs_running", &labels),
            run_seconds: metrics::histogram!("leasehold_job_run_seconds", &labels),
            wait_seconds: metrics::histogram!("leasehold_job_wait_seconds", &labels),
            finished: Tally::ALL.map(|tally| {
                let [queue, kind] = labels.clone();
                metrics::counter!(
                    "leasehold_jobs_finished_total",
                    &[queue, kind, ("outcome", tally.as_str().to_owned())]
                )
            }),
            unwritten: Tally::ALL.map(|_| AtomicI64::new(0)),
            queue,
            kind,
        }
    }

    pub(super) fn count(&self, tally: Tally) {
        if tally != Tally::Enqueued {
            self.finished[tally as usize].increment(1);
        }
        self.unwritten[tally as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A refused write.
    pub(super) fn refused(&self, operation: Operation) {
        metrics::counter!(
            "leasehold_fenced_writes_total",
            "operation" => operation.as_str(),
            "kind" => self.kind.to_string(),
            "queue" => self.queue.to_string(),
        )
        .increment(1);
    }
}

/// Counts that are on their way to the database.
pub(super) struct Taken {
    rows: Vec<(Arc<Meter>, Tally, i64)>,
}

impl Taken {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn rows(&self) -> Vec<(String, String, String, i64)> {
        self.rows
            .iter()
            .map(|(meter, tally, total)| {
                (meter.queue.to_string(), meter.kind.to_string(), tally.as_str().to_owned(), *total)
            })
            .collect()
    }

    /// The write failed: the counts wait for the next one.
    pub(super) fn give_back(self) {
        for (meter, tally, total) in self.rows {
            meter.unwritten[tally as usize].fetch_add(total, Ordering::Relaxed);
        }
    }
}

/// Every meter of a worker.
#[derive(Default)]
pub(super) struct Meters {
    meters: Mutex<HashMap<(QueueName, Kind), Arc<Meter>>>,
}

impl Meters {
    pub(super) fn of(&self, queue: &QueueName, kind: &Kind) -> Arc<Meter> {
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(
            meters
                .entry((queue.clone(), kind.clone()))
                .or_insert_with(|| Arc::new(Meter::new(queue.clone(), kind.clone()))),
        )
    }

    /// Counts a child that a handler enqueued.
    pub(super) fn enqueued(&self, queue: &QueueName, kind: &Kind, made: Enqueued) {
        if made.is_new() {
            self.of(queue, kind).count(Tally::Enqueued);
        }
    }

    /// Takes what was counted since the last time.
    pub(super) fn take(&self) -> Taken {
        let meters: Vec<Arc<Meter>> =
            self.meters.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let mut rows = Vec::new();
        for meter in meters {
            for tally in Tally::ALL {
                let total = meter.unwritten[tally as usize].swap(0, Ordering::Relaxed);
                if total != 0 {
                    rows.push((Arc::clone(&meter), tally, total));
                }
            }
        }
        Taken { rows }
    }
}

/// How long one lease statement took.
pub(super) fn lease_took(elapsed: Duration) {
    metrics::histogram!("leasehold_lease_seconds").record(elapsed.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_failure_counts_as_a_discard_and_a_lost_lease_as_nothing() {
        let failed = Outcome::Failed { error: serde_json::Value::Null, after: Duration::ZERO };
        assert_eq!(Tally::of(&failed, Fate::Settled(JobState::Discarded)), Some(Tally::Discarded));
        assert_eq!(Tally::of(&failed, Fate::Settled(JobState::Retryable)), Some(Tally::Failed));
        assert_eq!(Tally::of(&failed, Fate::Lost), None);
        assert_eq!(Tally::of(&Outcome::Released, Fate::Settled(JobState::Available)), Some(Tally::Released));
        assert_eq!(Tally::of(&failed, Fate::Already), Some(Tally::Failed));
    }

    #[test]
    fn counts_that_could_not_be_written_are_kept() {
        let meters = Meters::default();
        let (queue, kind) = (QueueName::new("q").expect("valid"), Kind::new("k").expect("valid"));
        meters.of(&queue, &kind).count(Tally::Completed);
        let taken = meters.take();
        assert_eq!(taken.rows(), [("q".into(), "k".into(), "completed".into(), 1)]);
        assert!(meters.take().is_empty());
        taken.give_back();
        meters.of(&queue, &kind).count(Tally::Completed);
        assert_eq!(meters.take().rows(), [("q".into(), "k".into(), "completed".into(), 2)]);
    }
}
