//! Leasing: what a worker's poll does.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{BatchId, JobId, Kind, QueueName};
use crate::lease::{Fence, Lease};
use crate::queue::low_water::Ranges;
use crate::queue::{Leased, Look, PollRequest, Polled, WorkerSpec};
#[cfg(doc)]
use crate::queue::{LowWater, Turns};

mod in_order;
mod in_turn;
mod tail;

/// As [`poll`], for callers that want no more than jobs.
///
/// # Errors
/// Only the database's: an empty queue is not an error.
pub async fn lease_next(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    limit: u16,
    ended: &[BatchId],
) -> Result<Vec<Leased>, sqlx::Error> {
    let request = PollRequest { limit, ended, look: false, wall_clock: None, turns: None, low_water: None };
    let polled = poll(conn, worker, &request).await?;
    if !polled.turns.is_wanted() || !polled.leased.is_empty() {
        return Ok(polled.leased);
    }
    Ok(poll(conn, worker, &PollRequest { ended: &[], turns: Some(&polled.turns), ..request }).await?.leased)
}

/// Leases up to `limit` available jobs of the worker's queues and kinds: by priority, then age; those that carry a
/// concurrency key in turn by key, within one priority.
///
/// One statement for all queues and kinds. Two callers never receive the same job. Returns 0..=limit jobs, in order; fewer
/// than `limit` does not mean that nothing else is due, since rows locked by others are skipped.
/// The lease's life is counted on the database's clock; the runner stops itself one margin earlier.
///
/// There are two texts of the statement. The short one leases in order, and passes by keyed jobs and queues with a limit;
/// it says so ([`is_wanted`](Turns::is_wanted)) where it saw such work and had room for more, or was asked to look. The long
/// one leases everything. Which one it is, is the caller's to carry: it hands back the [`Turns`] that it got. A limit or a
/// pause holds for every lease that begins after its commit.
///
/// Both walk jobs without a key from where the caller's [`LowWater`] says.
///
/// The same statement removes the batches that `ended`, looks whether there is anything to sweep and tells the worker
/// its rank where it is asked to `look`, and notes that the worker lives where it is given its `wall_clock`: a worker
/// that has nothing to do asks the database one thing, now and then.
///
/// # Errors
/// Only the database's: an empty queue is not an error.
///
/// Source: the materialized CTE stops the planner from locking more than `limit` rows (Oban, `engines/basic.ex`).
pub async fn poll(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    request: &PollRequest<'_>,
) -> Result<Polled, sqlx::Error> {
    let turns = request.turns.filter(|turns| turns.is_wanted());
    let asked = Asked::new(worker, request);
    let rows = match turns {
        None => in_order::lease(conn, worker, request, &asked).await?,
        Some(turns) => in_turn::lease(conn, worker, request, &asked, turns).await?,
    };
    let mut next = request.turns.cloned().unwrap_or_default();
    next.wanted = rows.first().is_some_and(|r| r.in_turn);
    // The short text does not know which of the jobs that it passed by are under a rate.
    next.rated = rows.first().is_some_and(|r| if turns.is_some() { r.rated } else { r.in_turn });
    let look = rows.first().filter(|_| request.look).map(Row::look);
    let contested = rows.first().is_some_and(|r| r.contested);
    let rows_cut = rows.first().is_some_and(|r| r.cut);
    let cut: Vec<(QueueName, String)> = rows
        .first()
        .map(|r| r.cut_queues.iter().cloned().zip(r.cut_keys.iter().cloned()).collect())
        .unwrap_or_default();
    let mut leased =
        rows.into_iter().filter(|row| row.id.is_some()).map(Row::leased).collect::<Result<Vec<Leased>, _>>()?;
    // An update returns its rows in no order of ours. Fences are taken in turn.
    match turns {
        Some(_) => leased.sort_by_key(|job| job.lease.fence),
        None => leased.sort_by_key(|job| (job.priority, job.run_at, job.lease.job)),
    }
    let full = leased.len() >= usize::from(request.limit);
    let short = rows_cut && !full;
    let more = match turns {
        // There was work for the other statement, and room for it.
        None => next.wanted && !full,
        Some(_) => (!cut.is_empty() || contested) && !full,
    };
    if turns.is_some() {
        next.advance(&leased, if full { &[] } else { &cut });
    }
    Ok(Polled { leased, look, turns: next, more: more || short, short, contested })
}

/// The request in the shapes that both statements take.
struct Asked<'a> {
    ranges: Ranges<'a>,
    ended: Vec<i64>,
    limit: i64,
    /// Callers that look at once see the same head of the queue: each looks further than it takes, so that the second
    /// still finds rows that the first did not lock.
    window: i64,
}

impl<'a> Asked<'a> {
    fn new(worker: &'a WorkerSpec, request: &PollRequest<'_>) -> Self {
        let window = if request.limit == 0 { 0 } else { (i64::from(request.limit) * 2).max(32) };
        Self {
            ranges: request
                .low_water
                .map_or_else(|| Ranges::whole(worker, window), |low_water| low_water.ranges(worker, window)),
            ended: request.ended.iter().map(|batch| batch.0).collect(),
            limit: i64::from(request.limit),
            window,
        }
    }
}

/// A leased job, or nothing; what was seen beside stands in each row.
struct Row {
    id: Option<JobId>,
    kind: Option<Kind>,
    queue: Option<QueueName>,
    args: Option<Value>,
    attempt: Option<i32>,
    max_attempts: Option<i32>,
    interruptions: Option<i32>,
    deadline_ms: Option<i64>,
    created_at: Option<Timestamp>,
    run_at: Option<Timestamp>,
    priority: Option<i16>,
    fence: Option<Fence>,
    leased_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    concurrency_key: Option<String>,
    traceparent: Option<String>,
    batch: Option<BatchId>,
    batch_at: Option<Timestamp>,
    due_at: Option<Timestamp>,
    live: i64,
    rank: i64,
    now: Timestamp,
    cut: bool,
    in_turn: bool,
    rated: bool,
    contested: bool,
    cut_queues: Vec<QueueName>,
    cut_keys: Vec<String>,
}

impl Row {
    fn look(&self) -> Look {
        Look {
            batches_due: self.batch_at.is_some_and(|at| at < self.now),
            due: self.due_at.is_some_and(|at| at <= self.now),
            next: [self.batch_at, self.due_at]
                .into_iter()
                .flatten()
                .min()
                .map(|at| (at - self.now).to_std().unwrap_or_default()),
            // Whoever asks lives, though its own row may say so a little later.
            live: u32::try_from(self.live).unwrap_or(u32::MAX).max(1),
            rank: u32::try_from(self.rank).unwrap_or(0),
            now_ms: self.now.timestamp_millis().unsigned_abs(),
        }
    }

    fn leased(self) -> Result<Leased, sqlx::Error> {
        let job = (|| {
            Some(Leased {
                lease: Lease { job: self.id?, fence: self.fence? },
                batch: self.batch?,
                kind: self.kind?,
                queue: self.queue?,
                args: self.args?,
                attempt: self.attempt?,
                max_attempts: self.max_attempts?,
                interruptions: self.interruptions?,
                deadline: self.deadline_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
                created_at: self.created_at?,
                run_at: self.run_at?,
                priority: self.priority?,
                leased_at: self.leased_at?,
                expires_at: self.expires_at?,
                concurrency_key: self.concurrency_key,
                traceparent: self.traceparent,
            })
        })();
        job.ok_or(sqlx::Error::Decode("a leased job lacks a column that is never null".into()))
    }
}
