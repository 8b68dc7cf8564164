use serde_json::json;

use super::*;
use crate::ids::{Kind, QueueName};
use crate::lease::Fence;
use crate::queue::{LeaseView, Pause};

fn at(text: &str) -> Timestamp {
    text.parse().expect("a valid time")
}

/// Seconds before or after the moment of the facts.
fn moment(seconds: i64) -> Timestamp {
    at("2026-03-14T03:00:00Z") + chrono::TimeDelta::seconds(seconds)
}

fn facts(state: JobState, run_at: i64) -> Facts {
    let job = Job {
        id: JobId::generate(),
        kind: Kind::new("a.b").expect("a valid kind"),
        queue: QueueName::new("q").expect("a valid queue"),
        state,
        priority: 0,
        run_at: moment(run_at),
        created_at: moment(-600),
        finished_at: None,
        args: json!({}),
        attempt: 0,
        max_attempts: 20,
        interruptions: 0,
        revision: 1,
        lease: None,
        fence: Fence(0),
        worker: None,
        cancel_requested: false,
        progress: None,
        tags: Vec::new(),
        unique_key: None,
        concurrency_key: None,
        last_error: None,
        result: None,
        unserved: false,
    };
    Facts {
        now: moment(0),
        job,
        cancel: None,
        workers: vec![group(Standing::Free, true)],
        ahead: 0,
        pauses: Vec::new(),
        limits: Vec::new(),
    }
}

fn group(standing: Standing, serve_kind: bool) -> Workers {
    Workers {
        serve_kind,
        standing,
        workers: 2,
        running: 20,
        concurrency: 20,
        heard_at: moment(-90),
        heard: WorkerId::generate(),
    }
}

fn codes(facts: &Facts) -> Vec<&'static str> {
    let why = decide(facts);
    assert!(why.reasons.iter().all(|reason| CODES.contains(&reason.code)), "{why:?}");
    assert!(why.reasons.iter().all(|reason| !reason.message.is_empty()), "{why:?}");
    why.reasons.iter().map(|reason| reason.code).collect()
}

fn only(facts: &Facts) -> Reason {
    let mut why = decide(facts);
    assert_eq!(why.reasons.len(), 1, "{why:?}");
    why.reasons.remove(0)
}

#[test]
fn a_job_of_the_future_says_when_and_what_it_waits_for() {
    let mut facts = facts(JobState::Scheduled, 60);
    let reason = only(&facts);
    assert_eq!((reason.code, reason.until, reason.since), ("scheduled", Some(moment(60)), None));
    assert!(reason.message.contains("2026-03-14 03:01:00 UTC"), "{}", reason.message);
    facts.job.fence = Fence(7);
    assert_eq!(codes(&facts), ["snoozed"]);
    facts.job.state = JobState::Retryable;
    facts.job.attempt = 3;
    facts.job.last_error = Some(json!({"code": "x", "message": "503 from the target\nand more"}));
    let reason = only(&facts);
    assert_eq!((reason.code, reason.error), ("waits_for_retry", facts.job.last_error.clone()));
    assert!(reason.message.contains("Attempt 3 of 20 failed: 503 from the target. It"), "{}", reason.message);
    facts.job.run_at = moment(0);
    assert_eq!(codes(&facts), ["due_soon"], "due, and no sweep has seen it yet");
}

#[test]
fn nobody_to_run_it_is_told_before_it_is_due_too_and_busy_hands_are_not() {
    let mut facts = facts(JobState::Scheduled, 60);
    facts.workers.clear();
    assert_eq!(codes(&facts), ["scheduled", "unserved_queue"]);
    facts.workers = vec![group(Standing::Full, true)];
    assert_eq!(codes(&facts), ["scheduled"]);
    facts.workers = vec![group(Standing::Silent, true)];
    assert_eq!(codes(&facts), ["scheduled", "workers_silent"]);
}

