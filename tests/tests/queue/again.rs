//! Running a finished job again, as a new one.

use std::time::Duration;

use domain::ids::JobId;
use domain::queue::{self, Error, Fate, JobState, NewJob};
use serde_json::{Value, json};

use crate::support::{Queue, cancelled, completed, discarded, failed, job, queue_name};

/// A job with a value of its own in every field that a caller may set.
fn particular() -> NewJob {
    let mut job = job().on(queue_name("default")).unique("only-one");
    job.args = json!({"n": 7});
    job.priority = -3;
    job.max_attempts = 4;
    job.max_interruptions = 5;
    job.deadline = Some(Duration::from_secs(77));
    job.tags = vec!["one".to_owned(), "two".to_owned()];
    job
}

async fn row(q: &Queue, id: JobId) -> Value {
    sqlx::query_scalar("select to_jsonb(j) from jobs j where id = $1")
        .bind(id.0)
        .fetch_one(q.db.pool())
        .await
        .expect("a live job")
}

async fn again(q: &Queue, id: JobId, if_revision: Option<i64>) -> Result<JobId, Error> {
    let new = JobId::generate();
    queue::run_again(&mut *q.conn().await, id, new, None, if_revision).await.map(|()| new)
}

#[tokio::test]
async fn a_finished_job_runs_again_as_a_new_one_and_stays_what_it_was() {
    let q = Queue::start().await;
    for (state, end) in
        [(JobState::Completed, completed()), (JobState::Cancelled, cancelled()), (JobState::Discarded, discarded())]
    {
        let id = q.enqueue_as(particular()).await;
        let asked = row(&q, id).await;
        let lease = q.lease().await.lease;
        queue::append_step(&mut *q.conn().await, lease, "one", &json!(1), &json!({})).await.expect("a step");
        assert_eq!(q.settle(lease, end).await, Fate::Settled(state));
        let old = q.job(id).await;
        let new = again(&q, id, Some(old.revision)).await.expect("a final state");
        assert_eq!(q.job(id).await, old, "{state}: the old one is not touched");
        let mut made = row(&q, new).await;
        // Of the new one only these differ from what was first asked for.
        for own in ["id", "run_at", "created_at"] {
            made[own] = asked[own].clone();
        }
        assert_eq!(made, asked, "{state}");
        let leased = q.lease().await;
        assert_eq!((leased.lease.job, leased.attempt), (new, 1), "{state}");
        assert!(queue::steps(&mut *q.conn().await, new).await.expect("answers").is_empty(), "{state}: no history");
        assert_eq!(q.complete(leased.lease).await, Fate::Settled(JobState::Completed), "{state}");
    }
}

#[tokio::test]
async fn what_a_retry_allowed_beyond_the_bound_is_not_passed_on() {
    let q = Queue::start().await;
    let mut often = job();
    often.max_attempts = 1000;
    let id = q.enqueue_as(often).await;
    sqlx::query("update jobs set attempt = 999").execute(q.db.pool()).await.expect("many tries");
    for _ in 0..2 {
        let lease = q.lease().await.lease;
        assert_eq!(q.settle(lease, failed()).await, Fate::Settled(JobState::Discarded));
        queue::retry(&mut *q.conn().await, id, None).await.expect("brought back");
    }
    let lease = q.lease().await.lease;
    assert_eq!(q.settle(lease, failed()).await, Fate::Settled(JobState::Discarded));
    assert!(q.job(id).await.max_attempts > 1000);
    let new = again(&q, id, None).await.expect("a final state");
    assert_eq!(q.job(new).await.max_attempts, 1000);
}

#[tokio::test]
async fn running_again_is_refused_for_live_protected_changed_and_unknown_jobs() {
    let q = Queue::start().await;
    let live = q.enqueue().await;
    let refused = again(&q, live, None).await;
    assert!(matches!(refused, Err(Error::Conflict { state: JobState::Available, .. })), "{refused:?}");
    let lease = q.lease().await.lease;
    let refused = again(&q, live, None).await;
    assert!(matches!(refused, Err(Error::Conflict { state: JobState::Running, .. })), "{refused:?}");
    q.complete(lease).await;
    let mut guarded = job();
    guarded.protected = true;
    let guarded = q.enqueue_as(guarded).await;
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    let before = q.dump().await;
    let refused = again(&q, guarded, None).await;
    assert!(matches!(refused, Err(Error::Conflict { state: JobState::Completed, .. })), "{refused:?}");
    let refused = again(&q, live, Some(77)).await;
    assert!(matches!(refused, Err(Error::Stale { expected: 77, .. })), "{refused:?}");
    let refused = again(&q, JobId::generate(), None).await;
    assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");
    assert_eq!(q.dump().await, before, "a refusal changes nothing");
}

#[tokio::test]
async fn running_again_under_a_taken_unique_key_names_the_holder_and_makes_nothing() {
    let q = Queue::start().await;
    let id = q.enqueue_as(particular()).await;
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    let holder = q.enqueue_as(particular()).await;
    let before = q.dump().await;
    let refused = again(&q, id, None).await;
    assert!(matches!(refused, Err(Error::KeyTaken { holder: named, .. }) if named == holder), "{refused:?}");
    assert_eq!(q.dump().await, before);
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    again(&q, id, None).await.expect("the key is free");
}

/// A retry that is under way has taken the finished row: whoever runs it again at that moment waits, and is refused.
#[tokio::test]
async fn running_again_waits_for_a_retry_under_way_and_finds_the_job_live() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.settle(lease, cancelled()).await;
    let mut first = q.db.pool().begin().await.expect("a transaction");
    queue::retry(&mut first, id, None).await.expect("brought back");
    let pool = q.db.pool().clone();
    let second = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::run_again(&mut conn, id, JobId::generate(), None, None).await
    });
    q.db.until_blocked().await;
    first.commit().await.expect("committed");
    let refused = second.await.expect("the call ends");
    assert!(matches!(refused, Err(Error::Conflict { state: JobState::Available, .. })), "{refused:?}");
}
