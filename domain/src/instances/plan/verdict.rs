//! What one fresh listing, and the pass that made it, mean for the move.

use std::time::Duration;

/// What a complete listing of both sides found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Differences {
    /// Keys that the source holds and the target provably does not.
    pub copies: u64,
    /// Their bytes.
    pub copy_bytes: u64,
    /// Keys that the target holds and the source does not.
    pub deletes: u64,
}

impl Differences {
    /// Whether both sides are provably equal.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.copies == 0 && self.deletes == 0
    }
}

/// The opt-in bars of a busy instance. Both off by default: only zero differences promote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bars {
    /// Largest number of bytes that the last round may have had to copy; 0 is off. At most [`Bars::MAX_DELTA_BYTES`].
    pub ready_max_delta_bytes: u64,
    /// Longest time that the staging may be behind the source; `None` is off.
    pub ready_max_lag: Option<Duration>,
}

impl Bars {
    /// The highest bar that anybody may set: 1 GiB.
    pub const MAX_DELTA_BYTES: u64 = 1 << 30;

    const fn is_off(self) -> bool {
        self.ready_max_delta_bytes == 0 && self.ready_max_lag.is_none()
    }
}

/// The last round of a pass that copied and deleted everything it had found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCopy {
    /// What it had found, and therefore moved.
    pub moved: Differences,
    /// Time since the beginning of its listing: the staging is at most this far behind the source.
    pub lag: Duration,
}

/// What a pass means for the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundVerdict {
    /// A fresh listing found zero differences (M-057).
    InSync,
    /// Never zero, but within the bars that somebody set.
    WithinBars,
    /// Never zero: the source is busier than the pass.
    Busy,
}

/// Judges the end of a pass: its last complete listing, and its last complete round.
///
/// Every bar that is set must hold. Without bars only zero differences are in sync.
#[must_use]
pub fn judge(found: Differences, last: Option<LastCopy>, bars: Bars) -> RoundVerdict {
    if found.is_zero() {
        return RoundVerdict::InSync;
    }
    let within = !bars.is_off()
        && last.is_some_and(|last| {
            (bars.ready_max_delta_bytes == 0
                || last.moved.copy_bytes <= bars.ready_max_delta_bytes.min(Bars::MAX_DELTA_BYTES))
                && bars.ready_max_lag.is_none_or(|max| last.lag <= max)
        });
    if within { RoundVerdict::WithinBars } else { RoundVerdict::Busy }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Differences = Differences { copies: 1, copy_bytes: 100, deletes: 0 };
    const LAST: LastCopy = LastCopy { moved: SOME, lag: Duration::from_secs(2) };

    #[test]
    fn only_zero_differences_are_in_sync_by_default() {
        assert_eq!(judge(Differences::default(), None, Bars::default()), RoundVerdict::InSync);
        assert_eq!(judge(SOME, Some(LAST), Bars::default()), RoundVerdict::Busy);
        let pruned = Differences { deletes: 1, ..Differences::default() };
        assert_eq!(judge(pruned, Some(LAST), Bars::default()), RoundVerdict::Busy, "a key too many is a difference");
    }

    #[test]
    fn every_bar_that_is_set_must_hold() {
        let bars = |bytes, lag: Option<u64>| Bars {
            ready_max_delta_bytes: bytes,
            ready_max_lag: lag.map(Duration::from_secs),
        };
        for (bars, expected) in [
            (bars(100, None), RoundVerdict::WithinBars),
            (bars(99, None), RoundVerdict::Busy),
            (bars(0, Some(2)), RoundVerdict::WithinBars),
            (bars(0, Some(1)), RoundVerdict::Busy),
            (bars(100, Some(1)), RoundVerdict::Busy),
            (bars(100, Some(2)), RoundVerdict::WithinBars),
        ] {
            assert_eq!(judge(SOME, Some(LAST), bars), expected, "{bars:?}");
        }
        assert_eq!(judge(SOME, None, bars(100, None)), RoundVerdict::Busy, "no round was ever complete");
    }

    #[test]
    fn the_byte_bar_is_capped() {
        let moved = Differences { copy_bytes: Bars::MAX_DELTA_BYTES + 1, ..SOME };
        let bars = Bars { ready_max_delta_bytes: u64::MAX, ready_max_lag: None };
        assert_eq!(judge(SOME, Some(LastCopy { moved, ..LAST }), bars), RoundVerdict::Busy);
    }
}
