//! Races that are hoped for, not made: a process is stopped or killed at a moment of chance in the middle of a write.
//! What is asserted holds for every moment.

use std::time::Duration;

use domain::ids::{QueueName, WorkerId};
use domain::queue::{self, JobState, Limits};
use fastrand::Rng;
use sandbox::exec::Signal;
use serde_json::{Value, json};
use tests::trials::{chance, trials};
use tests::wait::until;

use crate::support::{Bench, LEASE, PATIENCE, Puppet};

/// At most about as long as a process takes for a write.
async fn a_moment(chance: &mut Rng, limit_us: u64) {
    tokio::time::sleep(Duration::from_micros(chance.u64(0..limit_us))).await;
}

/// The result that a puppet's completion leaves.
fn by(worker: WorkerId) -> Option<Value> {
    Some(json!({"by": worker}))
}

/// Takes a job over and completes it; its worker.
async fn finish(bench: &Bench, successor: &Puppet, what: &str) -> WorkerId {
    successor.ask(json!({"do": "forget"})).await;
    let fresh = successor.lease_one().await;
    let worker = bench.lease_of(fresh.job).await.expect("it is leased").worker;
    assert!(successor.write("step").await, "{what}");
    assert_eq!(successor.settle("complete").await, ["completed"], "{what}");
    worker
}

/// A SIGSTOP somewhere in a write, a takeover, a SIGCONT: the woken process learns the truth about its write, whether it
/// came in time or too late, and only one completion stands.
#[tokio::test]
async fn a_process_stopped_anywhere_in_a_write_learns_the_truth_about_it() {
    let bench = Bench::start().await;
    let (zombie, successor) = (bench.puppet("zombie"), bench.puppet("successor"));
    let (mut in_time, mut late) = (0, 0);
    for trial in 0..trials() {
        let mut chance = chance(trial);
        let completes = chance.bool();
        let id = bench.enqueue("test.tick", json!({})).await;
        zombie.ask(json!({"do": "forget"})).await;
        let held = zombie.lease_one().await;
        let holder = bench.lease_of(id).await.expect("it is leased").worker;
        let write = zombie.order(&match completes {
            true => json!({"do": "settle", "outcome": "complete"}),
            false => json!({"do": "step", "cursor": trial}),
        });
        a_moment(&mut chance, 1800).await;
        zombie.process.signal(Signal::STOP);
        bench.until_stopped(&zombie.process).await;

        let taken = bench.expire_until_rescued_or_over(id).await;
        let what = format!("trial {trial}, completes: {completes}, taken over: {taken}");
        let winner = if taken { finish(&bench, &successor, &what).await } else { holder };
        zombie.process.signal(Signal::CONT);
        let told = zombie.answer(write).await;

        let done = bench.job(id).await;
        assert_eq!((done.state, done.result), (JobState::Completed, by(winner)), "{what}");
        assert_eq!(bench.attempts(id).await.len(), usize::from(taken), "{what}: one interruption, or none");
        let steps: Vec<_> = bench.steps(id).await.iter().map(|step| step.fence).collect();
        assert!(steps.is_sorted(), "{what}: no older step behind a newer one: {steps:?}");
        if completes {
            assert_eq!(told, if taken { json!(["lost"]) } else { json!(["completed"]) }, "{what}");
        } else {
            assert_eq!(told, json!(steps.contains(&held.fence)), "{what}");
        }
        match told == json!(true) || !taken {
            true => in_time += 1,
            false => late += 1,
        }
    }
    eprintln!("{in_time} writes came in time, {late} too late");
}

