//! Where a worker's walk of due jobs begins, behind what it found empty before, and how far it goes.
//!
//! A job that was leased leaves an entry in the index behind, until a vacuum may remove it; under a reader that stays for
//! an hour that is for an hour. A walk from the beginning would pass by all of them at every poll. A worker therefore
//! remembers, for each queue, kind and priority, the first job that it leased last, and walks on from there.
//!
//! This costs order, never a job: what comes to stand before the mark, such as a job that another worker gave back, is found
//! by the next walk from the beginning. A job of a better priority is found at once.
//!
//! A worker walks a range of the index for each of its queues and kinds, and takes the first jobs of all of them together. To
//! read of each as many as it wants in all would cost the more the more queues it has. It reads its even share of each, or
//! twice what the range gave last time, and takes no job that comes behind the last one read of a range that had more: the
//! order stays, and what is missing comes with the next poll, which reads further.

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
/// Fewest jobs that are read of a range.
const MIN_WALK: i64 = 16;
/// How often the walks are doubled at most.
const MAX_DOUBLINGS: u32 = 6;

/// The mark of each priority.
type Levels = BTreeMap<i16, (Timestamp, JobId)>;

/// The marks of one worker; none at the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowWater {
    marks: BTreeMap<QueueName, BTreeMap<Kind, Levels>>,
    /// What each queue and kind gave last time.
    shares: BTreeMap<QueueName, BTreeMap<Kind, i64>>,
    /// How often the walks are doubled, since the last ones were too short.
    doublings: u32,
}

impl LowWater {
    /// Takes over how far the walks went; `short` where more could be leased and stood behind them.
    pub fn walked(&mut self, leased: &[Leased], short: bool) {
        self.doublings = if short { (self.doublings + 1).min(MAX_DOUBLINGS) } else { self.doublings.saturating_sub(1) };
        if short {
            return;
        }
        self.shares.clear();
        for job in leased {
            *self.shares.entry(job.queue.clone()).or_default().entry(job.kind.clone()).or_default() += 1;
        }
    }

    /// The same without its marks: a walk from the very beginning.
    #[must_use]
    pub fn from_the_start(&self) -> Self {
        Self { marks: BTreeMap::new(), shares: self.shares.clone(), doublings: self.doublings }
    }

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
    /// priority. All together they are walked about twice as far as `window`.
    pub(super) fn ranges<'a>(&self, worker: &'a WorkerSpec, window: i64) -> Ranges<'a> {
        let mut ranges = Ranges::default();
        let count = i64::try_from((worker.queues.len() * worker.kinds.len()).max(1)).unwrap_or(i64::MAX);
        let even = (2 * window / count).max(MIN_WALK);
        for queue in &worker.queues {
            for (kind, life) in &worker.kinds {
                let levels = self.marks.get(queue).and_then(|kinds| kinds.get(kind));
                let share = self.shares.get(queue).and_then(|kinds| kinds.get(kind)).copied().unwrap_or_default();
                let walk = ((2 * share).max(even) << self.doublings).min(window);
                let mut from = (i16::MIN, Timestamp::UNIX_EPOCH, uuid::Uuid::nil());
                for (priority, (run_at, id)) in levels.into_iter().flatten() {
                    ranges.push(queue, kind, millis(*life), walk, from, priority.saturating_sub(1));
                    from = (*priority, *run_at, id.0);
                }
                ranges.push(queue, kind, millis(*life), walk, from, i16::MAX);
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
    pub(super) walk: Vec<i64>,
    pub(super) from_priority: Vec<i16>,
    pub(super) from_run_at: Vec<Timestamp>,
    pub(super) from_id: Vec<uuid::Uuid>,
    pub(super) to_priority: Vec<i16>,
}

impl<'a> Ranges<'a> {
    /// Each queue and kind once, walked from the beginning as far as `window`: for callers that remember nothing.
    pub(super) fn whole(worker: &'a WorkerSpec, window: i64) -> Self {
        let mut ranges = LowWater::default().ranges(worker, window);
        ranges.walk.fill(window);
        ranges
    }

    fn push(
        &mut self,
        queue: &'a QueueName,
        kind: &'a Kind,
        lease_ms: i64,
        walk: i64,
        from: (i16, Timestamp, uuid::Uuid),
        to_priority: i16,
    ) {
        self.queues.push(queue.as_str());
        self.kinds.push(kind.as_str());
        self.lease_ms.push(lease_ms);
        self.walk.push(walk);
        self.from_priority.push(from.0);
        self.from_run_at.push(from.1);
        self.from_id.push(from.2);
        self.to_priority.push(to_priority);
    }
}
