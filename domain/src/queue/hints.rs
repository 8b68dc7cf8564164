//! Hints that jobs are due, so that an idle worker looks before its next poll.
//!
//! A hint carries nothing that anybody relies on: lost, doubled, late or wrong, it costs a poll or the wait for one. It is
//! told after the commit, on a connection of its own and never in the transaction that enqueues: there, the notifications
//! of all sessions would stand in one line over each commit's flush.
//!
//! Deliberately absent: a meaning. Who is to have which job is decided by the lease statement alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::QueueName;

/// PostgreSQL's channel on which hints travel.
pub const CHANNEL: &str = "leasehold_due";
/// Shortest time between two hints of one process: what is enqueued meanwhile goes with the next.
pub const COALESCE: Duration = Duration::from_millis(10);
/// Queues that one hint names at most; the jobs of others are told without their queue. With names of 100 bytes the text
/// stays below 4,000 bytes; PostgreSQL takes 8,000.
const MAX_QUEUES: usize = 32;
/// Longest text that is read.
const MAX_TEXT_BYTES: usize = 4000;
/// Workers that look after those whose turn it is, one after the other: some of the first may be busy just then.
const SPARES: u32 = 3;
/// How long each spare waits for those before it.
const SPARE_PAUSE: Duration = Duration::from_millis(3);
/// What stands for any queue: no queue can have this name.
const ANY: &str = "*";

/// So many jobs are due, as somebody believes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    queues: BTreeMap<QueueName, u32>,
    any: u32,
}

impl Hint {
    /// Adds jobs of a queue.
    pub fn add(&mut self, queue: &QueueName, jobs: u32) {
        if let Some(count) = self.queues.get_mut(queue) {
            *count = count.saturating_add(jobs);
        } else if self.queues.len() < MAX_QUEUES {
            self.queues.insert(queue.clone(), jobs);
        } else {
            self.add_any(jobs);
        }
    }

    /// Adds jobs whose queues nobody knows.
    pub fn add_any(&mut self, jobs: u32) {
        self.any = self.any.saturating_add(jobs);
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any == 0 && self.queues.is_empty()
    }

    /// The hint as it travels; `turn` says among equals who looks first, and should be another each time.
    #[must_use]
    pub fn text(&self, turn: u32) -> String {
        let any = (self.any > 0).then(|| format!(" {ANY}={}", self.any));
        let named = self.queues.iter().map(|(queue, jobs)| format!(" {}={jobs}", queue.as_str()));
        std::iter::once(turn.to_string()).chain(named).chain(any).collect()
    }

    /// Reads what travelled; `None` for what is no hint of ours. Anybody who may connect can send anything.
    #[must_use]
    pub fn read(text: &str) -> Option<(u32, Self)> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let mut words = text.split(' ');
        let turn = words.next()?.parse().ok()?;
        let mut hint = Self::default();
        for word in words {
            let (queue, jobs) = word.split_once('=')?;
            let jobs = jobs.parse().ok()?;
            if queue == ANY {
                hint.add_any(jobs);
            } else {
                hint.add(&QueueName::new(queue).ok()?, jobs);
            }
        }
        Some((turn, hint))
    }

    /// Jobs that may be for a worker that serves these queues.
    #[must_use]
    pub fn due_for(&self, served: &[QueueName]) -> u32 {
        let named = served.iter().filter_map(|queue| self.queues.get(queue));
        named.fold(self.any, |sum, jobs| sum.saturating_add(*jobs))
    }
}

impl Hint {
    /// Whether it names a queue of a node that is among these: nobody else serves it, so its turn is now.
    #[must_use]
    pub fn is_for_this_node(&self, served: &[QueueName]) -> bool {
        served.iter().any(|queue| queue.is_of_a_node() && self.queues.contains_key(queue))
    }
}

/// What a worker knows of itself and its peers when it hears a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Jobs that it could lease now.
    pub free: u32,
    /// Live workers that share its queues, itself included.
    pub live: u32,
    /// How many of them come before it.
    pub rank: u32,
}

