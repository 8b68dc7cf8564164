//! The lease protocol, every story of it within bounds: what holds under all guards, and what breaks without each. The
//! guards that are taken away are those that known queues lack.

mod moves;
mod protocol;
mod world;

use std::collections::BTreeSet;

use protocol::{EDGES, FENCED, Guards, Identity, NOT_ROBBED, NOT_STRANDED, NOT_WRONGED, ONCE, ONE_LEASE, Protocol};
use stateright::{Checker as _, HasDiscoveries, Model as _, Path};
use world::{Act, World};

/// Small enough for seconds, large enough for every bug below.
fn bounded(guards: Guards) -> Protocol {
    Protocol { guards, faults: 2, endings: 1, operations: 1 }
}

/// The shortest story in which `property` fails.
fn counterexample(guards: Guards, property: &'static str) -> Path<World, Act> {
    let only = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = bounded(guards).checker().finish_when(only).spawn_bfs().join();
    checker.discovery(property).unwrap_or_else(|| panic!("found no story in which this fails: {property}"))
}

fn acts(story: Path<World, Act>) -> Vec<Act> {
    story.into_actions()
}

/// I1, Q-004, Q-005, Q-009: crashes, writes that are late, doubled or lost, answers that are lost, cancels and retries.
#[test]
fn under_all_guards_no_story_breaks_a_promise() {
    let checker = bounded(Guards::ALL).checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "{} states", checker.unique_state_count());
}

/// A queue on apalis's own tables: the holder is known by its name, which the next process bears too.
#[test]
fn a_fence_by_the_workers_name_lets_a_dead_processs_write_through() {
    let guards = Guards { identity: Identity::WorkerName, ..Guards::ALL };
    let story = acts(counterexample(guards, FENCED));
    assert!(story.iter().filter(|act| matches!(act, Act::Lease(_))).count() == 2, "{story:?}");
    counterexample(guards, ONE_LEASE);
}

/// pg-boss: the holder is known by the number of the attempt, which an operator's retry sets back.
#[test]
fn a_fence_by_the_attempts_number_lets_a_late_write_through_after_a_retry() {
    let guards = Guards { identity: Identity::Attempt, ..Guards::ALL };
    let story = acts(counterexample(guards, FENCED));
    assert!(story.contains(&Act::Retry), "nothing else sets the number back there: {story:?}");
    counterexample(guards, ONE_LEASE);
}

/// The fence stays on the row until the next lease: without the state, whoever was rescued still completes.
#[test]
fn an_outcome_without_a_look_at_the_state_is_recorded_after_the_rescue() {
    let guards = Guards { settle_checks_state: false, ..Guards::ALL };
    counterexample(guards, FENCED);
    counterexample(guards, ONCE);
    counterexample(guards, EDGES);
}

/// Rescue reads, the job completes, rescue writes.
#[test]
fn a_rescue_that_does_not_look_again_brings_a_completed_job_back() {
    let guards = Guards { rescue_looks_again: false, ..Guards::ALL };
    counterexample(guards, NOT_ROBBED);
    counterexample(guards, ONCE);
    counterexample(guards, EDGES);
}

#[test]
fn a_renewal_that_proves_no_lease_keeps_another_ones_alive() {
    let guards = Guards { renew_checks_identity: false, ..Guards::ALL };
    counterexample(guards, FENCED);
    counterexample(guards, ONE_LEASE);
}

#[test]
fn an_answer_that_was_lost_is_taken_for_a_lost_lease_where_nobody_knows_its_own_work() {
    let guards = Guards { knows_own_work: false, ..Guards::ALL };
    let story = acts(counterexample(guards, NOT_WRONGED));
    assert!(story.iter().any(|act| matches!(act, Act::DeliverUnheard(_) | Act::DeliverTwice(_))), "{story:?}");
}

#[test]
fn without_a_rescue_a_crash_strands_the_job() {
    let guards = Guards { rescues: false, ..Guards::ALL };
    let story = acts(counterexample(guards, NOT_STRANDED));
    assert!(story.iter().any(|act| matches!(act, Act::Crash(_))), "{story:?}");
    counterexample(guards, protocol::AT_LAST);
}
