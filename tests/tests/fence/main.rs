//! The fence against real processes: kill −9, SIGSTOP past the lease, SIGCONT, PostgreSQL restarted, answers lost.
//! docs/guarantees.md has a table of the late-write cases and their tests.

mod clocks;
mod late;
mod lost_answers;
mod races;
mod restarts;
mod support;
mod trials;
mod zombies;

use std::time::Duration;

use domain::queue::JobState;
use sandbox::exec::Signal;
use serde_json::json;

use support::{Bench, LEASE, PATIENCE};

/// Cases (a), (d), (e), with the product's own runner on both sides: it stops by itself, is told by the fence, leaves
/// evidence, and lives on.
#[tokio::test]
async fn a_worker_stopped_past_its_lease_is_fenced_off_and_told() {
    for engine in ["apalis", "plain"] {
        let bench = Bench::start().await;
        let until = bench.file("until");
        let id = bench.enqueue("test.tick", json!({"until": until})).await;
        let first = bench.worker(&format!("first-{engine}"), engine);
        let held = bench.until_running(id).await;
        first.signal(Signal::STOP);
        bench.until_stopped(&first).await;

        let second = bench.worker(&format!("second-{engine}"), engine);
        let successor = tests::wait::until("the second worker takes the job over", PATIENCE, || async {
            bench.lease_of(id).await.filter(|lease| lease.worker != held.worker)
        })
        .await;
        first.signal(Signal::CONT);
        let evidence = tests::wait::until("the refused write is kept as evidence", PATIENCE, || async {
            Some(bench.evidence(id).await).filter(|rows| !rows.is_empty())
        })
        .await;
        assert!(evidence.iter().all(|row| row.fence_held == held.fence), "{evidence:?}");
        assert_eq!(evidence[0].worker, Some(held.worker), "it says who was late");
        assert_eq!(evidence[0].fence_current, Some(successor.fence));
        assert!(evidence[0].late_ms.is_some_and(|late| late >= 0), "and by how much: {evidence:?}");
        tests::wait::until("the late worker's log says so", PATIENCE, || async {
            first.log().contains("the fence refused a write: the lease is lost").then_some(())
        })
        .await;

        std::fs::write(&until, "").expect("a file");
        let done = bench.until_state(id, JobState::Completed).await;
        assert_eq!(done.result, Some(json!({"pid": second.pid()})), "the successor's result stands");
        assert_eq!(done.fence, successor.fence);
        let steps = bench.steps(id).await;
        let first_of_successor = steps.iter().position(|s| s.fence == successor.fence).expect("it took steps");
        assert!(
            steps[first_of_successor..].iter().all(|s| s.fence == successor.fence),
            "no older step stands after a newer one"
        );

        // The late worker is no casualty: alone, it does the next job.
        assert!(second.stop().await.success(), "the successor ends in order");
        let next = bench.enqueue("test.tick", json!({"until": until})).await;
        assert_eq!(bench.until_state(next, JobState::Completed).await.result, Some(json!({"pid": first.pid()})));
        assert!(first.stop().await.success());
    }
}

/// What a dead worker held is begun again by another within one lease and a second, on the database's clock.
#[tokio::test]
async fn a_killed_workers_job_is_done_by_another_within_one_lease_and_a_second() {
    for engine in ["apalis", "plain"] {
        let bench = Bench::start().await;
        let first = bench.worker(&format!("first-{engine}"), engine);
        let id = bench.enqueue("test.dies_once", json!({})).await;
        let held = bench.until_running(id).await;
        let second = bench.worker(&format!("second-{engine}"), engine);
        bench.until_registered(2).await;
        let killed_at = bench.db.clock().now().await;
        first.kill9();
        let done = bench.until_state(id, JobState::Completed).await;
        let finished_at = done.finished_at.expect("it is over");
        let took = (finished_at - killed_at).to_std().expect("time goes forward");
        assert_eq!(done.result, Some(json!({"pid": second.pid()})));
        assert!(took <= LEASE + Duration::from_secs(1), "{engine}: {took:?} after the kill");
        assert!(done.fence > held.fence);
        assert_eq!((done.attempt, done.interruptions), (1, 1), "the kill spent an interruption, no attempt");
        assert!(second.stop().await.success());
    }
}
