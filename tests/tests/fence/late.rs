//! Late writes of real processes, one at a time: each process does what the test orders, so that each case happens as it
//! is told and not by chance.

use domain::ids::{JobId, QueueName};
use domain::lease::Lease;
use domain::queue::{self, JobState, Limits};
use sandbox::exec::Signal;
use serde_json::json;

use crate::support::{Bench, LEASE, Puppet, rows};

const WRITES: [&str; 5] = ["renew", "progress", "step", "log", "child"];
const OUTCOMES: [&str; 4] = ["complete", "fail", "snooze", "discard"];

/// A job that `holder` has leased, and `holder` stopped.
async fn leased_and_stopped(bench: &Bench, holder: &Puppet) -> Lease {
    bench.enqueue("test.tick", json!({})).await;
    let lease = holder.lease_one().await;
    stop(bench, holder).await;
    lease
}

async fn stop(bench: &Bench, puppet: &Puppet) {
    puppet.process.signal(Signal::STOP);
    bench.until_stopped(&puppet.process).await;
}

async fn fences_of_steps(bench: &Bench, id: JobId) -> Vec<domain::lease::Fence> {
    bench.steps(id).await.iter().map(|step| step.fence).collect()
}

/// All that `late` can write is refused, and no row changes.
async fn refused_everything(bench: &Bench, late: &Puppet) {
    let before = rows(&bench.db).await;
    for what in WRITES {
        assert!(!late.write(what).await, "{what} under a stale fence");
    }
    for outcome in OUTCOMES {
        assert_eq!(late.settle(outcome).await, ["lost"], "{outcome} under a stale fence");
    }
    assert_eq!(rows(&bench.db).await, before, "not a row has changed");
}

/// Case (d): a zombie's renewals do not keep the lease of its successor alive, who has died meanwhile.
#[tokio::test]
async fn a_woken_process_does_not_keep_its_dead_successors_lease_alive() {
    let bench = Bench::start().await;
    let (zombie, successor) = (bench.puppet("zombie"), bench.puppet("successor"));
    let stale = leased_and_stopped(&bench, &zombie).await;
    let renewal = zombie.order(&json!({"do": "renew"}));
    bench.expire_and_rescue().await;
    let fresh = successor.lease_one().await;
    assert!(fresh.job == stale.job && fresh.fence > stale.fence);
    successor.process.kill9();
    let ends = bench.lease_of(stale.job).await.expect("it is leased").expires_at;
    zombie.process.signal(Signal::CONT);
    assert_eq!(zombie.answer(renewal).await, json!(false));
    assert_eq!(bench.lease_of(stale.job).await.expect("it is leased").expires_at, ends);
    // And so the successor's lease ends in its time, and the job goes on.
    bench.expire_and_rescue().await;
    let third = bench.puppet("third");
    assert!(third.lease_one().await.fence > fresh.fence);
    assert_eq!(third.settle("complete").await, ["completed"]);
}

/// Case (e): a step that was on its way when its process was stopped does not come after its successor's.
#[tokio::test]
async fn a_woken_process_writes_no_older_step_after_a_newer_one() {
    let bench = Bench::start().await;
    let (zombie, successor) = (bench.puppet("zombie"), bench.puppet("successor"));
    bench.enqueue("test.tick", json!({})).await;
    let stale = zombie.lease_one().await;
    assert!(zombie.write("step").await);
    stop(&bench, &zombie).await;
    let late = zombie.order(&json!({"do": "step", "cursor": "older"}));
    bench.expire_and_rescue().await;
    let fresh = successor.lease_one().await;
    assert!(successor.write("step").await);
    zombie.process.signal(Signal::CONT);
    assert_eq!(zombie.answer(late).await, json!(false));
    assert!(successor.write("step").await, "and its own go on");
    assert_eq!(fences_of_steps(&bench, stale.job).await, [stale.fence, fresh.fence, fresh.fence]);
}

