//! What pruning took, and what it would take.

use chrono::NaiveDate;

use super::JobState;

/// Finished jobs of one day, one end and one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FinishedJobs {
    /// The day in UTC on which they ended; `None` for rows without a partition of their own.
    pub day: Option<NaiveDate>,
    /// How they ended.
    pub state: JobState,
    /// Their kind.
    pub kind: String,
    /// How many.
    pub rows: i64,
}

/// What one or more steps removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Finished jobs, at most one entry for a day, an end and a kind, in that order.
    pub jobs: Vec<FinishedJobs>,
    /// Attempts of such jobs.
    pub attempts: i64,
    /// Steps of such jobs.
    pub steps: i64,
    /// Log lines of such jobs.
    pub log_lines: i64,
    /// Refused writes, of such jobs and old ones.
    pub refused_writes: i64,
    /// Days whose partition was taken away as a whole.
    pub days: i64,
    /// Workers that were last heard long ago.
    pub workers: i64,
    /// Counts of old minutes.
    pub throughput: i64,
}

impl Pruned {
    /// Adds what another step removed.
    pub fn add(&mut self, other: Self) {
        for jobs in other.jobs {
            let same = |it: &&mut FinishedJobs| (it.day, it.state, &it.kind) == (jobs.day, jobs.state, &jobs.kind);
            match self.jobs.iter_mut().find(same) {
                Some(known) => known.rows += jobs.rows,
                None => self.jobs.push(jobs),
            }
        }
        self.jobs.sort();
        self.attempts += other.attempts;
        self.steps += other.steps;
        self.log_lines += other.log_lines;
        self.refused_writes += other.refused_writes;
        self.days += other.days;
        self.workers += other.workers;
        self.throughput += other.throughput;
    }

    /// How much of each sort, by its name in metrics.
    #[must_use]
    pub fn by_sort(&self) -> [(&'static str, i64); 8] {
        [
            ("jobs", self.jobs.iter().map(|it| it.rows).sum()),
            ("attempts", self.attempts),
            ("steps", self.steps),
            ("log_lines", self.log_lines),
            ("refused_writes", self.refused_writes),
            ("days", self.days),
            ("workers", self.workers),
            ("throughput", self.throughput),
        ]
    }
}

/// What one step of pruning came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PruneStep {
    /// What it removed.
    pub pruned: Pruned,
    /// Whether more is to be done at once.
    pub more: bool,
    /// Another session takes a step at this moment, or holds a row or a table that this one needed: later.
    pub held: bool,
}

/// What pruning would remove now. Counts stop at [`Prunable::COUNT_LIMIT`] for each day and each other sort.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prunable {
    /// Finished jobs, by day, end and kind.
    pub jobs: Vec<FinishedJobs>,
    /// Days of which only the first [`Prunable::COUNT_LIMIT`] rows were looked at: there may be more; `None` is the rows
    /// without a partition of their own.
    pub beyond: Vec<Option<NaiveDate>>,
    /// Workers that were last heard long ago.
    pub workers: i64,
    /// Counts of old minutes.
    pub throughput: i64,
    /// Refused writes that are old, those apart that go with their jobs.
    pub refused_writes: i64,
}

impl Prunable {
    /// Rows that are looked at for one count.
    pub const COUNT_LIMIT: i64 = 100_000;
}
