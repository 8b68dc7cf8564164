//! Moves, every story of them within bounds: what holds under all guards. What breaks without each is in [`missing`]; what
//! breaks in the product as it is, since it lacks a guard, in [`lacking`].

mod guards;
mod lacking;
mod missing;
mod operator;
mod protocol;
mod source;
mod steps;
mod target;
mod world;

use std::collections::BTreeSet;

use protocol::{Guards, Moves};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use tests::server::variable;
use world::{Act, Budget};

const NONE: Budget = Budget {
    writes: 2,
    moves: 1,
    aborts: 0,
    crashes: 0,
    stops: 0,
    late: 0,
    unsticks: 0,
    points: 0,
    parks: 0,
    deaths: 0,
    silences: 0,
};

/// Two regions with a box each; nothing is left of an earlier term.
fn bounded(guards: Guards, budget: Budget) -> Moves {
    Moves { guards, budget, nodes: 2, left_behind: false }
}

/// The shortest story in which `property` fails.
fn counterexample(moves: Moves, property: &'static str) -> Vec<Act> {
    let only = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = moves.checker().finish_when(only).spawn_bfs().join();
    let story = checker.discovery(property).unwrap_or_else(|| panic!("found no story in which this fails: {property}"));
    story.into_actions()
}

/// Every story within the bounds; `soak` adds to them where `make soak` asks for more.
fn no_story_breaks_a_promise(moves: Moves, soak: Budget) {
    let budget = if variable("LEASEHOLD_MODEL_CASES").is_some() { soak } else { moves.budget };
    let checker = Moves { budget, ..moves }.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "{} states", checker.unique_state_count());
}

/// I5: a crash, a lease that is lost by a worker that lives on, and a request that arrives late, at any act.
#[test]
fn within_a_move_no_fault_breaks_a_promise() {
    let budget = Budget { aborts: 1, crashes: 1, stops: 1, late: 1, ..NONE };
    let moves = Moves { left_behind: true, ..bounded(Guards::ALL, budget) };
    no_story_breaks_a_promise(moves, Budget { crashes: 2, unsticks: 1, ..budget });
}

#[test]
fn within_a_move_that_is_taken_back_or_parked_no_fault_breaks_a_promise() {
    let budget = Budget { unsticks: 1, parks: 1, crashes: 1, stops: 1, ..NONE };
    no_story_breaks_a_promise(bounded(Guards::ALL, budget), Budget { late: 1, aborts: 1, ..budget });
}

/// There and back, and there again after an abort.
#[test]
fn within_two_moves_no_fault_breaks_a_promise() {
    let budget = Budget { moves: 2, aborts: 1, late: 1, ..NONE };
    no_story_breaks_a_promise(bounded(Guards::ALL, budget), Budget { crashes: 1, ..budget });
    let budget = Budget { moves: 2, crashes: 1, stops: 1, ..NONE };
    no_story_breaks_a_promise(bounded(Guards::ALL, budget), Budget { late: 1, writes: 1, ..budget });
}

/// Records that are pointed elsewhere by hand when a box died, whose disk comes back later.
#[test]
fn within_a_move_and_an_operators_rescue_no_death_breaks_a_promise() {
    let budget = Budget { points: 1, deaths: 1, parks: 1, crashes: 1, ..NONE };
    no_story_breaks_a_promise(bounded(Guards::ALL, budget), Budget { moves: 2, ..budget });
    let budget = Budget { points: 1, deaths: 1, stops: 1, ..NONE };
    let moves = Moves { nodes: 3, ..bounded(Guards::ALL, budget) };
    no_story_breaks_a_promise(moves, Budget { points: 2, stops: 0, deaths: 2, ..budget });
}
