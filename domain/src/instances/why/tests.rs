use serde_json::json;

use super::*;
use crate::ids::{AppName, Host, InstanceId, Kind, MoveId, NodeId, QueueName, WorkerId};
use crate::instances::Refusal;
use crate::instances::moves::{RoundNumbers, Status};
use crate::instances::record::{InstanceKind, RecordHeld};
use crate::lease::Fence;
use crate::queue::{Job, JobState, LeaseView};

/// Seconds before or after the moment of the facts.
fn moment(seconds: i64) -> Timestamp {
    let now: Timestamp = "2026-03-14T03:00:00Z".parse().expect("a valid time");
    now + chrono::TimeDelta::seconds(seconds)
}

fn region(code: &str) -> RegionCode {
    RegionCode::new(code).expect("a valid code")
}

fn record(code: &str) -> Record {
    Record {
        host: Host::new("ledger.acme.example").expect("a valid host"),
        app: AppName::new("acme").expect("a valid name"),
        kind: InstanceKind::Instance,
        backing: None,
        role: None,
        placement: None,
        pool: None,
        hibernate: Some(true),
        parked: Some(false),
        region: region(code),
        observed_region: Some(Some(region(code))),
        replica_regions: None,
        env: None,
        revision: Some(1),
        created_at: Some(moment(-600)),
        held: None,
        moving: None,
        extra: std::collections::BTreeMap::new(),
    }
}

fn seat(code: &str, status: RouteStatus) -> Seat {
    Seat {
        node: NodeId::generate(),
        identity: format!("box-{code}"),
        region: region(code),
        live: true,
        seen_at: moment(-1),
        status,
    }
}

/// A move from eu to uk, in flight.
fn moving(state: MoveState) -> Move {
    Move {
        id: MoveId::generate(),
        instance: InstanceId::generate(),
        app: AppName::new("acme").expect("a valid name"),
        host: Host::new("ledger.acme.example").expect("a valid host"),
        region: region("eu"),
        from: region("eu"),
        to: region("uk"),
        state: state.into(),
        requested_at: moment(-300),
        ready_at: (state != MoveState::Preparing).then(|| moment(-200)),
        target: None,
        round: 3,
        status: Status { last: Some(RoundNumbers::default()), last_round: Some(3), ..Status::default() },
        finished_at: None,
        outcome: None,
        cut_auto: false,
        freeze_budget: None,
        predicted_freeze: None,
        cut_forced: false,
        cut_at: (state == MoveState::Cutting).then(|| moment(-100)),
        aborted_at: (state == MoveState::Aborting).then(|| moment(-100)),
        tail: None,
        purge_began_at: None,
        landed_at: None,
        staging_deleted_at: None,
        given_up_at: None,
        node: None,
        job: None,
    }
}

fn obstacle(code: &str, permanent: bool, since: i64, of: &mut Move) {
    of.status.obstacle = Some(Obstacle { code: code.to_owned(), message: format!("the {code} holds"), permanent });
    of.status.obstacle_since = Some(moment(since));
}

fn step(name: &str, began: i64, ended: Option<(i64, &str)>) -> MoveStep {
    MoveStep {
        id: began,
        step: name.to_owned(),
        round: None,
        iterations: None,
        started_at: moment(began),
        ended_at: ended.map(|(at, _)| moment(at)),
        outcome: ended.map(|(_, outcome)| outcome.to_owned()),
        evidence: json!({}),
        job: JobId::generate(),
        fence: Fence(1),
    }
}

