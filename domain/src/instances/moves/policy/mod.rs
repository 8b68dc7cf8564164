//! Pure decisions of a move: whether it may begin, and what one pass of its job may do.

use std::time::Duration;

use super::state::MoveState;
use super::{Obstacle, StoredState};
use crate::ids::{NodeId, RegionCode};
use crate::nodes::Bucket;

mod gate;

pub use gate::{
    FREEZE_OVER_BUDGET, Gate, Movable, NOT_CUT, TARGET_CANNOT_HOST, Verdict, check_freeze_budget, enter, gate_freeze,
    gate_record, gate_region, gate_verb, gates_of_move, refusal_of, within_budget,
};

/// The wait between two rounds (M-043).
pub const ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// The longest wait after rounds that failed one after another.
pub const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// How long the replica that a move left behind is kept after its landing serves.
pub const UNDO_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// How many intervals a move waits that somebody must help on.
const BLOCKED_INTERVALS: u32 = 4;

/// What one pass sees of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight<'a> {
    /// The record's region.
    pub region: &'a RegionCode,
    /// The box that serves the host.
    pub route: Option<NodeId>,
    /// How far the move is.
    pub state: &'a StoredState,
    /// Whether it is over.
    pub finished: bool,
}

/// What one pass may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pass {
    /// Run a round.
    Mirror(MoveState),
    /// Go on with the cut.
    Cut,
    /// Go on with the abort.
    Abort,
    /// The move is over: the job's story, too.
    Over,
    /// Another box serves the host, or none: this box does nothing, and the sweep gives the move to its owner (M-038).
    NotOurs,
    /// The record is in another region than this box (M-037).
    OutOfScope,
    /// A state on which this version does not act (M-004).
    NoAction(StoredState),
}

/// Decides what a pass on this box may do.
#[must_use]
pub fn pass(sight: Sight<'_>, node: NodeId, own_region: &RegionCode) -> Pass {
    if sight.finished {
        return Pass::Over;
    }
    if sight.route != Some(node) {
        return Pass::NotOurs;
    }
    if sight.region != own_region {
        return Pass::OutOfScope;
    }
    match sight.state.known() {
        Some(state) if state.mirrors() => Pass::Mirror(state),
        Some(MoveState::Cutting) => Pass::Cut,
        Some(MoveState::Aborting) => Pass::Abort,
        Some(MoveState::Preparing | MoveState::Ready) | None => Pass::NoAction(sight.state.clone()),
    }
}

/// What the end of a round says of the failures in a row before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearing {
    /// It is one more.
    Failed,
    /// Nothing: the worker stopped before the round could say anything.
    Neutral,
    /// They are over: both sides answered.
    Good,
}

/// How many rounds have failed in a row after one more has ended.
#[must_use]
pub const fn failures_after(failures: u32, bearing: Bearing) -> u32 {
    match bearing {
        Bearing::Failed => failures.saturating_add(1),
        Bearing::Neutral => failures,
        Bearing::Good => 0,
    }
}

/// The wait after a round: none where only the worker stopped, longer after failures, slower while somebody must help.
#[must_use]
pub fn wait_after_round(interval: Duration, bearing: Bearing, blocked: bool, failures: u32) -> Duration {
    match bearing {
        Bearing::Neutral => Duration::ZERO,
        Bearing::Failed | Bearing::Good if blocked => wait_while_blocked(interval),
        Bearing::Failed => wait_after_failure(interval, failures),
        Bearing::Good => interval,
    }
}

/// Whether a round that ended so earns the promotion: nothing holds the move up, and it is not ready yet.
#[must_use]
pub fn promotes(state: MoveState, obstacle: Option<&Obstacle>) -> bool {
    state == MoveState::Preparing && obstacle.is_none()
}

/// The wait after `failures` rounds failed in a row: the interval, doubled each time, at most [`MAX_BACKOFF`].
#[must_use]
pub fn wait_after_failure(interval: Duration, failures: u32) -> Duration {
    let doubled = interval.saturating_mul(1_u32 << failures.saturating_sub(1).min(16));
    doubled.clamp(interval, MAX_BACKOFF.max(interval))
}

/// The wait after a round that somebody must help on: slower, but never the end, since the help may come unseen.
#[must_use]
pub const fn wait_while_blocked(interval: Duration) -> Duration {
    interval.saturating_mul(BLOCKED_INTERVALS)
}

/// How long after the first sweep of an abort the second one comes: when nothing that was sent under an earlier lease can
/// still arrive. S3 knows no fence, so a worker that lost its lease may have a request under way (M-084).
///
/// `loose`: a round was cut short, and with it perhaps a copy, which may take as long as a copy may.
#[must_use]
pub fn second_sweep_after(lease: Duration, request: Duration, copy: Duration, loose: bool) -> Duration {
    lease + if loose { copy.max(request) } else { request }
}

