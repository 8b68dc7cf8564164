//! only the database's clock judges.

use std::time::Duration;

use domain::queue::{self, JobState};
use sqlx::Row as _;

use crate::support::{LEASE, Queue, worker};

/// Case (m): a worker's wall clock is an hour off. It is reported, and changes nothing.
#[tokio::test]
async fn a_skewed_worker_clock_is_reported_and_changes_nothing() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let me = worker();
    let mut conn = q.conn().await;
    queue::register_worker(&mut conn, &me, "host", 1, "0.1.0", None, 1).await.expect("registered");
    let before = q.dump().await;
    let skewed = q.db.clock().now().await + Duration::from_secs(3600);
    queue::seen_worker(&mut conn, me.worker, Some(skewed)).await.expect("seen");
    let shown = queue::worker(&mut conn, me.worker).await.expect("answers").expect("registered");
    let skew = shown.clock_skew_ms.expect("reported");
    assert!((3_590_000..=3_600_000).contains(&skew), "{skew}");
    assert_eq!(shown.state, "live", "it is judged by the database's clock");
    let changed: Vec<_> =
        before.iter().zip(q.dump().await).filter(|(b, a)| *b != a).map(|(b, _)| b.0.clone()).collect();
    assert_eq!(changed, ["workers"]);
    assert_eq!(q.job(id).await.state, JobState::Available);

    queue::seen_worker(&mut conn, me.worker, None).await.expect("seen");
    let shown = queue::worker(&mut conn, me.worker).await.expect("answers").expect("registered");
    assert_eq!(shown.clock_skew_ms, Some(skew), "what was measured last stays");
}

/// Every time that the queue writes is the database's, moved clock and all.
#[tokio::test]
async fn every_time_is_read_from_the_one_function() {
    let q = Queue::start().await;
    let ahead = Duration::from_secs(40 * 86_400);
    q.db.clock().advance(ahead).await;
    let floor = q.db.clock().now().await;
    let id = q.enqueue().await;
    let lease = q.lease().await;
    assert!(lease.leased_at >= floor && lease.expires_at >= floor + LEASE);
    queue::append_log(&mut *q.conn().await, lease.lease, "info", "now").await.expect("a line");
    queue::append_step(&mut *q.conn().await, lease.lease, "s", &serde_json::json!(1), &serde_json::json!({}))
        .await
        .expect("a step");
    q.expire_and_rescue().await;
    let lease = q.lease().await;
    q.complete(lease.lease).await;
    let job = q.job(id).await;
    assert!(job.created_at >= floor && job.run_at >= floor);
    assert!(job.finished_at.expect("it is over") >= floor);
    let oldest = sqlx::query(
        "select least((select min(at) from job_logs), (select min(at) from job_steps),
                      (select min(started_at) from job_attempts)) as at",
    )
    .fetch_one(q.db.pool())
    .await
    .expect("times");
    assert!(oldest.get::<domain::clock::Timestamp, _>("at") >= floor);
}
