//! What breaks in the product as it is: guards that it lacks. Each test finds its story while the guard is away; where the
//! product has it, the test belongs to those of [`super::missing`].

use super::protocol::{CLEAN, Guards, ONE_WRITER};
use super::world::{Act, Ask, Budget};
use super::{NONE, bounded, counterexample};

const ALL: Guards = Guards::ALL;

/// A copy of a round whose worker died arrives after the landing has deleted the staging once.
#[test]
fn a_copy_that_outlives_its_move_stays_in_the_staging_of_a_landed_one() {
    let guards = Guards { cleans_settled: false, ..ALL };
    counterexample(bounded(guards, Budget { late: 1, ..NONE }), CLEAN);
}

/// A box that is not heard counts as dead, and its child may live: whoever points its record elsewhere must know.
#[test]
fn a_silent_box_whose_child_lives_is_a_second_writer_once_its_record_is_pointed_elsewhere() {
    let story = counterexample(bounded(ALL, Budget { silences: 1, points: 1, ..NONE }), ONE_WRITER);
    assert!(story.iter().any(|act| matches!(act, Act::Ask(Ask::FallSilent(_)))), "{story:?}");
}
