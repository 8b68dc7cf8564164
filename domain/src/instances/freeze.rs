//! How long a cut freezes an instance, and what that is made of: by a cut that was, never by a guess.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::ids::MoveId;

/// The part of a freeze in which no step of the journal ran: boxes notice, transactions commit, edges look.
pub const BETWEEN: &str = "between";

/// A step of a cut or of its landing that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// As the journal names it.
    pub step: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// What a part of a freeze took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The journal's step, or [`BETWEEN`].
    pub step: String,
    /// How long it took, all tries together.
    pub took: Duration,
}

/// The freeze of the next cut between two regions, as the newest ones were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// The median of the newest cuts, from the verb until the target served.
    pub freeze: Duration,
    /// How many cuts it is the median of.
    pub cuts: u32,
    /// The cut that it is.
    pub as_of: MoveId,
    /// What that one is made of, in the order in which each first ran; together they are the freeze.
    pub parts: Vec<Part>,
}

impl Prediction {
    /// The prediction by one cut of so many, which froze between these two moments; `acts` in the order of their beginnings.
    #[must_use]
    pub fn of((as_of, cuts): (MoveId, u32), (cut_at, landed_at): (Timestamp, Timestamp), acts: &[Act]) -> Self {
        let span = |from: Timestamp, to: Timestamp| (to - from).to_std().unwrap_or_default();
        let mut parts: Vec<Part> = Vec::new();
        let mut between = Duration::ZERO;
        // Up to here every moment belongs to a part: what overlaps is counted once, for whoever began first.
        let mut until = cut_at;
        for act in acts {
            let (began, ended) = (act.started_at.max(until), act.ended_at.min(landed_at));
            if ended <= began {
                continue;
            }
            between += span(until, began);
            let took = span(began, ended);
            match parts.iter_mut().find(|part| part.step == act.step) {
                Some(part) => part.took += took,
                None => parts.push(Part { step: act.step.clone(), took }),
            }
            until = ended;
        }
        between += span(until, landed_at);
        if between > Duration::ZERO {
            parts.push(Part { step: BETWEEN.to_owned(), took: between });
        }
        Self { freeze: span(cut_at, landed_at), cuts, as_of, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        let zero: Timestamp = "2026-03-14T03:00:00Z".parse().expect("a valid time");
        zero + chrono::TimeDelta::milliseconds(ms)
    }

    fn act(step: &str, from: i64, to: i64) -> Act {
        Act { step: step.to_owned(), started_at: at(from), ended_at: at(to) }
    }

    #[test]
    fn the_parts_of_a_freeze_are_the_freeze_whatever_overlaps_or_lies_outside() {
        let acts = [
            act("round", -4_000, 200),
            act("stop_child", 300, 800),
            act("prove_tail", 800, 1_000),
            // A try that failed, and the next one: both are waited for.
            act("prove_tail", 1_500, 2_500),
            act("purge", 2_400, 2_600),
            act("restore", 3_000, 5_000),
            act("delete_staging", 5_100, 9_000),
        ];
        let told = Prediction::of((MoveId::generate(), 3), (at(0), at(5_000)), &acts);
        let parts: Vec<(&str, u64)> =
            told.parts.iter().map(|part| (part.step.as_str(), part.took.as_millis().try_into().unwrap())).collect();
        let expected = [
            ("round", 200),
            ("stop_child", 500),
            ("prove_tail", 1_200),
            ("purge", 100),
            ("restore", 2_000),
            (BETWEEN, 1_000),
        ];
        assert_eq!(parts, expected);
        assert_eq!(told.freeze, Duration::from_secs(5));
        assert_eq!(told.parts.iter().map(|part| part.took).sum::<Duration>(), told.freeze);
    }

    #[test]
    fn a_freeze_without_a_journal_lies_between_its_steps_as_a_whole() {
        let told = Prediction::of((MoveId::generate(), 1), (at(0), at(900)), &[]);
        assert_eq!(told.parts, [Part { step: BETWEEN.to_owned(), took: Duration::from_millis(900) }]);
        let back = Prediction::of((MoveId::generate(), 1), (at(0), at(-5)), &[]);
        assert_eq!((back.freeze, back.parts), (Duration::ZERO, Vec::new()), "a clock that was set back");
    }
}