/// The job of a box, with these reasons.
fn job(state: JobState, run_at: i64, codes: &[&'static str]) -> (Job, queue::why::Why) {
    let id = JobId::generate();
    let lease =
        LeaseView { fence: Fence(7), worker: WorkerId::generate(), leased_at: moment(-5), expires_at: moment(25) };
    let job = Job {
        id,
        kind: Kind::new("instance.move").expect("a valid kind"),
        queue: QueueName::new("node.x").expect("a valid queue"),
        state,
        priority: 0,
        run_at: moment(run_at),
        created_at: moment(-300),
        finished_at: None,
        args: json!({}),
        attempt: 1,
        max_attempts: 20,
        interruptions: 0,
        revision: 1,
        lease: (state == JobState::Running).then_some(lease),
        fence: Fence(7),
        worker: None,
        cancel_requested: false,
        progress: Some(json!({"done": 1})),
        tags: Vec::new(),
        unique_key: None,
        concurrency_key: None,
        last_error: None,
        result: None,
        unserved: false,
    };
    let reasons = codes.iter().map(|code| queue::why::Reason::of(code, format!("because of {code}"))).collect();
    (job, queue::why::Why { job: id, state, now: moment(0), reasons })
}

fn facts(newest: Option<Move>) -> Facts {
    Facts {
        now: moment(0),
        record: record("eu"),
        seat: Some(seat("eu", RouteStatus::Serving)),
        newest,
        steps: Vec::new(),
        job: Some(job(JobState::Scheduled, 10, &["snoozed"])),
        no_landing: None,
        predicted_freeze: None,
    }
}

fn codes(facts: Facts) -> Vec<String> {
    decide(facts).reasons.into_iter().map(|reason| reason.code).collect()
}

#[test]
fn what_is_well_is_said_alone() {
    assert_eq!(codes(Facts { job: None, ..facts(None) }), ["serving"]);
    assert_eq!(codes(facts(Some(moving(MoveState::Ready)))), ["ready"]);
    let mut parked = Facts { job: None, ..facts(None) };
    parked.record.parked = Some(true);
    assert_eq!(codes(parked), ["parked"]);
    let auto = Move { cut_auto: true, ..moving(MoveState::Ready) };
    assert_eq!(codes(facts(Some(auto))), ["cuts_by_itself"]);
}

#[test]
fn nobody_is_told_to_cut_towards_a_region_that_could_not_land_it() {
    let (unarmed, nobody) = (Refusal::RegionUnarmed(region("uk")), Refusal::RegionCannotHost(region("uk")));
    let keyless = Refusal::RegionHoldsNoKey(region("uk"));
    for (refusal, code, todo) in [
        (unarmed, "target_unarmed", "--armed"),
        (nobody, "target_cannot_host", "Start the worker"),
        (keyless, "target_cannot_host", "node.config_key"),
    ] {
        for cut_auto in [false, true] {
            let ready = Move { cut_auto, ..moving(MoveState::Ready) };
            let told = decide(Facts { no_landing: Some(refusal.clone()), ..facts(Some(ready.clone())) }).reasons;
            assert_eq!(told.iter().map(|it| it.code.as_str()).collect::<Vec<_>>(), ["ready"]);
            assert!(told[0].message.contains(&refusal.to_string()), "{told:?}");
            assert!(told[0].todo.as_ref().is_some_and(|found| found.contains(todo)), "{told:?}");
            let mut held = ready;
            obstacle(code, false, -50, &mut held);
            let told = decide(Facts { no_landing: Some(refusal.clone()), ..facts(Some(held)) }).reasons;
            let advised: Vec<bool> = told.iter().map(|it| it.todo.is_some()).collect();
            assert_eq!(advised, [true, false], "once: {told:?}");
        }
    }
}

#[test]
fn a_silent_box_stands_before_what_it_said_last() {
    let mut blocked = moving(MoveState::Cutting);
    obstacle("child_hangs", true, -50, &mut blocked);
    let mut asked = facts(Some(blocked));
    let steps = vec![step("stop_child", -60, Some((-50, "failed")))];
    asked.steps = steps;
    assert_eq!(codes(asked.clone()), ["child_hangs", "cutting"]);
    let told = decide(asked.clone()).reasons.remove(0);
    assert!(told.permanent && told.until == Some(moment(10)) && told.todo.is_some_and(|todo| todo.contains("box-eu")));
    assert_eq!(told.message, "The child_hangs holds.");
    if let Some(seat) = &mut asked.seat {
        seat.live = false;
    }
    assert_eq!(codes(asked), ["box_silent", "child_hangs", "cutting"]);
    // Heard half a minute ago, and nobody takes its work any more: as good as silent.
    let left = Facts { job: Some(job(JobState::Available, -9, &["unserved_queue"])), ..facts(None) };
    assert_eq!(codes(left), ["box_silent", "serving"]);
}

#[test]
fn what_somebody_must_help_with_stands_before_what_passes_by_itself() {
    let mut slow = moving(MoveState::Preparing);
    obstacle("source_throttled", false, -50, &mut slow);
    let mut asked = facts(Some(slow.clone()));
    asked.job = Some(job(JobState::Available, -9, &["paused_queue", "behind_others"]));
    assert_eq!(codes(asked), ["paused_queue", "behind_others", "source_throttled", "differs"]);
    obstacle("target_forbidden", true, -50, &mut slow);
    let mut asked = facts(Some(slow));
    asked.job = Some(job(JobState::Available, -9, &["paused_queue"]));
    assert_eq!(codes(asked), ["target_forbidden", "paused_queue", "differs"]);
}

#[test]
fn what_a_cut_has_overcome_is_not_told() {
    // A round was busy before the cut; the child hung and ended; the tail is being proven.
    let mut cutting = moving(MoveState::Cutting);
    obstacle("busy", false, -150, &mut cutting);
    assert_eq!(codes(facts(Some(cutting.clone()))), ["cutting"]);
    obstacle("child_hangs", true, -90, &mut cutting);
    let mut asked = facts(Some(cutting.clone()));
    asked.steps = vec![step("stop_child", -40, None), step("stop_child", -95, Some((-90, "failed")))];
    assert_eq!(codes(asked.clone()), ["child_hangs", "cutting"], "it is being tried again");
    asked.steps.insert(0, step("prove_tail", -20, None));
    asked.steps[1] = step("stop_child", -40, Some((-20, "done")));
    assert_eq!(codes(asked.clone()), ["cutting"]);
    assert!(decide(asked).reasons[0].message.contains("the replica is proven"));
    // The next try begins with the steps that were done before: what failed is no less true for it.
    obstacle("tail_unproven", false, -60, &mut cutting);
    let mut asked = facts(Some(cutting));
    asked.steps = vec![
        step("prove_tail", -22, None),
        step("stop_child", -24, Some((-23, "done"))),
        step("prove_tail", -50, Some((-26, "failed"))),
    ];
    assert_eq!(codes(asked), ["tail_unproven", "cutting"]);
    // Of an abort alike: a sweep that left something is not past.
    let mut aborting = moving(MoveState::Aborting);
    obstacle("delete_refused", true, -90, &mut aborting);
    let mut asked = facts(Some(aborting));
    asked.steps = vec![step("sweep_staging", -95, Some((-90, "left")))];
    assert_eq!(codes(asked.clone()), ["delete_refused", "aborting"]);
    asked.steps.insert(0, step("sweep_staging", -30, Some((-29, "empty"))));
    assert_eq!(codes(asked), ["aborting"]);
}

#[test]
fn a_landing_tells_what_holds_it_up_and_that_no_box_takes_it() {
    let mut over = moving(MoveState::Cutting);
    (over.outcome, over.finished_at) = (Some(Outcome::Moved), Some(moment(-10)));
    let mut asked = facts(Some(over));
    asked.record = record("uk");
    asked.record.observed_region = Some(None);
    asked.seat = None;
    asked.job = Some(job(JobState::Available, -9, &["unserved_queue"]));
    let why = decide(asked.clone());
    assert_eq!((why.phase.as_str(), why.frozen_since), ("landing", Some(moment(-100))));
    assert_eq!(codes(asked.clone()), ["no_box", "landing"]);
    asked.seat = Some(seat("uk", RouteStatus::Landing));
    asked.job = Some(job(JobState::Scheduled, 60, &["snoozed"]));
    asked.record.held = Some(RecordHeld {
        code: "staging_missing".to_owned(),
        message: "nothing is staged".to_owned(),
        permanent: true,
        since: moment(-5),
    });
    let why = decide(asked.clone());
    assert_eq!(codes(asked.clone()), ["staging_missing", "landing"]);
    assert!(why.reasons[0].todo.as_ref().is_some_and(|todo| todo.contains("eu is kept")), "{:?}", why.reasons[0]);
    asked.job = None;
    assert_eq!(codes(asked.clone()), ["staging_missing", "job_missing", "landing"]);
    // A move that began meanwhile does not hide that nobody is served.
    let mut moved = facts(Some(moving(MoveState::Preparing)));
    (moved.seat, moved.record.held) = (Some(seat("eu", RouteStatus::Landing)), asked.record.held);
    assert_eq!(codes(moved), ["staging_missing", "differs"]);
}

#[test]
fn placed_and_observed_region_differ_only_around_a_cut_and_it_is_said_why() {
    // M-114.
    let mut over = moving(MoveState::Cutting);
    (over.outcome, over.finished_at) = (Some(Outcome::Moved), Some(moment(-1)));
    let mut asked = facts(Some(over.clone()));
    asked.record = record("uk");
    asked.seat = Some(seat("eu", RouteStatus::Moving));
    let why = decide(asked);
    let last = why.reasons.last().expect("a reason");
    assert_eq!((why.phase.as_str(), last.code.as_str()), ("landing", "regions_differ"));
    assert_eq!(
        last.message,
        "It is placed in uk and was last served in eu: the cut gave it to uk, and box box-eu has not retired its route yet."
    );
    let mut pointed_back = facts(Some(Move { given_up_at: Some(moment(-1)), ..over.clone() }));
    pointed_back.seat = None;
    let why = decide(pointed_back);
    assert_eq!(why.reasons.last().map(|it| it.code.as_str()), Some("landing"));
    assert!(why.reasons.iter().any(|it| it.message.starts_with("An operator pointed it to eu")), "{:?}", why.reasons);
    // That a staging is deleted a moment after it landed is no news.
    for (landed_at, expected) in [(-60, &["serving", "staging_left"][..]), (-59, &["serving"][..])] {
        over.landed_at = Some(moment(landed_at));
        let mut landed = facts(Some(over.clone()));
        landed.record = record("uk");
        landed.seat = Some(seat("uk", RouteStatus::Serving));
        assert_eq!(codes(landed), expected, "{landed_at}");
    }
}

#[test]
fn a_store_that_does_not_answer_is_the_sources_in_a_round_and_the_landings_own_in_a_landing() {
    let mut asked = facts(Some(moving(MoveState::Cutting)));
    (asked.record, asked.seat) = (record("uk"), Some(seat("uk", RouteStatus::Landing)));
    let todo = |code: &str| advice::of(code, &asked).expect("something to do");
    assert!(todo("source_unreadable").contains("object store of eu"), "{}", todo("source_unreadable"));
    assert!(todo("store_unreadable").contains("object store of uk answers box box-uk"), "{}", todo("store_unreadable"));
}

#[test]
fn every_code_has_something_to_do_or_nothing_to_be_done() {
    let asked = facts(Some(moving(MoveState::Cutting)));
    let mute: Vec<&str> = OBSTACLES.into_iter().filter(|code| advice::of(code, &asked).is_none()).collect();
    assert!(mute.is_empty(), "{mute:?}");
    assert_eq!(advice::of("of_a_newer_version", &asked), None);
    assert_eq!(sentence("moves/x holds nothing: see"), "moves/x holds nothing: see.");
}