/// Case (f): while the job waits, while its successor runs and after it finished, a zombie enqueues no child.
#[tokio::test]
async fn a_woken_process_enqueues_no_child() {
    let bench = Bench::start().await;
    let (zombie, successor) = (bench.puppet("zombie"), bench.puppet("successor"));
    leased_and_stopped(&bench, &zombie).await;
    let tries = async || {
        let child = zombie.order(&json!({"do": "child"}));
        zombie.process.signal(Signal::CONT);
        assert_eq!(zombie.answer(child).await, json!(false));
        stop(&bench, &zombie).await;
        bench.children().await
    };
    bench.expire_and_rescue().await;
    assert_eq!(tries().await, 0, "it waits in the queue");
    successor.lease_one().await;
    assert_eq!(tries().await, 0, "its successor runs");
    assert!(successor.write("child").await, "the successor may");
    assert_eq!(successor.settle("complete").await, ["completed"]);
    assert_eq!(tries().await, 1, "its successor has finished");
}

/// Case (g), Q-034: a zombie frees no place under a limit that its successor has. The place of a holder that was killed is
/// taken until its job is taken over, and no longer.
#[tokio::test]
async fn a_woken_process_does_not_free_its_successors_place_under_a_limit() {
    let bench = Bench::start().await;
    let [zombie, successor, third] = ["zombie", "successor", "third"].map(|name| bench.puppet(name));
    let one = Limits { running: Some(1), running_per_key: Some(1), starts_per_key: None };
    let default = QueueName::new("default").expect("a name");
    queue::set_limits(&mut *bench.conn().await, &default, &one, None, "a test", None).await.expect("limits");
    let (first, second) = (bench.enqueue_keyed("test.tick", "a").await, bench.enqueue_keyed("test.tick", "a").await);
    assert_eq!(zombie.lease_one().await.job, first);
    stop(&bench, &zombie).await;
    third.leases_nothing().await;

    bench.expire_and_rescue().await;
    assert_eq!(successor.lease_one().await.job, first);
    zombie.process.signal(Signal::CONT);
    refused_everything(&bench, &zombie).await;
    third.leases_nothing().await;

    successor.process.kill9();
    third.leases_nothing().await;
    bench.expire_and_rescue().await;
    assert_eq!(third.lease_one().await.job, first);
    refused_everything(&bench, &zombie).await;
    let fourth = bench.puppet("fourth");
    fourth.leases_nothing().await;
    assert_eq!(third.settle("complete").await, ["completed"]);
    assert_eq!(fourth.lease_one().await.job, second, "its end made room");
}

/// Case (h), Q-010: a second process under the same host name and process number is another worker. The first one's
/// lease is none of its own, and when it leases the same job, the first is a stranger.
#[tokio::test]
async fn a_process_under_a_dead_ones_host_and_pid_is_a_stranger_to_its_lease() {
    let bench = Bench::start().await;
    let name = json!({"do": "register", "host": "pod-0", "pid": 1});
    let (first, second) = (bench.puppet("first"), bench.puppet("second"));
    first.ask(name.clone()).await;
    let stale = leased_and_stopped(&bench, &first).await;
    let held = bench.lease_of(stale.job).await.expect("it is leased");
    second.ask(name).await;
    let workers = queue::list_workers(&mut *bench.conn().await, 10).await.expect("the database answers");
    let names: Vec<_> = workers.iter().map(|w| (w.host.as_str(), w.pid)).collect();
    assert_eq!(names, [("pod-0", 1), ("pod-0", 1)], "two workers under one name");
    second.leases_nothing().await;
    assert_eq!(bench.lease_of(stale.job).await, Some(held.clone()), "and its lease is as it was");

    bench.expire_and_rescue().await;
    let fresh = second.lease_one().await;
    assert_eq!(fresh.job, stale.job);
    assert_ne!(bench.lease_of(stale.job).await.expect("it is leased").worker, held.worker);
    first.process.signal(Signal::CONT);
    refused_everything(&bench, &first).await;
    assert_eq!(second.settle("complete").await, ["completed"]);
    refused_everything(&bench, &first).await;
}

