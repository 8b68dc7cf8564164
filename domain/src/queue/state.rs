//! The states of a job and every edge between them.

use serde::{Deserialize, Serialize};

/// Where a job stands. The first four are live, the last three final.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum JobState {
    /// Waits for its `run_at`.
    Scheduled,
    /// Due; whoever serves its queue and kind may lease it.
    Available,
    /// Leased.
    Running,
    /// Failed; waits for its next attempt.
    Retryable,
    /// Done.
    Completed,
    /// Ended on request.
    Cancelled,
    /// Ended without success: its attempts or its interruptions are spent, or its handler gave up.
    Discarded,
}

impl JobState {
    /// Every state, in the order of a job's life.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Available,
        Self::Running,
        Self::Retryable,
        Self::Completed,
        Self::Cancelled,
        Self::Discarded,
    ];

    /// The legal former states: what the SQL guards are held against.
    #[must_use]
    pub const fn entered_from(self) -> &'static [Self] {
        use JobState::{Available, Cancelled, Completed, Discarded, Retryable, Running, Scheduled};
        match self {
            // A snooze; otherwise only by enqueueing.
            Scheduled => &[Running],
            // Due, handed back, rescued, or an operator's retry.
            Available => &[Scheduled, Retryable, Running, Cancelled, Discarded],
            Running => &[Available],
            Retryable => &[Running],
            Completed => &[Running],
            Cancelled => &[Scheduled, Available, Running, Retryable],
            Discarded => &[Running],
        }
    }

    /// Whether the job's story is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Cancelled | Self::Discarded => true,
            Self::Scheduled | Self::Available | Self::Running | Self::Retryable => false,
        }
    }

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Available => "available",
            Self::Running => "running",
            Self::Retryable => "retryable",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
        }
    }

    /// Reads a state; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_operator_brings_a_final_job_back_and_a_completed_one_never() {
        for state in JobState::ALL {
            let from_final: Vec<_> = state.entered_from().iter().filter(|s| s.is_final()).collect();
            if state == JobState::Available {
                assert_eq!(from_final, [&JobState::Cancelled, &JobState::Discarded]);
            } else {
                assert!(from_final.is_empty(), "{state}");
            }
        }
    }
}
