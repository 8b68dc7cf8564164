//! What a pass shows while it runs.

use std::time::Duration;

use async_trait::async_trait;
use domain::instances::plan::Differences;

use super::RecordError;

/// Where one round of a pass stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundProgress {
    /// From 1 within the pass.
    pub iteration: u32,
    /// What the round's listing found.
    pub found: Differences,
    /// Objects of the source that take part.
    pub source_keys: u64,
    /// Objects copied so far.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Objects deleted at the target so far.
    pub deleted: u64,
    /// Objects that vanished or changed before their turn.
    pub lost: u64,
    /// Since the round's listing began.
    pub elapsed: Duration,
    /// Whether the round is over.
    pub finished: bool,
}

/// Whoever shows progress. Called when a round has listed, every two seconds while it copies, and when it is over.
#[async_trait]
pub trait Observer: Send + Sync {
    /// Takes note. An error ends the pass: this is also how a lost lease is noticed early.
    async fn round(&self, progress: &RoundProgress) -> Result<(), RecordError>;
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

#[async_trait]
impl Observer for Unobserved {
    async fn round(&self, _progress: &RoundProgress) -> Result<(), RecordError> {
        Ok(())
    }
}