/// Case (i): the number of the attempt goes back with a rescue, a snooze and an operator's retry, and is reached again;
/// whoever held that number first is as late as any.
#[tokio::test]
async fn a_woken_process_whose_attempts_number_came_again_is_refused_everything() {
    let bench = Bench::start().await;
    let (zombie, successor) = (bench.puppet("zombie"), bench.puppet("successor"));
    let stale = leased_and_stopped(&bench, &zombie).await;
    let attempt = async || bench.job(stale.job).await.attempt;
    let number = attempt().await;
    bench.expire_and_rescue().await;
    successor.lease_one().await;
    assert_eq!(attempt().await, number, "an interruption spends no attempt");
    zombie.process.signal(Signal::CONT);
    refused_everything(&bench, &zombie).await;

    assert_eq!(successor.settle("snooze").await, ["available"]);
    assert!(attempt().await < number, "a snooze lowers it");
    refused_everything(&bench, &zombie).await;
    successor.ask(json!({"do": "forget"})).await;
    successor.lease_one().await;
    assert_eq!(attempt().await, number);
    refused_everything(&bench, &zombie).await;

    assert_eq!(successor.settle("discard").await, ["discarded"]);
    queue::retry(&mut *bench.conn().await, stale.job, None).await.expect("an operator brings it back");
    refused_everything(&bench, &zombie).await;
    successor.ask(json!({"do": "forget"})).await;
    successor.lease_one().await;
    refused_everything(&bench, &zombie).await;
    assert_eq!(successor.settle("complete").await, ["completed"]);
}

/// Case (k), the cancel came while the process was stopped, and its grace is over: what the process did comes too late.
#[tokio::test]
async fn a_woken_process_whose_job_was_cancelled_over_its_head_is_refused_everything() {
    let bench = Bench::start().await;
    let holder = bench.puppet("holder");
    let stale = leased_and_stopped(&bench, &holder).await;
    let mut conn = bench.conn().await;
    queue::cancel(&mut conn, stale.job, "no longer wanted", None).await.expect("it can be cancelled");
    bench.db.clock().advance(queue::policy::CANCEL_GRACE * 2).await;
    assert_eq!(queue::cancel_ignored(&mut conn, 10).await.expect("the database answers"), 1);
    holder.process.signal(Signal::CONT);
    refused_everything(&bench, &holder).await;
    assert_eq!(bench.job(stale.job).await.state, JobState::Cancelled);
}

/// Case (n), Q-007: of five outcomes in one call one is stale. The other four are recorded.
#[tokio::test]
async fn a_woken_process_settles_all_of_a_batch_but_the_stale_one() {
    for (outcome, becomes) in [("complete", JobState::Completed), ("fail", JobState::Retryable)] {
        let bench = Bench::start().await;
        let (holder, successor) = (bench.puppet("holder"), bench.puppet("successor"));
        for _ in 0..5 {
            bench.enqueue("test.tick", json!({})).await;
        }
        let leases = holder.lease(5).await;
        stop(&bench, &holder).await;
        bench.db.clock().advance(LEASE * 2).await;
        // Renewals of the other four arrived in time; the one of the third did not.
        let alive: Vec<_> = leases.iter().filter(|l| **l != leases[2]).map(|l| (*l, LEASE)).collect();
        queue::renew(&mut *bench.conn().await, &alive).await.expect("the database answers");
        let rescued = queue::rescue_expired(&mut *bench.conn().await, 10).await.expect("the database answers");
        assert_eq!(rescued.again, 1);
        assert_eq!(successor.lease_one().await.job, leases[2].job);

        holder.process.signal(Signal::CONT);
        let word = becomes.as_str();
        assert_eq!(holder.settle(outcome).await, [word, word, "lost", word, word]);
        for lease in &leases {
            let state = bench.job(lease.job).await.state;
            assert_eq!(state, if *lease == leases[2] { JobState::Running } else { becomes });
        }
        assert_eq!(holder.settle(outcome).await, ["already", "already", "lost", "already", "already"]);
        assert_eq!(successor.settle("complete").await, ["completed"]);
    }
}
