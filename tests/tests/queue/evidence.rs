//! refused writes are kept.

use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{self, Operation};

use crate::support::{LEASE, Queue};

#[tokio::test]
async fn a_refused_write_is_kept_with_who_what_and_how_late() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let stale = q.lease().await.lease;
    let late = WorkerId::generate();
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    q.rescue().await;
    let successor = q.lease().await.lease;
    q.db.clock().advance(Duration::from_secs(4)).await;
    let mut conn = q.conn().await;
    let total = queue::note_refused(&mut conn, stale, Some(late), Operation::Complete).await.expect("noted");
    assert_eq!(total, 1);
    let kept = queue::recent_refused(&mut conn, None, None, 10).await.expect("evidence");
    assert_eq!(kept.len(), 1);
    let row = &kept[0];
    assert_eq!((row.job, row.kind.as_str(), row.queue.as_str()), (id, "test.work", "default"));
    assert_eq!((row.worker, row.operation.as_str()), (Some(late), "complete"));
    assert_eq!((row.fence_held, row.fence_current), (stale.fence, Some(successor.fence)));
    assert_eq!(row.state_current.as_deref(), Some("running"));
    // The lease ended five seconds ago on the clock that the test moves.
    let late_ms = row.late_ms.expect("the interrupted attempt says when the lease ended");
    assert!((5_000..35_000).contains(&late_ms), "{late_ms}");
}

#[tokio::test]
async fn a_hundred_refused_writes_of_one_lease_are_kept_and_the_rest_counted() {
    let q = Queue::start().await;
    q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    let successor = q.lease().await.lease;
    let mut conn = q.conn().await;
    for n in 1..=130 {
        let total = queue::note_refused(&mut conn, stale, None, Operation::Renew).await.expect("noted");
        assert_eq!(total, n);
    }
    // Another lease of the same job has a hundred of its own.
    queue::note_refused(&mut conn, successor, None, Operation::Log).await.expect("noted");
    let kept = queue::recent_refused(&mut conn, Some(stale.job), None, 1000).await.expect("evidence");
    assert_eq!(kept.iter().filter(|r| r.fence_held == stale.fence).count(), 100);
    assert_eq!(kept.iter().filter(|r| r.fence_held == successor.fence).count(), 1);
    let overview = queue::overview(&mut conn).await.expect("the overview");
    assert_eq!(overview.refused_last_hour, 101, "shown on the first page");
}

/// The job is finished by the time that its zombie wakes: the evidence names the finished row.
#[tokio::test]
async fn evidence_names_the_state_of_a_job_that_has_finished() {
    let q = Queue::start().await;
    q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    let successor = q.lease().await.lease;
    q.complete(successor).await;
    let mut conn = q.conn().await;
    queue::note_refused(&mut conn, stale, None, Operation::Step).await.expect("noted");
    let kept = queue::recent_refused(&mut conn, Some(stale.job), None, 10).await.expect("evidence");
    assert_eq!(kept[0].state_current.as_deref(), Some("completed"));
    assert_eq!(kept[0].fence_current, Some(successor.fence));
}
