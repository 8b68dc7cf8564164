//! The model: what each verb should do, in plain Rust over a vector of rows.

use std::collections::BTreeSet;

use domain::queue::policy::CANCEL_GRACE;
use domain::queue::{Cancelled, Fate, JobState, Rescued};

use super::steps::{Ending, NewRow};

/// Life of every lease, in seconds of the model's clock.
pub const LEASE_S: i64 = 60;
/// The wait of a protected job whose handler gave up.
const GAVE_UP_WAIT_S: i64 = 60;

/// A moment: seconds of the model's clock, then the number of the step. The database's clock also runs on by itself, so
/// of two equal moments the one that was written later is later.
pub type At = (i64, usize);

/// A lease, by its place among all leases that were ever given.
pub type LeaseNo = usize;

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub new: NewRow,
    pub state: JobState,
    pub run_at: At,
    pub attempt: i32,
    pub max_attempts: i32,
    pub interruptions: i32,
    pub revision: i64,
    pub fence: Option<LeaseNo>,
    pub expires_s: i64,
    pub cancel_asked_s: Option<i64>,
    pub steps: usize,
    /// Who wrote the last step, and its cursor.
    last_step: Option<(LeaseNo, usize)>,
    /// Leases that settled this job and would be told so again.
    already: BTreeSet<LeaseNo>,
}

/// Why a verb refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    Conflict(JobState),
    Absent,
}

#[derive(Debug, Default)]
pub struct Model {
    pub now_s: i64,
    pub step: usize,
    pub rows: Vec<Row>,
    /// The job of each lease.
    pub leases: Vec<usize>,
}

impl Model {
    fn at(&self, after_s: i64) -> At {
        (self.now_s + after_s, self.step)
    }

    fn holder_of(&self, kind: usize, key: u8) -> Option<usize> {
        self.rows.iter().position(|r| !r.state.is_final() && r.new.kind == kind && r.new.unique == Some(key))
    }

    /// The place of the new row, or the row that carries the key.
    pub fn enqueue(&mut self, new: &NewRow) -> Result<usize, usize> {
        if let Some(holder) = new.unique.and_then(|key| self.holder_of(new.kind, key)) {
            return Err(holder);
        }
        let state = if new.delay_s > 0 { JobState::Scheduled } else { JobState::Available };
        self.rows.push(Row {
            new: new.clone(),
            state,
            run_at: self.at(new.delay_s),
            attempt: 0,
            max_attempts: new.max_attempts,
            interruptions: 0,
            revision: 1,
            fence: None,
            expires_s: 0,
            cancel_asked_s: None,
            steps: 0,
            last_step: None,
            already: BTreeSet::new(),
        });
        Ok(self.rows.len() - 1)
    }

    /// Leases, and gives the rows in the order in which they are answered.
    pub fn lease(&mut self, queues: &[usize], kinds: &[usize], limit: usize) -> Vec<usize> {
        let serves = |r: &Row| queues.contains(&r.new.queue) && kinds.contains(&r.new.kind);
        let mut due: Vec<usize> = self.pick(|r| r.state == JobState::Available && serves(r));
        due.sort_by_key(|&i| (self.rows[i].new.priority, self.rows[i].run_at, i));
        due.truncate(limit);
        for &i in &due {
            self.leases.push(i);
            let row = &mut self.rows[i];
            row.state = JobState::Running;
            row.fence = Some(self.leases.len() - 1);
            row.attempt += 1;
            row.revision += 1;
            row.expires_s = self.now_s + LEASE_S;
        }
        due
    }

    fn pick(&self, wanted: impl Fn(&Row) -> bool) -> Vec<usize> {
        (0..self.rows.len()).filter(|&i| wanted(&self.rows[i])).collect()
    }

    /// Whether a write under this lease is accepted.
    pub fn holds(&self, lease: LeaseNo) -> bool {
        let row = &self.rows[self.leases[lease]];
        row.state == JobState::Running && row.fence == Some(lease)
    }

    /// Renews; what the holder is told: lost, alive, or asked to end.
    pub fn renew(&mut self, lease: LeaseNo) -> Option<bool> {
        let holds = self.holds(lease);
        let expires_s = self.now_s + LEASE_S;
        let row = &mut self.rows[self.leases[lease]];
        holds.then(|| {
            row.expires_s = expires_s;
            row.cancel_asked_s.is_some()
        })
    }

    /// Whether the step is accepted; the last one again is no second one.
    pub fn step(&mut self, lease: LeaseNo, cursor: usize) -> bool {
        let holds = self.holds(lease);
        let row = &mut self.rows[self.leases[lease]];
        if holds && row.last_step.replace((lease, cursor)) != Some((lease, cursor)) {
            row.steps += 1;
        }
        holds
    }

