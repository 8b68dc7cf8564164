//! an expired lease gives its job to the next, and a job that kills its workers ends.

use std::time::Duration;

use domain::queue::{self, Fate, JobState, Rescued};
use serde_json::json;

use crate::support::{LEASE, Queue, job};

#[tokio::test]
async fn a_living_lease_is_not_rescued_and_an_expired_one_is_once() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let held = q.lease().await;
    assert_eq!(q.rescue().await, Rescued::default());
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(q.rescue().await, Rescued { again: 1, ..Rescued::default() });
    assert_eq!(q.rescue().await, Rescued::default(), "a second rescuer finds nothing");
    let back = q.job(id).await;
    assert_eq!(
        (back.state, back.attempt, back.interruptions, back.fence),
        (JobState::Available, 0, 1, held.lease.fence)
    );
    let told = queue::attempts(&mut *q.conn().await, id).await.expect("attempts");
    assert_eq!((told[0].outcome.as_str(), told[0].last_fence), ("interrupted", held.lease.fence));
}

/// Interruptions count in a budget of their own: failures do not touch it and it does not touch the attempts.
#[tokio::test]
async fn a_poison_job_is_discarded_with_its_history() {
    let q = Queue::start().await;
    let mut poison = job();
    poison.max_interruptions = 3;
    poison.max_attempts = 1;
    let id = q.enqueue_as(poison).await;
    for _ in 0..2 {
        q.lease().await;
        q.expire_and_rescue().await;
        assert_eq!(q.job(id).await.state, JobState::Available);
    }
    q.lease().await;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(q.rescue().await, Rescued { discarded: 1, ..Rescued::default() });
    let ended = q.job(id).await;
    assert_eq!((ended.state, ended.interruptions), (JobState::Discarded, 3));
    assert_eq!(ended.last_error.expect("why")["code"], json!("interruptions_spent"));
    let told = queue::attempts(&mut *q.conn().await, id).await.expect("attempts");
    assert_eq!(told.iter().filter(|a| a.outcome == "interrupted").count(), 3);

    queue::retry(&mut *q.conn().await, id, None).await.expect("an operator may bring it back");
    let lease = q.lease().await.lease;
    assert_eq!(q.complete(lease).await, Fate::Settled(JobState::Completed));
    let told = queue::attempts(&mut *q.conn().await, id).await.expect("attempts");
    assert_eq!(told.len(), 3, "its history stays, and no attempt is told twice");
}

/// Somebody asked a job to end whose worker then died: there is nothing left to run.
#[tokio::test]
async fn a_rescue_of_a_job_that_was_asked_to_end_cancels_it() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    q.lease().await;
    queue::cancel(&mut *q.conn().await, id, "changed my mind", None).await.expect("asked");
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(q.rescue().await, Rescued { cancelled: 1, ..Rescued::default() });
    let ended = q.job(id).await;
    assert_eq!(
        (ended.state, ended.last_error),
        (JobState::Cancelled, Some(json!({"code": "cancelled", "message": "changed my mind"})))
    );
}

#[tokio::test]
async fn rescues_are_bounded_and_take_no_job_twice_when_they_run_at_once() {
    let q = Queue::start().await;
    for _ in 0..50 {
        q.enqueue().await;
    }
    assert_eq!(q.lease_up_to(50).await.len(), 50);
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let first = queue::rescue_expired(&mut *q.conn().await, 8).await.expect("answers");
    assert_eq!(first.again, 8);
    let rescuers: Vec<_> = (0..8)
        .map(|_| {
            let pool = q.db.pool().clone();
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                let mut again = 0;
                for _ in 0..10 {
                    again += queue::rescue_expired(&mut conn, 5).await.expect("answers").again;
                }
                again
            })
        })
        .collect();
    let mut again = first.again;
    for rescuer in rescuers {
        again += rescuer.await.expect("done");
    }
    assert_eq!(again, 50);
    let leased = q.lease_up_to(50).await;
    assert!(leased.iter().all(|l| l.interruptions == 1), "each was interrupted once");
    assert_eq!(leased.len(), 50);
}

/// Readers see how many jobs were taken over, by queue and kind, whatever became of them.
#[tokio::test]
async fn what_is_rescued_is_counted() {
    let q = Queue::start().await;
    q.enqueue().await;
    let mut last = job();
    last.max_interruptions = 1;
    q.enqueue_as(last).await;
    assert_eq!(q.lease_up_to(2).await.len(), 2);
    let counted = async || {
        let points = queue::throughput(&mut *q.conn().await, 60).await.expect("the throughput");
        points.iter().filter(|p| p.outcome == "rescued").map(|p| p.total).sum::<i64>()
    };
    assert_eq!(q.rescue().await, Rescued::default());
    assert_eq!(counted().await, 0);

    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(q.rescue().await, Rescued { again: 1, discarded: 1, ..Rescued::default() });
    assert_eq!(counted().await, 2);
    q.lease().await;
    q.expire_and_rescue().await;
    assert_eq!(counted().await, 3, "one more is added");
}