#[test]
fn who_is_missing_is_told_apart() {
    let mut facts = facts(JobState::Available, -60);
    facts.ahead = 7;
    let told = |workers: Vec<Workers>| codes(&Facts { workers, ..facts.clone() });
    assert_eq!(told(vec![]), ["unserved_queue"]);
    assert_eq!(told(vec![group(Standing::Free, false)]), ["unserved_kind"]);
    assert_eq!(told(vec![group(Standing::Silent, false)]), ["unserved_queue"], "who is silent serves nothing");
    assert_eq!(told(vec![group(Standing::Silent, true)]), ["workers_silent"]);
    assert_eq!(
        told(vec![group(Standing::Draining, true), group(Standing::Silent, true)]),
        ["workers_draining", "workers_silent"]
    );
    assert_eq!(
        told(vec![group(Standing::Silent, true), group(Standing::Full, true)]),
        ["workers_full", "workers_silent", "behind_others"]
    );
    // One that is free takes it, whatever the others do.
    let mixed = vec![group(Standing::Free, true), group(Standing::Full, true), group(Standing::Silent, true)];
    assert_eq!(told(mixed), ["behind_others"]);
}

#[test]
fn full_hands_and_those_ahead_are_told_with_their_numbers() {
    let mut facts = facts(JobState::Available, -60);
    facts.workers = vec![group(Standing::Full, true)];
    facts.ahead = 1;
    let why = decide(&facts);
    let (full, behind) = (&why.reasons[0], &why.reasons[1]);
    assert_eq!((full.workers, full.running, full.concurrency), (Some(2), Some(20), Some(20)));
    assert_eq!((behind.jobs, behind.jobs_at_least), (Some(1), false));
    assert!(behind.message.starts_with("1 due job is taken"), "{}", behind.message);
    facts.ahead = AHEAD_LIMIT;
    let why = decide(&facts);
    assert!(why.reasons[1].jobs_at_least && why.reasons[1].message.starts_with("At least 1000 due jobs are"));
}

#[test]
fn a_job_that_nothing_holds_back_is_next() {
    let reason = only(&facts(JobState::Available, -60));
    assert_eq!((reason.code, reason.since), ("next", Some(moment(-60))));
}

#[test]
fn a_running_job_names_its_holder_and_who_ignores_a_cancel() {
    let mut facts = facts(JobState::Running, -60);
    let worker = WorkerId::generate();
    let lease = |until| Some(LeaseView { fence: Fence(9), worker, leased_at: moment(-30), expires_at: moment(until) });
    facts.job.lease = lease(10);
    let reason = only(&facts);
    assert_eq!((reason.code, reason.worker), ("running", Some(worker)));
    assert_eq!((reason.since, reason.until), (Some(moment(-30)), Some(moment(10))));
    facts.cancel = Some((moment(-5), "not needed".to_owned()));
    let why = decide(&facts);
    assert_eq!(why.reasons[1].until, Some(moment(-5) + CANCEL_GRACE));
    assert!(why.reasons[1].message.contains("not needed"));
    assert_eq!(codes(&facts), ["running", "cancel_requested"]);
    facts.job.lease = lease(0);
    facts.cancel = None;
    assert_eq!(codes(&facts), ["lease_expired"], "a lease ends at its moment");
}

#[test]
fn a_finished_job_says_when_and_why_it_ended() {
    for (state, code) in
        [(JobState::Completed, "completed"), (JobState::Cancelled, "cancelled"), (JobState::Discarded, "discarded")]
    {
        let mut facts = facts(state, -60);
        facts.job.finished_at = Some(moment(-1));
        facts.job.last_error = Some(json!({"code": "x", "message": "it broke"}));
        let reason = only(&facts);
        assert_eq!((reason.code, reason.since), (code, Some(moment(-1))));
        assert_eq!(reason.message.contains("it broke"), state != JobState::Completed, "{}", reason.message);
        assert_eq!(reason.error.is_some(), state != JobState::Completed);
    }
}

fn pause(scope: &str, name: &str) -> Pause {
    Pause {
        scope: scope.to_owned(),
        name: name.to_owned(),
        paused_by: None,
        paused_by_name: Some("ops".to_owned()),
        reason: "a release".to_owned(),
        paused_at: moment(-30),
    }
}

