//! I1: a write under a stale fence changes nothing.

use std::time::Duration;

use domain::lease::Lease;
use domain::queue::{self, Error, Fate, Operation, Outcome, Progress, Renewed, Settlement};
use serde_json::json;

use crate::support::{LEASE, Queue, cancelled, completed, discarded, failed, job, snoozed};

/// Everything that a worker can write.
const WRITES: [Operation; 12] = [
    Operation::Renew,
    Operation::Progress,
    Operation::Step,
    Operation::Log,
    Operation::EnqueueChild,
    Operation::Complete,
    Operation::Fail,
    Operation::Snooze,
    Operation::Discard,
    Operation::Cancel,
    Operation::Release,
    Operation::Domain,
];

/// Tries to write; true when it was accepted, false when it was refused as "lease lost".
async fn write(q: &Queue, lease: Lease, what: Operation) -> bool {
    let mut conn = q.conn().await;
    let accepted = |answer: Result<(), Error>| match answer {
        Ok(()) => true,
        Err(Error::LeaseLost(lost)) => {
            assert_eq!(lost.lease, lease, "the refusal names the lease that was held");
            false
        }
        Err(other) => panic!("{what:?}: {other}"),
    };
    let outcome: Outcome = match what {
        Operation::Renew => {
            let told = queue::renew(&mut conn, &[(lease, LEASE)]).await.expect("the database answers");
            return told[0] != Renewed::Lost;
        }
        Operation::Progress => {
            let progress = Progress { done: 7, message: "late".to_owned(), ..Progress::default() };
            return accepted(queue::set_progress(&mut conn, lease, &progress).await);
        }
        Operation::Step => {
            return accepted(queue::append_step(&mut conn, lease, "late", &json!({"at": 7}), &json!({})).await);
        }
        Operation::Log => return accepted(queue::append_log(&mut conn, lease, "info", "late").await),
        Operation::EnqueueChild => {
            return accepted(queue::enqueue_child(&mut conn, lease, &job()).await.map(|_| ()));
        }
        Operation::Domain => {
            use sqlx::Connection as _;
            let mut tx = conn.begin().await.expect("a transaction");
            return accepted(queue::require_lease(&mut tx, lease).await);
        }
        Operation::Complete => completed(),
        Operation::Fail => failed(),
        Operation::Snooze => snoozed(5),
        Operation::Discard => discarded(),
        Operation::Cancel => cancelled(),
        Operation::Release => Outcome::Released,
    };
    match queue::settle(&mut conn, &[Settlement { lease, outcome }]).await.expect("the database answers")[0] {
        Fate::Settled(_) => true,
        Fate::Lost => false,
        Fate::Already => panic!("{what:?}: this lease was never settled"),
        Fate::Busy => panic!("{what:?}: nobody holds the row"),
    }
}

/// The control of all that follows: with a living lease every one of these writes is accepted.
#[tokio::test]
async fn every_write_under_a_living_lease_is_accepted() {
    let q = Queue::start().await;
    for what in WRITES {
        let id = q.enqueue().await;
        let held = q.lease().await;
        assert_eq!(held.lease.job, id);
        assert!(write(&q, held.lease, what).await, "{what:?}");
        // Out of the way of the next one; a write that did not end the lease leaves it to be ended.
        let _ = q.settle(held.lease, discarded()).await;
        sqlx::query("delete from jobs").execute(q.db.pool()).await.expect("an empty queue");
    }
}

/// Cases (a), (d), (e), (f): the lease expired, and another worker runs the job.
#[tokio::test]
async fn a_stale_fence_changes_nothing_while_the_successor_runs() {
    let q = Queue::start().await;
    q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    let successor = q.lease().await.lease;
    assert_eq!(successor.job, stale.job);
    assert!(write(&q, successor, Operation::Step).await);
    refuses_everything(&q, stale).await;
    assert_eq!(q.complete(successor).await, Fate::Settled(queue::JobState::Completed));
}

/// Case (b): the successor has finished; the row stands among the finished.
#[tokio::test]
async fn a_stale_fence_changes_nothing_after_the_successor_finished() {
    let q = Queue::start().await;
    for end in [completed(), discarded(), cancelled()] {
        q.enqueue().await;
        let stale = q.lease().await.lease;
        q.expire_and_rescue().await;
        let successor = q.lease().await.lease;
        assert!(matches!(q.settle(successor, end).await, Fate::Settled(state) if state.is_final()));
        refuses_everything(&q, stale).await;
    }
}

/// Case (c): the job was taken back and waits for whoever leases it next.
#[tokio::test]
async fn a_stale_fence_changes_nothing_while_the_job_is_back_in_the_queue() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    assert_eq!(q.job(id).await.state, queue::JobState::Available);
    refuses_everything(&q, stale).await;
}

/// Case (c), where the successor put it back: it waits for its time or its next attempt.
#[tokio::test]
async fn a_stale_fence_changes_nothing_while_the_job_waits_after_its_successor() {
    let q = Queue::start().await;
    for end in [snoozed(60), failed(), Outcome::Released] {
        let id = q.enqueue().await;
        let stale = q.lease().await.lease;
        q.expire_and_rescue().await;
        let successor = q.lease().await.lease;
        assert!(matches!(q.settle(successor, end).await, Fate::Settled(state) if !state.is_final()));
        refuses_everything(&q, stale).await;
        queue::cancel(&mut *q.conn().await, id, "out of the way", None).await.expect("cancelled");
        refuses_everything(&q, stale).await;
    }
}

/// Case (i): an operator's retry brings back a job whose attempts were spent; the old holder of the same attempt's
/// number is as late as any.
#[tokio::test]
async fn a_stale_fence_changes_nothing_when_its_attempts_number_comes_again() {
    let q = Queue::start().await;
    q.enqueue().await;
    let stale = q.lease().await;
    q.expire_and_rescue().await;
    let snoozer = q.lease().await;
    assert_eq!(snoozer.attempt, stale.attempt, "an interruption spends no attempt");
    q.settle(snoozer.lease, snoozed(1)).await;
    q.db.clock().advance(Duration::from_secs(2)).await;
    q.stage().await;
    let third = q.lease().await;
    assert_eq!(third.attempt, stale.attempt, "nor does a snooze");
    refuses_everything(&q, stale.lease).await;

    q.settle(third.lease, discarded()).await;
    queue::retry(&mut *q.conn().await, stale.lease.job, None).await.expect("brought back");
    refuses_everything(&q, stale.lease).await;
    q.lease().await;
    refuses_everything(&q, stale.lease).await;
}

/// Expiry alone refuses nothing: as long as nobody took the job over, its holder may still write.
#[tokio::test]
async fn an_expired_lease_that_nobody_took_over_still_writes() {
    let q = Queue::start().await;
    q.enqueue().await;
    let held = q.lease().await.lease;
    q.db.clock().advance(LEASE * 2).await;
    for what in [Operation::Progress, Operation::Step, Operation::Log, Operation::Renew] {
        assert!(write(&q, held, what).await, "{what:?}");
    }
    assert_eq!(q.rescue().await, queue::Rescued::default(), "the renewal brought it back to life");
    assert_eq!(q.complete(held).await, Fate::Settled(queue::JobState::Completed));
}

async fn refuses_everything(q: &Queue, stale: Lease) {
    for what in WRITES {
        let before = q.dump().await;
        assert!(!write(q, stale, what).await, "{what:?} under a stale fence is refused");
        assert_eq!(q.dump().await, before, "{what:?} under a stale fence changes nothing");
    }
}
