//! The writes of a worker, by the names under which their refusals are kept.

use serde::{Deserialize, Serialize};

use super::Outcome;

/// What a refused write tried to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Lengthen the lease.
    Renew,
    /// Report progress.
    Progress,
    /// Append a step.
    Step,
    /// Append a log line.
    Log,
    /// Enqueue a child.
    EnqueueChild,
    /// Complete.
    Complete,
    /// Fail.
    Fail,
    /// Snooze.
    Snooze,
    /// Discard.
    Discard,
    /// Acknowledge a cancellation.
    Cancel,
    /// Hand back.
    Release,
    /// Write domain rows under the fence.
    Domain,
}

impl Operation {
    /// As it stands in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Progress => "progress",
            Self::Step => "step",
            Self::Log => "log",
            Self::EnqueueChild => "enqueue_child",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Snooze => "snooze",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
            Self::Release => "release",
            Self::Domain => "domain",
        }
    }
}

impl Outcome {
    /// What recording this outcome is called where it is refused.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Completed { .. } => Operation::Complete,
            Self::Failed { .. } => Operation::Fail,
            Self::Snoozed { .. } => Operation::Snooze,
            Self::Discarded { .. } => Operation::Discard,
            Self::Cancelled { .. } => Operation::Cancel,
            Self::Released => Operation::Release,
        }
    }
}