/// A SIGKILL somewhere in a write: what it wrote stands whole or not at all, and the job is done once.
#[tokio::test]
async fn a_process_killed_anywhere_in_a_write_leaves_its_job_to_be_done_once() {
    let bench = Bench::start().await;
    let successor = bench.puppet("successor");
    let (mut in_time, mut late) = (0, 0);
    for trial in 0..trials() {
        let mut chance = chance(trial);
        let id = bench.enqueue("test.tick", json!({})).await;
        let victim = bench.puppet(&format!("victim-{trial}"));
        victim.lease_one().await;
        let holder = bench.lease_of(id).await.expect("it is leased").worker;
        let children = bench.children().await;
        let what = *chance.choice(&["complete", "step", "child"]).expect("there are some");
        victim.order(&match what {
            "complete" => json!({"do": "settle", "outcome": "complete"}),
            write => json!({"do": write, "cursor": trial}),
        });
        a_moment(&mut chance, 4000).await;
        victim.process.kill9();

        let taken = bench.expire_until_rescued_or_over(id).await;
        let what = format!("trial {trial}, {what}, taken over: {taken}");
        let winner = if taken { finish(&bench, &successor, &what).await } else { holder };
        let done = bench.job(id).await;
        assert_eq!((done.state, done.result), (JobState::Completed, by(winner)), "{what}");
        assert_eq!((done.attempt, done.interruptions), (1, i32::from(taken)), "{what}");
        assert_eq!(bench.attempts(id).await.len(), usize::from(taken), "{what}");
        assert!((0..=1).contains(&(bench.children().await - children)), "{what}: one child, or none");
        match taken {
            true => late += 1,
            false => in_time += 1,
        }
    }
    eprintln!("{in_time} completions came in time, {late} jobs were done by another");
}

async fn sessions(bench: &Bench) -> i64 {
    sqlx::query_scalar("select count(*) from pg_stat_activity where datname = current_database()")
        .fetch_one(bench.db.pool())
        .await
        .expect("the database answers")
}

/// A SIGKILL somewhere in a lease under a limit of one: whether the lease was committed or not, the place is never
/// taken twice, and is free when the dead one's lease was taken over.
#[tokio::test]
async fn a_process_killed_anywhere_in_a_lease_keeps_no_place_under_a_limit() {
    let bench = Bench::start().await;
    let (successor, other) = (bench.puppet("successor"), bench.puppet("other"));
    let one = Limits { running: Some(1), running_per_key: Some(1), starts_per_key: None };
    let default = QueueName::new("default").expect("a name");
    queue::set_limits(&mut *bench.conn().await, &default, &one, None, "a test", None).await.expect("limits");
    let mut leased = 0;
    for trial in 0..trials() {
        let mut chance = chance(trial);
        let id = bench.enqueue_keyed("test.tick", if chance.bool() { "a" } else { "b" }).await;
        let before = sessions(&bench).await;
        let victim = bench.puppet(&format!("victim-{trial}"));
        // It is connected: the kill meets the lease and not its start.
        victim.ask(json!({"do": "sweep"})).await;
        victim.order(&json!({"do": "lease", "limit": 1}));
        // The statement is long, and this is the first time that the victim's session plans it.
        a_moment(&mut chance, 80_000).await;
        victim.process.kill9();
        // What it had sent is still carried out: until then the dead may lease whatever is due.
        until("the dead one's sessions are gone", PATIENCE, || async {
            (sessions(&bench).await <= before).then_some(())
        })
        .await;
        until("the job is leased again", PATIENCE, || async {
            bench.db.clock().advance(LEASE * 2).await;
            queue::rescue_expired(&mut *bench.conn().await, 10).await.expect("the database answers");
            let got = successor.ask(json!({"do": "lease", "limit": 1})).await;
            (got != json!([])).then_some(())
        })
        .await;
        bench.enqueue_keyed("test.tick", "a").await;
        other.leases_nothing().await;
        assert_eq!(successor.settle("complete").await, ["completed"], "trial {trial}");
        successor.ask(json!({"do": "forget"})).await;
        other.lease_one().await;
        assert_eq!(other.settle("complete").await, ["completed"], "trial {trial}: the place was free");
        other.ask(json!({"do": "forget"})).await;
        leased += bench.job(id).await.interruptions;
    }
    eprintln!("{leased} of the dead had leased");
}
