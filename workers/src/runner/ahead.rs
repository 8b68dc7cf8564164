//! How many jobs a worker leases beyond its slots: while jobs are short, those that it is going to begin at once.

use std::time::{Duration, Instant};

use super::config::{AHEAD, MAX_AHEAD};

/// What is leased ahead, and what that is reckoned from.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    jobs: usize,
    /// Leases that ended since the last reckoning.
    ended: usize,
    /// Those of them whose handler ran, and how long they ran together.
    ran: u32,
    ran_for: Duration,
    /// The mean of the last for which there was one.
    run: Option<Duration>,
    reckoned_at: Option<Instant>,
}

impl Ahead {
    /// Jobs that may be leased beyond the slots.
    pub(super) const fn jobs(&self) -> usize {
        self.jobs
    }

    /// A lease ended; its handler ran for so long, if it ran.
    pub(super) fn ended(&mut self, ran: Option<Duration>) {
        self.ended += 1;
        if let Some(time) = ran {
            self.ran += 1;
            self.ran_for += time;
        }
    }

    /// Nothing is leased ahead until the next reckoning.
    pub(super) const fn nothing(&mut self) {
        self.jobs = 0;
    }

    /// Reckons anew: as many as ended in such a time since the last reckoning, and no more than `slots` can run in it. Many
    /// long jobs may end in one moment; that does not make them short.
    ///
    /// Ended, not run: while outcomes wait to be recorded, nothing is leased ahead.
    pub(super) fn reckon(&mut self, now: Instant, slots: usize) {
        let (ended, ran, ran_for) = (self.ended, self.ran, self.ran_for);
        (self.ended, self.ran, self.ran_for) = (0, 0, Duration::ZERO);
        self.run = ran_for.checked_div(ran).or(self.run);
        let Some(then) = self.reckoned_at.replace(now) else { return };
        let within_ahead = |jobs: usize, time: Duration| {
            let jobs = jobs as u128 * AHEAD.as_micros() / time.as_micros().max(1);
            usize::try_from(jobs).unwrap_or(MAX_AHEAD).min(MAX_AHEAD)
        };
        let room = self.run.map_or(0, |run| within_ahead(slots, run));
        let soon = within_ahead(ended, now.duration_since(then)).min(room);
        // Half of the old, half of the new; what rounds down to nothing was no haste.
        self.jobs = self.jobs.midpoint(soon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 50;

    /// What is leased ahead when so many jobs end every `window`, each after `run`.
    fn settled(ended: usize, run: Duration, window: Duration) -> usize {
        let (mut ahead, start) = (Ahead::default(), Instant::now());
        ahead.reckon(start, SLOTS);
        for step in 1..=20 {
            (0..ended).for_each(|_| ahead.ended(Some(run)));
            ahead.reckon(start + window * step, SLOTS);
        }
        let jobs = ahead.jobs();
        ahead.nothing();
        assert_eq!(ahead.jobs(), 0);
        jobs
    }

    #[test]
    fn jobs_are_leased_ahead_as_fast_as_leases_end() {
        let short = Duration::from_micros(10);
        assert!((98..=100).contains(&settled(100, short, AHEAD)));
        assert!((198..=200).contains(&settled(100, short, AHEAD / 2)));
        assert!((MAX_AHEAD - 2..=MAX_AHEAD).contains(&settled(100 * MAX_AHEAD, short, AHEAD)), "so many at most");
        assert_eq!(settled(0, short, AHEAD), 0, "nothing ends: nothing is leased ahead");
    }

    #[test]
    fn long_jobs_that_end_in_one_moment_are_not_taken_for_short_ones() {
        let long = Duration::from_secs(2);
        assert!(settled(SLOTS, long, Duration::from_millis(1)) <= 1);
        assert!(settled(SLOTS, AHEAD, Duration::from_millis(1)) <= SLOTS, "what the slots run in that time");
    }
}
