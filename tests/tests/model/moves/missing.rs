//! What breaks without each of the guards that the product has.

use super::protocol::{
    Guards, HAS_DATABASE, IN_SCOPE, KEPT, Moves, NO_LEFTOVER, NOT_LOST, NOT_NEEDED, NOT_OLD, ONE_LINEAGE, ONE_WRITER,
    PROVEN,
};
use super::world::{Act, Ask, Budget};
use super::{NONE, bounded, counterexample};

const ALL: Guards = Guards::ALL;

#[test]
fn without_the_fence_a_worker_that_was_taken_over_stages_again_after_the_abort() {
    let guards = Guards { fence: false, ..ALL };
    let story = counterexample(bounded(guards, Budget { aborts: 1, stops: 1, ..NONE }), NO_LEFTOVER);
    assert!(story.contains(&Act::Wake), "{story:?}");
}

#[test]
fn a_child_that_is_stopped_under_an_open_route_runs_again_and_its_writes_are_purged() {
    let moves = || bounded(Guards { closes_first: false, ..ALL }, NONE);
    counterexample(moves(), PROVEN);
    counterexample(moves(), NOT_OLD);
}

#[test]
fn a_child_whose_end_is_not_proven_writes_after_the_proof_of_its_tail() {
    let moves = || bounded(Guards { proves_the_end: false, ..ALL }, NONE);
    counterexample(moves(), PROVEN);
    counterexample(moves(), NOT_OLD);
}

#[test]
fn without_the_proof_of_the_tail_a_write_that_was_not_replicated_is_lost() {
    let moves = || bounded(Guards { proves_the_tail: false, ..ALL }, NONE);
    counterexample(moves(), NOT_LOST);
    counterexample(moves(), NOT_OLD);
    counterexample(moves(), KEPT);
}

#[test]
fn without_the_final_delta_the_database_is_purged_before_its_tail_is_staged() {
    let moves = || bounded(Guards { final_delta: false, ..ALL }, NONE);
    counterexample(moves(), PROVEN);
    counterexample(moves(), NOT_LOST);
}

#[test]
fn a_purge_that_was_not_begun_first_leaves_a_cut_that_is_taken_back_without_its_database() {
    let guards = Guards { begins_the_purge: false, ..ALL };
    let story = counterexample(bounded(guards, Budget { unsticks: 1, ..NONE }), HAS_DATABASE);
    assert!(story.contains(&Act::Ask(Ask::Unstick)), "{story:?}");
}

#[test]
fn a_flip_that_is_neither_last_nor_compared_makes_two_writers() {
    let moves = || bounded(Guards { flips_last: false, ..ALL }, Budget { unsticks: 1, ..NONE });
    counterexample(moves(), ONE_WRITER);
    counterexample(moves(), IN_SCOPE);
    counterexample(moves(), NOT_OLD);
}

#[test]
fn without_its_pending_landing_an_instance_that_comes_back_is_what_it_was_when_it_left() {
    let guards = Guards { pending_decides: false, ..ALL };
    let story = counterexample(bounded(guards, Budget { moves: 2, ..NONE }), NOT_OLD);
    assert!(story.iter().filter(|act| matches!(act, Act::Ask(Ask::StartMove(_)))).count() == 2, "{story:?}");
}

#[test]
fn a_landing_that_does_not_empty_its_own_prefix_serves_beside_an_older_lineage() {
    let guards = Guards { empties_own: false, ..ALL };
    counterexample(Moves { left_behind: true, ..bounded(guards, NONE) }, ONE_LINEAGE);
}

#[test]
fn an_abort_that_sweeps_once_leaves_what_arrives_late() {
    let guards = Guards { sweeps_twice: false, ..ALL };
    let story = counterexample(bounded(guards, Budget { aborts: 1, late: 1, ..NONE }), NO_LEFTOVER);
    assert!(story.contains(&Act::Arrive), "{story:?}");
}

#[test]
fn a_staging_that_is_deleted_before_its_landing_serves_is_gone_for_the_next_try() {
    let guards = Guards { cleans_last: false, ..ALL };
    counterexample(bounded(guards, Budget { crashes: 1, ..NONE }), NOT_LOST);
}

#[test]
fn an_old_replica_that_is_not_kept_is_purged_before_its_landing_serves() {
    let moves = || bounded(Guards { keeps_old: false, ..ALL }, NONE);
    counterexample(moves(), NOT_NEEDED);
    counterexample(moves(), KEPT);
}

/// What is purged may be a staging that never landed: the next move stages there.
#[test]
fn a_move_into_a_region_that_is_being_purged_loses_its_staging() {
    let moves = || bounded(Guards { moves_wait: false, ..ALL }, Budget { moves: 2, points: 1, ..NONE });
    counterexample(moves(), NOT_NEEDED);
    counterexample(moves(), NOT_LOST);
}

#[test]
fn a_landing_in_a_region_that_is_being_purged_loses_its_replica() {
    let guards = Guards { moves_wait: false, landings_wait: false, ..ALL };
    counterexample(bounded(guards, Budget { moves: 2, ..NONE }), NOT_NEEDED);
}

#[test]
fn a_cut_that_is_taken_back_after_its_purge_serves_without_its_database() {
    let guards = Guards { unsticks_in_time: false, ..ALL };
    counterexample(bounded(guards, Budget { unsticks: 1, ..NONE }), HAS_DATABASE);
}

#[test]
fn a_record_that_is_pointed_away_from_a_box_that_lives_has_two_writers() {
    let moves = || bounded(Guards { points_away_from_the_dead: false, ..ALL }, Budget { points: 1, ..NONE });
    counterexample(moves(), ONE_WRITER);
    counterexample(moves(), IN_SCOPE);
}

/// The move would copy what its own landing has not finished.
#[test]
fn a_move_that_begins_before_its_landing_serves_loses_what_is_written_in_between() {
    let moves = || bounded(Guards { starts_from_serving: false, ..ALL }, Budget { moves: 2, ..NONE });
    counterexample(moves(), PROVEN);
    counterexample(moves(), NOT_OLD);
    // Where an earlier term left a replica, nobody even has to write in between.
    counterexample(Moves { left_behind: true, ..moves() }, NOT_LOST);
}

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

/// A box keeps its database when its record is pointed elsewhere, and takes it for the newest when it comes back.
#[test]
fn a_box_that_comes_back_lands_its_own_older_database_although_the_replica_is_newer() {
    let guards = Guards { local_is_last: false, ..ALL };
    let budget = Budget { points: 4, deaths: 2, ..NONE };
    counterexample(Moves { nodes: 3, ..bounded(guards, budget) }, NOT_OLD);
}