/// When a worker looks after a hint of so many jobs: at once, after those before it, or (`None`) not for this hint.
///
/// As many workers as the jobs need look at once, as if each had as many free slots as the asker, and a few more one after
/// the other, since the first may be busy just then. The rest leave it to their polls: a hundred idle workers make four
/// statements for one job, not a hundred in one millisecond. `turn` deals the first place out anew each time.
#[must_use]
pub fn wait(turn: u32, jobs: u32, standing: Standing) -> Option<Duration> {
    let Standing { free, live, rank } = standing;
    if jobs == 0 || free == 0 {
        return None;
    }
    let live = u64::from(live.max(1));
    let place = u32::try_from((u64::from(turn) + u64::from(rank)) % live).unwrap_or(u32::MAX);
    let needed = jobs.div_ceil(free);
    let late = place.saturating_sub(needed.saturating_sub(1));
    (late <= SPARES).then(|| SPARE_PAUSE * late)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).expect("a valid name")
    }

    #[test]
    fn a_hint_is_read_as_it_was_told_and_its_text_is_bounded() {
        let mut hint = Hint::default();
        assert!(hint.is_empty());
        hint.add(&queue("mail"), 2);
        hint.add(&queue("mail"), 3);
        hint.add_any(1);
        assert_eq!(hint.text(7), "7 mail=5 *=1");
        assert_eq!(Hint::read("7 mail=5 *=1"), Some((7, hint)));

        let mut long = Hint::default();
        for n in 0..1000 {
            long.add(&queue(&format!("{n:0>100}")), u32::MAX);
        }
        let text = long.text(u32::MAX);
        assert!(text.len() <= MAX_TEXT_BYTES, "{}", text.len());
        assert_eq!(Hint::read(&text), Some((u32::MAX, long.clone())));
        assert_eq!(long.due_for(&[queue("elsewhere")]), u32::MAX, "what found no room is for anybody");
    }

    #[test]
    fn what_is_no_hint_of_ours_is_none() {
        for bad in ["", "x", "1 mail", "1 mail=x", "1 ma/il=1", "1  mail=1", "-1 mail=1", "1 mail=99999999999"] {
            assert_eq!(Hint::read(bad), None, "{bad:?}");
        }
        assert_eq!(Hint::read(&format!("1 {}=1", "a".repeat(5000))), None);
    }

    #[test]
    fn a_hint_is_for_those_who_serve_its_queue() {
        let (_, hint) = Hint::read("0 mail=2 default=1").expect("a hint");
        assert_eq!(hint.due_for(&[queue("mail"), queue("other")]), 2);
        assert_eq!(hint.due_for(&[queue("other")]), 0);
    }

    /// How many of `live` idle workers look after a hint, by their wait.
    fn looks(turn: u32, jobs: u32, free: u32, live: u32) -> Vec<Duration> {
        let mut waits: Vec<_> = (0..live).filter_map(|rank| wait(turn, jobs, Standing { free, live, rank })).collect();
        waits.sort();
        waits
    }

    #[test]
    fn a_hint_for_a_nodes_queue_is_for_that_node() {
        let mut hint = Hint::default();
        hint.add(&queue("node.01a22c3e-8a7e-74ae-8622-37de545cd783"), 1);
        hint.add(&queue("default"), 1);
        let own = [queue("default"), queue("node.01a22c3e-8a7e-74ae-8622-37de545cd783")];
        assert!(hint.is_for_this_node(&own) && !hint.is_for_this_node(&own[..1]));
    }

    #[test]
    fn one_job_wakes_one_worker_at_once_and_three_after_it() {
        for turn in [0, 1, 9, u32::MAX] {
            let all = [0, 3, 6, 9].map(Duration::from_millis);
            assert_eq!(looks(turn, 1, 8, 100), all, "{turn}");
            assert_eq!(looks(turn, 8, 8, 100), all, "one has room for all of them");
            assert_eq!(looks(turn, 1, 1, 1), all[..1]);
            assert_eq!(looks(turn, 1, 1, 2), all[..2]);
        }
        let first =
            |turn| (0..10).find(|&rank| wait(turn, 1, Standing { free: 1, live: 10, rank }) == Some(Duration::ZERO));
        let dealt: std::collections::BTreeSet<_> = (0..10).map(first).collect();
        assert_eq!(dealt.len(), 10, "another one is first each time");
    }

    #[test]
    fn many_jobs_wake_as_many_workers_as_they_need() {
        let at_once = |jobs, free| looks(3, jobs, free, 100).iter().filter(|wait| wait.is_zero()).count();
        assert_eq!((at_once(40, 8), at_once(41, 8), at_once(10_000, 1)), (5, 6, 100));
        assert_eq!(looks(0, 0, 8, 10).len() + looks(0, 5, 0, 10).len(), 0, "no jobs, or no slots");
    }
}
