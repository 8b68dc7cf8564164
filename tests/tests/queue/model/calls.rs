//! Calls that can arrive late, or twice: each is prepared with all that it carries, and made on both sides when it arrives.

use std::time::Duration;

use domain::ids::JobId;
use domain::lease::Lease;
use domain::queue::{self, Error, Fate, Outcome, Renewed, Settlement};
use serde_json::json;
use sqlx::Connection as _;

use super::history::{Player, made_as, same, text};
use super::reference::{LEASE_S, LeaseNo, Refusal};
use super::steps::{Ending, NewRow, Write};

/// A call on its way.
#[derive(Debug, Clone)]
pub enum Call {
    Renew(LeaseNo),
    /// A cursor of its own for each step: the same one again is the same step.
    Record {
        lease: LeaseNo,
        cursor: usize,
    },
    Child {
        lease: LeaseNo,
        id: JobId,
        new: NewRow,
    },
    Settle(Vec<(LeaseNo, Ending)>),
    Cancel(usize),
    Retry(usize),
}

impl Player<'_> {
    /// The call that a write is, where there was a lease to write under.
    pub(super) fn prepare(&self, write: &Write) -> Option<Call> {
        match write {
            Write::Renew { lease } => self.some_lease(*lease).map(Call::Renew),
            Write::Record { lease } => {
                let cursor = self.model.step;
                self.some_lease(*lease).map(|lease| Call::Record { lease, cursor })
            }
            Write::Child { lease, new } => {
                let id = JobId::generate();
                self.some_lease(*lease).map(|lease| Call::Child { lease, id, new: new.clone() })
            }
            Write::Settle(endings) => {
                let mut asked: Vec<(LeaseNo, Ending)> = Vec::new();
                for (n, ending) in endings {
                    if let Some(no) = self.some_lease(*n)
                        && asked.iter().all(|(other, _)| *other != no)
                    {
                        asked.push((no, ending.clone()));
                    }
                }
                Some(Call::Settle(asked))
            }
        }
    }

    /// Makes a call on both sides.
    pub(super) async fn make(&mut self, call: Option<Call>) -> Result<(), String> {
        match &call {
            None => return Ok(()),
            Some(Call::Renew(no)) => {
                let life = Duration::from_secs(LEASE_S.unsigned_abs());
                let told = queue::renew(&mut self.conn, &[(self.leases[*no], life)]).await.map_err(text)?;
                let wanted = match self.model.renew(*no) {
                    None => Renewed::Lost,
                    Some(false) => Renewed::Alive,
                    Some(true) => Renewed::CancelRequested { reason: "asked".to_owned() },
                };
                same("the renewal", &told, &vec![wanted])?;
            }
            Some(Call::Record { lease, cursor }) => {
                let under = self.leases[*lease];
                let done = queue::append_step(&mut self.conn, under, "s", &json!(cursor), &json!({})).await;
                same("the step", &held(done)?.is_some(), &self.model.step(*lease, *cursor))?;
            }
            Some(Call::Child { lease, id, new }) => self.enqueue_child(*lease, *id, new).await?,
            Some(Call::Settle(asked)) => self.settle(asked).await?,
            Some(Call::Cancel(i)) => {
                let done = queue::cancel(&mut self.conn, self.ids[*i], "asked", None).await;
                same("the cancel", &refusal(done)?, &self.model.cancel(*i))?;
            }
            Some(Call::Retry(i)) => {
                let done = queue::retry(&mut self.conn, self.ids[*i], None).await;
                same("the retry", &refusal(done)?, &self.model.retry(*i))?;
            }
        }
        self.last = call;
        Ok(())
    }

    async fn enqueue_child(&mut self, lease: LeaseNo, id: JobId, new: &NewRow) -> Result<(), String> {
        let child = self.asked(new, id).await;
        let made = held(queue::enqueue_child(&mut self.conn, self.leases[lease], &child).await)?;
        let wanted = match self.model.holds(lease) {
            false => None,
            // The same child again is that child, whatever became of it.
            true => match self.ids.iter().position(|known| *known == id) {
                Some(i) => Some(made_as(self.model.rows[i].state, id)),
                None => Some(self.enqueued(new, id)),
            },
        };
        same("the child", &made, &wanted)
    }

    async fn settle(&mut self, asked: &[(LeaseNo, Ending)]) -> Result<(), String> {
        let settlements: Vec<Settlement> =
            asked.iter().map(|(no, e)| Settlement { lease: self.leases[*no], outcome: e.outcome() }).collect();
        let fates = match completions(&settlements) {
            // As a worker does it: what completes goes the short way.
            Some(done) => queue::complete_swiftly(&mut self.conn, &done).await.map_err(text)?,
            None => queue::settle(&mut self.conn, &settlements).await.map_err(text)?,
        };
        let wanted: Vec<Fate> = asked.iter().map(|(no, e)| self.model.settle(*no, e)).collect();
        same("the fates", &fates, &wanted)
    }

    /// The outcome is recorded and not committed when the cancel comes: it waits for the row, and decides by what it then
    /// finds.
    pub(super) async fn cancel_while_settling(&mut self, no: LeaseNo, ending: &Ending) -> Result<(), String> {
        let lease = self.leases[no];
        let (mut settler, mut canceller) = (self.q.conn().await, self.q.conn().await);
        let mut tx = settler.begin().await.map_err(text)?;
        let asked = [Settlement { lease, outcome: ending.outcome() }];
        let fates = queue::settle(&mut tx, &asked).await.map_err(text)?;
        let cancel = tokio::spawn(async move { queue::cancel(&mut canceller, lease.job, "asked", None).await });
        while !cancel.is_finished() && !self.somebody_waits().await? {
            tokio::task::yield_now().await;
        }
        tx.commit().await.map_err(text)?;
        same("the fate", &fates, &vec![self.model.settle(no, ending)])?;
        let told = cancel.await.map_err(text)?;
        let job = self.model.leases[no];
        same("the cancel that waited", &refusal(told)?, &self.model.cancel(job))
    }

    async fn somebody_waits(&mut self) -> Result<bool, String> {
        sqlx::query_scalar(
            "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
        )
        .fetch_one(&mut *self.conn)
        .await
        .map_err(text)
    }
}

/// What was written, or nothing where the lease was lost.
fn held<T>(answer: Result<T, Error>) -> Result<Option<T>, String> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::LeaseLost(_)) => Ok(None),
        Err(other) => Err(text(other)),
    }
}

fn refusal<T>(answer: Result<T, Error>) -> Result<Result<T, Refusal>, String> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Conflict { state, .. }) => Ok(Err(Refusal::Conflict(state))),
        Err(Error::NotFound(_)) => Ok(Err(Refusal::Absent)),
        Err(other) => Err(text(other)),
    }
}

/// What `settlements` complete, where that is all that they do.
fn completions(settlements: &[Settlement]) -> Option<Vec<(Lease, &serde_json::Value)>> {
    settlements
        .iter()
        .map(|settlement| match &settlement.outcome {
            Outcome::Completed { result } => Some((settlement.lease, result)),
            Outcome::Failed { .. }
            | Outcome::Snoozed { .. }
            | Outcome::Discarded { .. }
            | Outcome::Cancelled { .. }
            | Outcome::Released => None,
        })
        .collect()
}
