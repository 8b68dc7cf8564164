//! Where a worker's walk of due jobs begins: behind what it found empty before.
//!
//! A job that was leased leaves an entry in the index behind, until a vacuum may remove it; under a reader that stays for
//! an hour that is for an hour. A walk from the beginning would pass by all of them at every poll. A worker therefore
//! remembers, for each queue, kind and priority, the first job that it leased last, and walks on from there.
//!
//! This costs order, never a job: what comes to stand before the mark, such as a job that another worker gave back, is found
//! by the next walk from the beginning. A job of a better priority is found at once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Leased, WorkerSpec};
use crate::clock::{Timestamp, millis};
use crate::ids::{JobId, Kind, QueueName};

/// What was enqueued within this time before a job that was leased may be committed after it.
const COMMITS_WITHIN: Duration = Duration::from_millis(100);
/// Jobs that wait for longer than this have no neighbours that are still to be committed.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// Priorities of one queue and kind for which a mark is kept.
const MAX_LEVELS: usize = 8;

/// The mark of each priority.
type Levels = BTreeMap<i16, (Timestamp, JobId)>;

/// The marks of one worker; none at the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowWater {
    marks: BTreeMap<QueueName, BTreeMap<Kind, Levels>>,
}

impl LowWater {
    /// Takes over what a poll leased: the first job of each priority is its new mark.
    pub fn note(&mut self, leased: &[Leased]) {
        let mut firsts: BTreeMap<(&QueueName, &Kind, i16), (Timestamp, JobId)> = BTreeMap::new();
        for job in leased.iter().filter(|job| job.concurrency_key.is_none()) {
            let waited = (job.leased_at - job.run_at).to_std().unwrap_or_default();
            let mark = if waited > SETTLED_AFTER {
                (job.run_at, job.lease.job)
            } else {
                (job.run_at - COMMITS_WITHIN, JobId(uuid::Uuid::nil()))
            };
            let first = firsts.entry((&job.queue, &job.kind, job.priority)).or_insert(mark);
            *first = mark.min(*first);
        }
        for ((queue, kind, priority), mark) in firsts {
            let levels = self.marks.entry(queue.clone()).or_default().entry(kind.clone()).or_default();
            if levels.len() < MAX_LEVELS || levels.contains_key(&priority) {
                levels.insert(priority, mark);
            }
        }
    }

    /// The ranges of each queue and kind that are walked: up to the first mark, and from each mark to the next one's
    /// priority.
    pub(super) fn ranges<'a>(&self, worker: &'a WorkerSpec) -> Ranges<'a> {
        let mut ranges = Ranges::default();
        for queue in &worker.queues {
            for (kind, life) in &worker.kinds {
                let levels = self.marks.get(queue).and_then(|kinds| kinds.get(kind));
                let mut from = (i16::MIN, Timestamp::UNIX_EPOCH, uuid::Uuid::nil());
                for (priority, (run_at, id)) in levels.into_iter().flatten() {
                    ranges.push(queue, kind, millis(*life), from, priority.saturating_sub(1));
                    from = (*priority, *run_at, id.0);
                }
                ranges.push(queue, kind, millis(*life), from, i16::MAX);
            }
        }
        ranges
    }
}

/// Ranges in the shape that the statement takes: one element each.
#[derive(Debug, Default)]
pub(super) struct Ranges<'a> {
    pub(super) queues: Vec<&'a str>,
    pub(super) kinds: Vec<&'a str>,
    pub(super) lease_ms: Vec<i64>,
    pub(super) from_priority: Vec<i16>,
    pub(super) from_run_at: Vec<Timestamp>,
    pub(super) from_id: Vec<uuid::Uuid>,
    pub(super) to_priority: Vec<i16>,
}

impl<'a> Ranges<'a> {
    fn push(
        &mut self,
        queue: &'a QueueName,
        kind: &'a Kind,
        lease_ms: i64,
        from: (i16, Timestamp, uuid::Uuid),
        to_priority: i16,
    ) {
        self.queues.push(queue.as_str());
        self.kinds.push(kind.as_str());
        self.lease_ms.push(lease_ms);
        self.from_priority.push(from.0);
        self.from_run_at.push(from.1);
        self.from_id.push(from.2);
        self.to_priority.push(to_priority);
    }
}
