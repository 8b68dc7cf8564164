//! Pure decisions of the queue: how long to wait, and what a job may carry.

use std::time::Duration;

use crate::ids::{Kind, QueueName};

/// Largest payload of a job, in bytes of its JSON text.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// Most bytes of one step: its name, and its cursor and evidence as JSON text.
pub const MAX_STEP_BYTES: usize = 64 * 1024;
/// Most bytes of a job's progress, as JSON text.
pub const MAX_PROGRESS_BYTES: usize = 16 * 1024;
/// Most tags of a job, and the longest of each.
pub const MAX_TAGS: usize = 20;
/// Longest tag and longest unique key, in characters.
pub const MAX_KEY_CHARS: usize = 255;
/// Life of a lease where its kind names none.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Run time of one lease where its kind names none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(3600);
/// How long a running job may ignore its cancellation before it is fenced off.
pub const CANCEL_GRACE: Duration = Duration::from_secs(30);
/// How long a worker may be unheard before it counts as silent: three missed beats of ten seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(30);
/// Share of a lease's life that its holder keeps as a margin before the database's expiry.
pub const MARGIN_SHARE: u32 = 6;

/// How the waits between attempts grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait, before jitter.
    pub base: Duration,
    /// The longest wait.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(600) }
    }
}

impl Backoff {
    /// The wait after `attempt` (1 for the first) failed: exponential with full jitter, capped.
    ///
    /// `fraction` in 0.0..1.0 is the jitter. Never below a tenth of a second, so that a failure is no hot loop.
    ///
    /// Source: Brooker, "Exponential backoff and jitter" (full jitter).
    #[must_use]
    pub fn wait(&self, attempt: i32, fraction: f64) -> Duration {
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0).min(30);
        let ceiling = self.base.saturating_mul(1 << doublings).min(self.cap);
        ceiling.mul_f64(fraction.clamp(0.0, 1.0)).max(Duration::from_millis(100))
    }
}

/// What is known of a kind before any job of it exists: defaults, limits and the shape of its arguments.
#[derive(Debug, Clone)]
pub struct KindSpec {
    /// Its name.
    pub kind: Kind,
    /// One sentence for people.
    pub summary: &'static str,
    /// Where its jobs go unless told otherwise.
    pub queue: QueueName,
    /// Life of one lease.
    pub lease: Duration,
    /// Run time of one lease; `None` is an explicit "no limit".
    pub deadline: Option<Duration>,
    /// Failures that end the job.
    pub max_attempts: i32,
    /// Leases lost without an outcome that end the job.
    pub max_interruptions: i32,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Never discarded and not cancelled by the queue's verbs: the domain's own verbs end it.
    pub protected: bool,
    /// Whether callers of the API may enqueue it; others are enqueued by the domain alone.
    pub public: bool,
    /// Whether its handlers may settle inside a transaction of their own: only where every worker that runs it
    /// has the queue's database at hand.
    pub local_db: bool,
    /// How long its finished jobs are kept, however they ended; `None` leaves that to their end.
    pub kept: Option<Duration>,
    /// JSON Schema of the arguments.
    pub schema: serde_json::Value,
}

impl KindSpec {
    /// A kind with every default, whose arguments have the shape of `A`.
    ///
    /// # Panics
    /// When `kind` is no valid name: our own mistake, found by the first test that starts the program.
    #[must_use]
    pub fn new<A: schemars::JsonSchema>(kind: &'static str, summary: &'static str) -> Self {
        Self {
            kind: Kind::new(kind).expect("a kind's constant is a valid name"),
            summary,
            queue: QueueName::new("default").expect("a constant name"),
            lease: DEFAULT_LEASE,
            deadline: Some(DEFAULT_DEADLINE),
            max_attempts: 20,
            max_interruptions: 20,
            backoff: Backoff::default(),
            protected: false,
            public: true,
            local_db: false,
            kept: None,
            schema: schemars::schema_for!(A).to_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_are_never_hot() {
        let policy = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(10) };
        assert_eq!(policy.wait(1, 1.0), Duration::from_secs(1));
        assert_eq!(policy.wait(3, 1.0), Duration::from_secs(4));
        assert_eq!(policy.wait(3, 0.5), Duration::from_secs(2));
        assert_eq!(policy.wait(9, 1.0), Duration::from_secs(10));
        assert_eq!(policy.wait(i32::MAX, 1.0), Duration::from_secs(10));
        assert_eq!(policy.wait(1, 0.0), Duration::from_millis(100));
    }
}