/// Where a round may stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<'a> {
    /// At the pinned place.
    Pinned(&'a Bucket),
    /// Nothing is pinned yet: pin this first.
    Pin(&'a Bucket),
    /// Nobody has published the target's coordinates yet (M-051).
    Missing,
    /// The target publishes another place than the pinned one: half of the replica would be here and half there.
    Changed {
        /// What was pinned.
        pinned: &'a Bucket,
        /// What is published now.
        published: &'a Bucket,
    },
}

/// Decides where a round may stage. A target that published once and is silent now keeps what was pinned.
#[must_use]
pub fn target<'a>(pinned: Option<&'a Bucket>, published: Option<&'a Bucket>) -> Target<'a> {
    match (pinned, published) {
        (None, None) => Target::Missing,
        (None, Some(published)) => Target::Pin(published),
        (Some(pinned), Some(published)) if pinned != published => Target::Changed { pinned, published },
        (Some(pinned), _) => Target::Pinned(pinned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> RegionCode {
        RegionCode::new(text).unwrap()
    }

    #[test]
    fn a_pass_acts_only_in_its_own_region_on_its_own_route_in_a_state_that_it_knows() {
        let (eu, uk) = (code("eu"), code("uk"));
        let (node, other) = (NodeId::generate(), NodeId::generate());
        let ready = StoredState::from(MoveState::Ready);
        let limbo = StoredState::from("limbo".to_owned());
        let cutting = StoredState::from(MoveState::Cutting);
        let sight = Sight { region: &eu, route: Some(node), state: &ready, finished: false };
        assert_eq!(pass(sight, node, &eu), Pass::Mirror(MoveState::Ready));
        assert_eq!(pass(sight, node, &uk), Pass::OutOfScope);
        assert_eq!(pass(Sight { route: Some(other), ..sight }, node, &eu), Pass::NotOurs);
        assert_eq!(pass(Sight { route: None, ..sight }, node, &eu), Pass::NotOurs);
        assert_eq!(pass(Sight { finished: true, ..sight }, node, &eu), Pass::Over);
        let aborting = StoredState::from(MoveState::Aborting);
        assert_eq!(pass(Sight { state: &limbo, ..sight }, node, &eu), Pass::NoAction(limbo.clone()));
        assert_eq!(pass(Sight { state: &cutting, ..sight }, node, &eu), Pass::Cut);
        assert_eq!(pass(Sight { state: &aborting, ..sight }, node, &eu), Pass::Abort);
    }

    #[test]
    fn waits_after_failures_double_and_are_never_shorter_than_the_interval() {
        let interval = Duration::from_secs(30);
        let waits: Vec<u64> = [0, 1, 2, 3, 4, 5, u32::MAX].map(|n| wait_after_failure(interval, n).as_secs()).into();
        assert_eq!(waits, [30, 30, 60, 120, 240, 300, 300]);
        let long = Duration::from_secs(900);
        assert_eq!(wait_after_failure(long, 7), long);
    }

    #[test]
    fn only_a_good_round_forgets_the_failures_before_it() {
        assert_eq!(failures_after(3, Bearing::Failed), 4);
        assert_eq!(failures_after(3, Bearing::Neutral), 3, "a worker that stopped says nothing of the stores");
        assert_eq!(failures_after(3, Bearing::Good), 0);
        assert_eq!(failures_after(u32::MAX, Bearing::Failed), u32::MAX);
    }

    #[test]
    fn a_round_is_followed_at_once_after_a_stop_later_after_failures_and_slowly_while_blocked() {
        let interval = Duration::from_secs(30);
        let wait = |bearing, blocked| wait_after_round(interval, bearing, blocked, 3);
        assert_eq!(wait(Bearing::Good, false), interval);
        assert_eq!(wait(Bearing::Good, true), wait_while_blocked(interval));
        assert_eq!(wait(Bearing::Failed, false), wait_after_failure(interval, 3));
        assert_eq!(wait(Bearing::Failed, true), wait_while_blocked(interval));
        assert_eq!(wait(Bearing::Neutral, false), Duration::ZERO);
        assert_eq!(wait(Bearing::Neutral, true), Duration::ZERO, "the next box looks for itself");
    }

    #[test]
    fn only_a_round_without_an_obstacle_promotes_and_only_a_move_that_prepares() {
        let obstacle = Obstacle::passing("busy", "");
        assert!(promotes(MoveState::Preparing, None));
        assert!(!promotes(MoveState::Preparing, Some(&obstacle)));
        assert!(!promotes(MoveState::Ready, None), "it is promoted already");
    }

    #[test]
    fn a_target_is_pinned_once_and_another_one_stops_the_rounds() {
        let bucket = |name: &str| Bucket { name: name.to_owned(), region: "r".to_owned() };
        let (a, b) = (bucket("a"), bucket("b"));
        assert_eq!(target(None, None), Target::Missing);
        assert_eq!(target(None, Some(&a)), Target::Pin(&a));
        assert_eq!(target(Some(&a), Some(&a)), Target::Pinned(&a));
        assert_eq!(target(Some(&a), None), Target::Pinned(&a));
        assert_eq!(target(Some(&a), Some(&b)), Target::Changed { pinned: &a, published: &b });
    }
}