    pub fn settle(&mut self, lease: LeaseNo, ending: &Ending) -> Fate {
        if !self.holds(lease) {
            let told = self.rows[self.leases[lease]].already.contains(&lease);
            return if told { Fate::Already } else { Fate::Lost };
        }
        let (now, gave_up) = (self.at(ending.after_s()), self.at(GAVE_UP_WAIT_S.max(ending.after_s())));
        let row = &mut self.rows[self.leases[lease]];
        let protected = row.new.protected;
        let to = match ending {
            Ending::Complete => JobState::Completed,
            Ending::Cancel => JobState::Cancelled,
            Ending::Discard if !protected => JobState::Discarded,
            Ending::Discard => JobState::Retryable,
            _ if row.cancel_asked_s.is_some() => JobState::Cancelled,
            Ending::Fail { .. } if !protected && row.attempt >= row.max_attempts => JobState::Discarded,
            Ending::Fail { .. } => JobState::Retryable,
            Ending::Snooze { after_s } if *after_s > 0 => JobState::Scheduled,
            Ending::Snooze { .. } | Ending::Release => JobState::Available,
        };
        row.state = to;
        row.revision += 1;
        row.already.insert(lease);
        if !to.is_final() {
            match ending {
                Ending::Snooze { .. } => {
                    row.run_at = now;
                    row.attempt -= 1;
                }
                Ending::Release => row.attempt -= 1,
                Ending::Discard => row.run_at = gave_up,
                Ending::Fail { .. } | Ending::Complete | Ending::Cancel => row.run_at = now,
            }
        }
        Fate::Settled(to)
    }

    pub fn rescue(&mut self, limit: usize) -> Rescued {
        let mut done = Rescued::default();
        let now_s = self.now_s;
        for i in self.pick(|r| r.state == JobState::Running && r.expires_s <= now_s).into_iter().take(limit) {
            let row = &mut self.rows[i];
            row.interruptions += 1;
            row.revision += 1;
            if row.cancel_asked_s.is_some() {
                row.state = JobState::Cancelled;
                done.cancelled += 1;
            } else if row.interruptions >= row.new.max_interruptions && !row.new.protected {
                row.state = JobState::Discarded;
                done.discarded += 1;
            } else {
                row.state = JobState::Available;
                row.attempt -= 1;
                done.again += 1;
            }
        }
        done
    }

    pub fn stage(&mut self, limit: usize) -> u64 {
        let now_s = self.now_s;
        let waits = |r: &Row| matches!(r.state, JobState::Scheduled | JobState::Retryable) && r.run_at.0 <= now_s;
        let mut due = self.pick(waits);
        due.sort_by_key(|&i| (self.rows[i].run_at, i));
        due.truncate(limit);
        for &i in &due {
            self.rows[i].state = JobState::Available;
            self.rows[i].revision += 1;
        }
        due.len() as u64
    }

    pub fn cancel_ignored(&mut self, limit: usize) -> u64 {
        let since_s = self.now_s - i64::try_from(CANCEL_GRACE.as_secs()).expect("a grace of seconds");
        let ignored = self.pick(|r| r.state == JobState::Running && r.cancel_asked_s.is_some_and(|at| at <= since_s));
        let ignored: Vec<usize> = ignored.into_iter().take(limit).collect();
        for &i in &ignored {
            self.rows[i].state = JobState::Cancelled;
            self.rows[i].revision += 1;
        }
        ignored.len() as u64
    }

    pub fn cancel(&mut self, i: usize) -> Result<Cancelled, Refusal> {
        let now_s = self.now_s;
        let row = self.rows.get_mut(i).ok_or(Refusal::Absent)?;
        if row.state.is_final() || row.new.protected {
            return Err(Refusal::Conflict(row.state));
        }
        if row.state == JobState::Running {
            row.revision += i64::from(row.cancel_asked_s.is_none());
            row.cancel_asked_s.get_or_insert(now_s);
            return Ok(Cancelled::Requested);
        }
        row.revision += 1;
        row.state = JobState::Cancelled;
        Ok(Cancelled::AtOnce)
    }

    pub fn retry(&mut self, i: usize) -> Result<(), Refusal> {
        let now = self.at(0);
        let row = self.rows.get(i).ok_or(Refusal::Absent)?;
        let taken = row.new.unique.and_then(|key| self.holder_of(row.new.kind, key)).is_some();
        let row = &mut self.rows[i];
        match row.state {
            JobState::Scheduled | JobState::Retryable => {}
            JobState::Cancelled | JobState::Discarded if !taken => {
                row.interruptions = 0;
                row.cancel_asked_s = None;
            }
            JobState::Available
            | JobState::Running
            | JobState::Completed
            | JobState::Cancelled
            | JobState::Discarded => return Err(Refusal::Conflict(row.state)),
        }
        row.state = JobState::Available;
        row.run_at = now;
        row.revision += 1;
        row.max_attempts = row.max_attempts.max(row.attempt + 1);
        Ok(())
    }
}
