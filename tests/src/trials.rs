//! How often a race that is hoped for, not made, is tried.

use crate::server::variable;

/// Trials in an ordinary run.
const ORDINARY: usize = 50;

/// Trials of one racy case: fifty, or as many as `LEASEHOLD_TRIALS` says (`make soak`: a thousand).
#[must_use]
pub fn trials() -> usize {
    variable("LEASEHOLD_TRIALS").and_then(|n| n.parse().ok()).unwrap_or(ORDINARY)
}

/// Chance for one trial: the same in every run, so that what fails, fails again.
#[must_use]
pub fn chance(trial: usize) -> fastrand::Rng {
    fastrand::Rng::with_seed(trial as u64 + 1)
}
