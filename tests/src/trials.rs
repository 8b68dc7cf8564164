//! How often a race that is hoped for, not made, is tried.

use crate::server::variable;

/// Trials in an ordinary run.
const ORDINARY: usize = 50;

/// Trials of one racy case: fifty, or as many as `LEASEHOLD_TRIALS` says (`make soak`: a thousand).
#[must_use]
pub fn trials() -> usize {
    variable("LEASEHOLD_TRIALS").and_then(|n| n.parse().ok()).unwrap_or(ORDINARY)
}

/// Bytes of a large database in an ordinary run.
const BALLAST: u64 = 48 << 20;

/// Bytes of a large database: 48 MiB, or as many MiB as `LEASEHOLD_BALLAST_MIB` says (`make soak`: a gibibyte).
#[must_use]
pub fn ballast() -> u64 {
    variable("LEASEHOLD_BALLAST_MIB").and_then(|n| n.parse::<u64>().ok()).map_or(BALLAST, |mib| mib << 20)
}

/// Chance for one trial: the same in every run, so that what fails, fails again.
#[must_use]
pub fn chance(trial: usize) -> fastrand::Rng {
    fastrand::Rng::with_seed(trial as u64 + 1)
}
