//! What holds jobs of a queue or a kind back by an operator's will: limits and pauses.

use std::time::Duration;

use super::Error;
use crate::clock::Timestamp;
use crate::ids::{IdentityId, Kind, QueueName};

/// The limits of one queue; one that is absent does not hold.
///
/// They count on all workers together and are exact: a place under a limit belongs to a live lease, so a worker that dies
/// keeps it until its lease is taken over and no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Jobs of the queue that run at once, 1…10,000.
    pub running: Option<u16>,
    /// Jobs of each concurrency key that run at once, 1…1,000.
    pub running_per_key: Option<u16>,
    /// Jobs of each concurrency key that start within any such span.
    pub starts_per_key: Option<Rate>,
}

/// So many within any span of this length: a sliding window, so never more, wherever the span begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many, 1…1,000.
    pub starts: u16,
    /// The span, 1 s to 1 day, in whole seconds.
    pub span: Duration,
}

impl Limits {
    /// Most jobs of a queue that a limit may let run at once.
    pub const MAX_RUNNING: u16 = 10_000;
    /// Most jobs of a key that a limit may let run at once, or start within a span.
    pub const MAX_PER_KEY: u16 = 1000;

    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let within = |field, value: Option<u16>, most: u16| match value {
            Some(n) if n == 0 || n > most => Err(Error::Invalid {
                field,
                rule: format!("must be between 1 and {most}; to let none run, pause the queue"),
            }),
            Some(_) | None => Ok(()),
        };
        within("running", self.running, Self::MAX_RUNNING)?;
        within("running_per_key", self.running_per_key, Self::MAX_PER_KEY)?;
        within("starts_per_key", self.starts_per_key.map(|rate| rate.starts), Self::MAX_PER_KEY)?;
        let spans = Duration::from_secs(1)..=Duration::from_secs(86_400);
        let whole = |span: Duration| span.subsec_nanos() == 0;
        if self.starts_per_key.is_some_and(|rate| !spans.contains(&rate.span) || !whole(rate.span)) {
            let rule = "the span must be between 1 second and 1 day, in whole seconds".to_owned();
            return Err(Error::Invalid { field: "starts_per_key", rule });
        }
        Ok(())
    }
}

impl Limits {
    /// Whether none of them holds.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The limits of a queue, as they were set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsView {
    /// The queue.
    pub queue: QueueName,
    /// What holds.
    pub limits: Limits,
    /// Counts the changes; 0 where nobody set any.
    pub revision: i64,
    /// Who set them last; `None` for the program itself.
    pub set_by: Option<IdentityId>,
    /// That identity's name.
    pub set_by_name: Option<String>,
    /// Why.
    pub reason: String,
    /// When.
    pub set_at: Option<Timestamp>,
}

/// What is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paused {
    /// A queue, with all of its kinds.
    Queue(QueueName),
    /// A kind, on all queues.
    Kind(Kind),
}

impl Paused {
    /// `queue` or `kind`.
    #[must_use]
    pub const fn scope(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Kind(_) => "kind",
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) => name.as_str(),
            Self::Kind(name) => name.as_str(),
        }
    }
}

/// A pause: jobs that run go on, no other begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// `queue` or `kind`.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// Who paused it; `None` for the program itself.
    pub paused_by: Option<IdentityId>,
    /// That identity's name.
    pub paused_by_name: Option<String>,
    /// Why.
    pub reason: String,
    /// Since when.
    pub paused_at: Timestamp,
}
