//! One line when the database goes away, one when it is back, and pauses in between that grow.

use std::time::Duration;

use domain::entropy;

use super::config::OUTAGE_PAUSE_CAP;
use crate::chain::chain;

/// What one loop knows of the database's absence.
#[derive(Debug)]
pub(super) struct Outage {
    loop_name: &'static str,
    failures: u32,
}

impl Outage {
    pub(super) const fn new(loop_name: &'static str) -> Self {
        Self { loop_name, failures: 0 }
    }

    /// Notes a failure; returns how long to wait before the next try.
    pub(super) fn failed(&mut self, error: &(dyn std::error::Error + 'static)) -> Duration {
        if self.failures == 0 {
            tracing::warn!(part = self.loop_name, error = %chain(error), "the queue does not answer: trying again until it does");
        }
        self.failures = self.failures.saturating_add(1);
        pause(self.failures)
    }

    /// As [`Self::failed`], for what was told already.
    pub(super) fn failed_softly(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        pause(self.failures)
    }

    /// Notes an answer.
    pub(super) fn over(&mut self) {
        if self.failures > 0 {
            tracing::info!(part = self.loop_name, tries = self.failures, "the queue answers again");
            self.failures = 0;
        }
    }
}

/// The wait after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    jittered(failures, entropy::fraction())
}

/// Doubles from 100 ms to the cap; between half and all of it.
fn jittered(failures: u32, fraction: f64) -> Duration {
    let ceiling = Duration::from_millis(50).saturating_mul(1 << failures.min(10)).min(OUTAGE_PAUSE_CAP);
    ceiling.mul_f64(0.5 + fraction / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_are_never_hot() {
        assert_eq!(jittered(1, 1.0), Duration::from_millis(100));
        assert!(jittered(1, 0.0) >= Duration::from_millis(50));
        assert_eq!(jittered(100, 1.0), OUTAGE_PAUSE_CAP);
    }
}