fn places(of: Limited, most: i64, taken: i64) -> Places {
    let holders = vec![Holder { job: JobId::generate(), worker: WorkerId::generate() }];
    Places { of, most, taken, holders, free_at: None }
}

#[test]
fn a_pause_is_told_with_who_since_and_why_and_hides_nothing_else_that_holds_the_job() {
    let mut facts = facts(JobState::Available, -60);
    facts.pauses = vec![pause("queue", "q"), pause("kind", "a.b")];
    assert_eq!(codes(&facts), ["paused_queue", "paused_kind"]);
    let reason = &decide(&facts).reasons[1];
    assert_eq!((reason.by.as_deref(), reason.reason.as_deref()), (Some("ops"), Some("a release")));
    assert_eq!(reason.since, Some(moment(-30)));
    assert!(reason.message.contains("by ops since 2026-03-14 02:59:30 UTC: a release."), "{}", reason.message);
    assert!(reason.message.contains("queue resume --kind a.b --reason"), "{}", reason.message);
    facts.ahead = 3;
    assert_eq!(codes(&facts), ["paused_queue", "paused_kind", "behind_others"]);
    facts.workers.clear();
    assert_eq!(codes(&facts), ["paused_queue", "paused_kind", "unserved_queue"]);
    // Before it is due, both its time and the pause are told; a job that runs is held by nothing.
    facts.job.state = JobState::Scheduled;
    facts.job.run_at = moment(60);
    assert_eq!(codes(&facts), ["scheduled", "paused_queue", "paused_kind", "unserved_queue"]);
    facts.job.state = JobState::Running;
    assert_eq!(codes(&facts), ["running"]);
}

#[test]
fn a_limit_holds_a_job_only_where_no_place_is_free_and_says_who_holds_them() {
    let mut facts = facts(JobState::Available, -60);
    facts.job.concurrency_key = Some("acme".to_owned());
    facts.limits = vec![places(Limited::Queue, 5, 4), places(Limited::Key, 2, 1)];
    assert_eq!(codes(&facts), ["next"], "a place is free");
    facts.limits = vec![places(Limited::Queue, 5, 7), places(Limited::Key, 2, 2)];
    let why = decide(&facts);
    let [of_queue, of_key] = why.reasons.as_slice() else { panic!("{why:?}") };
    assert_eq!((of_queue.code, of_queue.limit, of_queue.running), ("queue_limit", Some(5), Some(7)));
    assert_eq!((of_key.code, of_key.key.as_deref(), of_key.limit), ("key_limit", Some("acme"), Some(2)));
    let holder = of_queue.holders[0];
    let named = format!("7 of 5 jobs that queue q may run at once are running: job {} on worker", holder.job);
    assert!(of_queue.message.starts_with(&named) && of_queue.message.contains("and 6 more"), "{}", of_queue.message);
    // Nobody to run it comes first: more room would not help.
    facts.workers.clear();
    assert_eq!(codes(&facts), ["unserved_queue"]);
    // And before it is due, who knows what will be free then.
    facts.workers = vec![group(Standing::Free, true)];
    facts.job.state = JobState::Retryable;
    facts.job.run_at = moment(60);
    assert_eq!(codes(&facts), ["waits_for_retry"]);
}

#[test]
fn a_rate_says_exactly_when_the_next_start_is_free() {
    let mut facts = facts(JobState::Available, -60);
    facts.job.concurrency_key = Some("acme".to_owned());
    let free_at = moment(30) + chrono::TimeDelta::microseconds(250_001);
    let span = std::time::Duration::from_secs(60);
    let started = Places { holders: Vec::new(), free_at: Some(free_at), ..places(Limited::Starts(span), 10, 10) };
    facts.limits = vec![started];
    let reason = only(&facts);
    assert_eq!((reason.code, reason.until, reason.jobs), ("rate_limit", Some(free_at), Some(10)));
    assert!(reason.message.contains("within 60 seconds on queue q"), "{}", reason.message);
    assert!(reason.message.contains("may start at 2026-03-14 03:00:30.250001 UTC"), "{}", reason.message);
}
