//! What a worker is told, and every bound of the runner.

use std::time::Duration;

use domain::ids::{Kind, QueueName};

/// Which runtime drives the handlers. Both stand behind the same seam and pass the same tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// apalis 1.0, through a thin adapter.
    #[default]
    Apalis,
    /// A plain loop over tasks: the way out, and the measure of what the other adds.
    Plain,
}

/// What a worker serves, and how.
#[derive(Debug, Clone)]
pub struct RunnerConfig {
    /// The queues that it serves; jobs of others are never leased.
    pub queues: Vec<QueueName>,
    /// The kinds that it serves, of those that its registry can run; `None` is all of them.
    pub kinds: Option<Vec<Kind>>,
    /// Jobs that it runs at once, at least 1.
    pub concurrency: u16,
    /// How long its shutdown waits for running jobs.
    pub drain: Duration,
    /// The node whose work it does, if any.
    pub node: Option<String>,
    /// Its machine's name, for people.
    pub host: String,
    /// What drives the handlers.
    pub engine: Engine,
}

impl Default for RunnerConfig {
    fn default() -> Self {
        Self {
            queues: vec![QueueName::new("default").expect("a constant name")],
            kinds: None,
            concurrency: 16,
            drain: Duration::from_secs(20),
            node: None,
            host: String::from("localhost"),
            engine: Engine::default(),
        }
    }
}

/// Polls of one live worker are this far apart; those of many share the interval between them.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The wait of a worker that found nothing right after it found all that it asked for.
pub(super) const LOST_RACE_PAUSE: Duration = Duration::from_millis(4);
/// A walk of due jobs from the very beginning is made again when this many times its own time has passed: under a reader
/// that keeps the entries of finished jobs from being removed it takes long.
pub(super) const WALK_SHARE: u32 = 20;
/// And after this at the latest: what was taken over from the dead may stand there.
pub(super) const WALK_PAUSE_CAP: Duration = Duration::from_secs(5);
/// Statements that a worker makes at once while all keys that each looked at are at their limits; then it waits for its
/// turn, and goes on where it was.
pub(super) const MAX_PARTS: u32 = 16;
/// No worker polls more rarely than this.
pub(super) const POLL_CAP: Duration = Duration::from_secs(3);
/// How long a worker whose slots are taken goes without a look after what the sweeps have to do.
pub(super) const BLIND_LOOK: Duration = Duration::from_millis(600);
/// Rows that one statement leases, renews, settles, rescues or stages at most: the cost of a row grows beyond 750.
pub(super) const BATCH: u16 = 500;
/// Longest time that one turn of pruning goes on, half of it at rest.
pub(super) const PRUNE_TURN: Duration = Duration::from_secs(10);
/// How often the rarer upkeep is done.
pub(super) const UPKEEP_INTERVAL: Duration = Duration::from_secs(30);
/// How long one connection listens, more or less: one that hangs tells nobody that it does.
pub(super) const LISTENER_LIFE: Duration = Duration::from_secs(300);
/// How often counts are written.
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// How often a worker says that it lives.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a busy loop waits for more to go into its next statement: one statement for a hundred jobs costs a
/// twenty-fifth of a hundred statements. A loop that was idle waits for nothing. Hardly a slot is idle meanwhile: while
/// jobs are short, work for longer than this is leased ahead.
pub(super) const LINGER: Duration = Duration::from_millis(5);
/// A loop whose last statement is not older than this is busy.
pub(super) const BUSY: Duration = Duration::from_millis(5);
/// Longest wait for the answer to one statement, on this side: a connection that hangs must not hang its loop.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(40);
/// A group is never settled with less patience than this: a slow database is not a connection that hangs.
pub(super) const SHORTEST_ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait between two tries while the database is away.
pub(super) const OUTAGE_PAUSE_CAP: Duration = Duration::from_secs(5);
/// While jobs are short, a worker leases ahead what it is going to begin within this time: one statement for more of
/// them, and no slot that waits for the next. Longer than leasing, running and recording one part of them takes together
/// where each commit waits milliseconds for its disk, or the worker would wait for its own answers.
pub(super) const AHEAD: Duration = Duration::from_millis(40);
/// Jobs that a worker leases ahead at most.
pub(super) const MAX_AHEAD: usize = 1000;
/// A job that was leased ahead and has not begun by then goes back to the queue: what ran before it is not short.
pub(super) const AHEAD_PATIENCE: Duration = Duration::from_millis(500);
/// Leases that a worker may hold, as a multiple of its concurrency: those whose outcome is being recorded hold no slot.
pub(super) const HELD_FACTOR: usize = 2;
/// Longest error message that is kept, in bytes.
pub(super) const MAX_ERROR_BYTES: usize = 4096;
/// Refused writes that wait to be written down; what comes beyond is only counted in the metric.
pub(super) const EVIDENCE_QUEUE: usize = 1000;
/// How long a worker that ends waits for its last writes.
pub(super) const LAST_WRITES: Duration = Duration::from_secs(5);
/// How long a worker that must stop at once waits to hand its leases back.
pub(super) const STOP_NOW_WRITES: Duration = Duration::from_secs(1);
/// Shortest time between two writes of a job's progress.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
