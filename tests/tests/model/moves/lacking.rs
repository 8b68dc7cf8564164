//! What breaks in the product as it is: guards that it lacks. Each test finds its story while the guard is away; where the
//! product has it, the test belongs to those of [`super::missing`].

use super::protocol::{CLEAN, Guards, IN_SCOPE, Moves, NO_LEFTOVER, NOT_OLD, ONE_WRITER};
use super::world::{Act, Ask, Budget};
use super::{NONE, bounded, counterexample};

const ALL: Guards = Guards::ALL;

/// The age of the first sweep is read after the second one: a request may arrive between the two.
#[test]
fn an_abort_whose_second_sweep_began_too_early_leaves_what_arrives_late() {
    let guards = Guards { settles_before_sweeping: false, ..ALL };
    counterexample(bounded(guards, Budget { aborts: 1, late: 1, ..NONE }), NO_LEFTOVER);
}

/// The box takes the address from the route before it ends the child, and the door takes that for its end.
#[test]
fn a_parked_instance_whose_child_still_ends_has_two_writers_once_it_is_pointed_elsewhere() {
    let moves = || bounded(Guards { parks_provenly: false, ..ALL }, Budget { parks: 1, points: 1, ..NONE });
    counterexample(moves(), ONE_WRITER);
    counterexample(moves(), IN_SCOPE);
}

/// A copy of a round whose worker died arrives after the landing has deleted the staging once.
#[test]
fn a_copy_that_outlives_its_move_stays_in_the_staging_of_a_landed_one() {
    let guards = Guards { cleans_settled: false, ..ALL };
    counterexample(bounded(guards, Budget { late: 1, ..NONE }), CLEAN);
}

/// A box keeps its database when its record is pointed elsewhere, and takes it for the newest when it comes back.
#[test]
fn a_box_that_comes_back_lands_its_own_older_database_although_the_replica_is_newer() {
    let guards = Guards { local_is_last: false, ..ALL };
    let budget = Budget { points: 4, deaths: 2, ..NONE };
    counterexample(Moves { nodes: 3, ..bounded(guards, budget) }, NOT_OLD);
}

/// A box that is not heard counts as dead, and its child may live: whoever points its record elsewhere must know.
#[test]
fn a_silent_box_whose_child_lives_is_a_second_writer_once_its_record_is_pointed_elsewhere() {
    let story = counterexample(bounded(ALL, Budget { silences: 1, points: 1, ..NONE }), ONE_WRITER);
    assert!(story.iter().any(|act| matches!(act, Act::Ask(Ask::FallSilent(_)))), "{story:?}");
}
