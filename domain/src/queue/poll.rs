//! What a worker asks of the queue and is told: its polls, its leases and their renewals.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::clock::Timestamp;
use crate::ids::{BatchId, Kind, QueueName, WorkerId};
use crate::lease::Lease;
use crate::queue::LowWater;

/// What a worker serves.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// The process.
    pub worker: WorkerId,
    /// The queues that it names.
    pub queues: Vec<QueueName>,
    /// The kinds that it can run, each with the life of its leases.
    pub kinds: Vec<(Kind, Duration)>,
}

/// What a worker asks when it polls.
#[derive(Debug, Clone, Copy)]
pub struct PollRequest<'a> {
    /// Jobs that it takes at most; 0 leases nothing.
    pub limit: u16,
    /// Its batches each of whose leases is known to have ended: they are removed.
    pub ended: &'a [BatchId],
    /// Whether to look for work of the sweeps too.
    pub look: bool,
    /// The worker's own clock, to note that it lives and how far its clock is off; `None` notes nothing.
    pub wall_clock: Option<Timestamp>,
    /// What the last poll said about jobs that are leased in turn; `None` leases none of them.
    pub turns: Option<&'a Turns>,
    /// Where its walk of due jobs begins; `None` is the beginning.
    pub low_water: Option<&'a LowWater>,
}

/// What a poll found.
#[derive(Debug, Clone, Default)]
pub struct Polled {
    /// Jobs under fresh leases, in order.
    pub leased: Vec<Leased>,
    /// What it saw beside, where it was asked to look.
    pub look: Option<Look>,
    /// For the next request.
    pub turns: Turns,
    /// It could lease more, and looked at a part of what there is: ask again at once.
    pub more: bool,
    /// It could lease more, and some walk ended before what stands first: the next one should go further
    /// ([`LowWater::walked`]).
    pub short: bool,
    /// Another lease took what some of the jobs that stood first needed: what was leased is not all that stands before the
    /// last of it.
    pub contested: bool,
}

/// Where a worker stands in the turns of concurrency keys. Its own: nothing is written down, and two workers need not
/// agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    /// Whether there is anything to lease in turn.
    pub(crate) wanted: bool,
    /// Whether the starts of some of it may be limited.
    pub(crate) rated: bool,
    /// The key that was served last, by queue.
    pub(crate) after: BTreeMap<QueueName, String>,
    /// The queue that was served last.
    pub(crate) last: Option<QueueName>,
    /// Whether jobs with a key stand before those without one, of the same priority.
    pub(crate) keyed_first: bool,
}

impl Turns {
    /// Whether there are jobs for which the next poll needs this: such that carry a concurrency key, or such of a queue
    /// with a limit.
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Whether a rate may hold for what the next poll leases: a job that is leased has spent its start, whether it begins
    /// or goes back.
    #[must_use]
    pub const fn is_rated(&self) -> bool {
        self.wanted && self.rated
    }

    /// The next poll leases what needs no turn: what others hold up holds up nothing else.
    pub const fn pass_once(&mut self) {
        self.wanted = false;
    }

    /// The key behind which the turn of `queue` goes on; empty at the beginning.
    pub(crate) fn after(&self, queue: &str) -> &str {
        self.after.iter().find(|(name, _)| name.as_str() == queue).map_or("", |(_, key)| key.as_str())
    }

    /// Goes on behind what was leased, in its order; behind the keys at which the look was `cut` where that found nothing
    /// more to lease. Of several cuts of a queue the first counts.
    pub(crate) fn advance(&mut self, leased: &[Leased], cut: &[(QueueName, String)]) {
        for job in leased {
            if let Some(key) = &job.concurrency_key {
                self.after.insert(job.queue.clone(), key.clone());
            }
            self.last = Some(job.queue.clone());
        }
        for (queue, key) in cut.iter().rev() {
            self.after.insert(queue.clone(), key.clone());
        }
        self.keyed_first = !self.keyed_first;
    }
}

/// What a poll sees beside jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// A lease may have expired: [`super::rescue_expired`] has batches to look at. Those of jobs that outlive their first
    /// lease are looked at once in a lease's life, though all of them were renewed.
    pub batches_due: bool,
    /// The time of a job has come: [`super::stage_due`] has work.
    pub due: bool,
    /// Time until the sweeps have work, as far as is known: zero where they have it now, `None` where nothing waits.
    pub next: Option<Duration>,
    /// Live workers that poll for some of the same queues, the asker included; counted up to 1,000.
    pub live: u32,
    /// How many of them come before the asker.
    pub rank: u32,
    /// The database's clock, in milliseconds since 1970.
    pub now_ms: u64,
}

/// A job under a fresh lease.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The right to write.
    pub lease: Lease,
    /// What was leased by the same statement.
    pub batch: BatchId,
    /// Its kind.
    pub kind: Kind,
    /// The queue from which it came.
    pub queue: QueueName,
    /// Its arguments, not yet decoded.
    pub args: Value,
    /// 1 for the first.
    pub attempt: i32,
    /// Failures that end it.
    pub max_attempts: i32,
    /// Leases lost so far.
    pub interruptions: i32,
    /// Run time of this lease.
    pub deadline: Option<Duration>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it was due.
    pub run_at: Timestamp,
    /// −100…100, lower first.
    pub priority: i16,
    /// When the lease began, on the database's clock.
    pub leased_at: Timestamp,
    /// When the lease ends unless renewed, on the database's clock.
    pub expires_at: Timestamp,
    /// The key by which it is limited and takes turns.
    pub concurrency_key: Option<String>,
    /// W3C trace context of the enqueuer.
    pub traceparent: Option<String>,
}

/// What a renewal learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The lease lives on.
    Alive,
    /// The lease lives on, but somebody asks the handler to end.
    CancelRequested {
        /// Why, in the asker's words.
        reason: String,
    },
    /// The lease is the job's, but another session holds its row: not renewed, ask again soon.
    Busy,
    /// The lease is gone.
    Lost,
}
