//! Operators' verbs: cancel and retry, with every refusal.

use std::time::Duration;

use domain::ids::JobId;
use domain::queue::policy::CANCEL_GRACE;
use domain::queue::{self, Cancelled, Error, Fate, JobState, Outcome, Renewed};
use serde_json::json;

use crate::support::{LEASE, Queue, cancelled, completed, discarded, failed, job, snoozed};

#[tokio::test]
async fn a_job_that_does_not_run_is_cancelled_at_once() {
    let q = Queue::start().await;
    let available = q.enqueue().await;
    let mut later = job();
    later.run_at = Some(q.db.clock().now().await + Duration::from_secs(60));
    let scheduled = q.enqueue_as(later).await;
    for id in [available, scheduled] {
        let done = queue::cancel(&mut *q.conn().await, id, "not needed", None).await.expect("cancelled");
        assert_eq!(done, Cancelled::AtOnce);
        let job = q.job(id).await;
        assert_eq!(
            (job.state, job.last_error),
            (JobState::Cancelled, Some(json!({"code": "cancelled", "message": "not needed"})))
        );
    }
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.settle(lease, failed()).await;
    assert_eq!(queue::cancel(&mut *q.conn().await, id, "enough", None).await.expect("cancelled"), Cancelled::AtOnce);
    assert_eq!(q.settle(lease, failed()).await, Fate::Already, "its holder did settle before");
}

/// the holder learns it from its renewal, and whatever it then says short of "done" ends the job.
#[tokio::test]
async fn a_running_job_is_told_at_its_next_renewal() {
    let q = Queue::start().await;
    let ends: [(Outcome, JobState); 5] = [
        (cancelled(), JobState::Cancelled),
        (snoozed(5), JobState::Cancelled),
        (failed(), JobState::Cancelled),
        (Outcome::Released, JobState::Cancelled),
        (completed(), JobState::Completed),
    ];
    for (outcome, state) in ends {
        let id = q.enqueue().await;
        let lease = q.lease().await.lease;
        let done = queue::cancel(&mut *q.conn().await, id, "please", None).await.expect("asked");
        assert_eq!(done, Cancelled::Requested);
        let asked = q.job(id).await;
        assert!(asked.cancel_requested);
        queue::cancel(&mut *q.conn().await, id, "please, please", None).await.expect("asked again");
        assert_eq!(q.job(id).await.revision, asked.revision, "asked again, nothing changes");
        let told = queue::renew(&mut *q.conn().await, &[(lease, LEASE)]).await.expect("answers");
        assert_eq!(told, [Renewed::CancelRequested { reason: "please".to_owned() }]);
        assert_eq!(q.settle(lease, outcome).await, Fate::Settled(state));
    }
}

/// a handler that ignores it is fenced off after the grace, and shown as such.
#[tokio::test]
async fn an_ignored_cancel_is_fenced_off_after_its_grace() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    queue::cancel(&mut *q.conn().await, id, "please", None).await.expect("asked");
    let sweep = async || queue::cancel_ignored(&mut *q.conn().await, 10).await.expect("answers");
    assert_eq!(sweep().await, 0, "not before the grace");
    q.db.clock().advance(CANCEL_GRACE + Duration::from_secs(1)).await;
    queue::renew(&mut *q.conn().await, &[(lease, LEASE)]).await.expect("it lives and renews");
    assert_eq!(sweep().await, 1);
    let ended = q.job(id).await;
    assert_eq!(
        (ended.state, ended.last_error.expect("why")["code"].clone()),
        (JobState::Cancelled, json!("cancel_ignored"))
    );
    assert_eq!(q.complete(lease).await, Fate::Lost);
    let told = queue::renew(&mut *q.conn().await, &[(lease, LEASE)]).await.expect("answers");
    assert_eq!(told, [Renewed::Lost]);
}

#[tokio::test]
async fn a_cancel_is_refused_for_finished_protected_changed_and_unknown_jobs() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let stale = queue::cancel(&mut *q.conn().await, id, "", Some(7)).await;
    assert!(matches!(stale, Err(Error::Stale { expected: 7, found: 1, .. })), "{stale:?}");
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    let mut guarded = job();
    guarded.protected = true;
    let guarded = q.enqueue_as(guarded).await;
    let before = q.dump().await;
    let over = queue::cancel(&mut *q.conn().await, id, "", None).await;
    assert!(matches!(over, Err(Error::Conflict { state: JobState::Completed, .. })), "{over:?}");
    let protected = queue::cancel(&mut *q.conn().await, guarded, "", None).await;
    assert!(matches!(protected, Err(Error::Conflict { state: JobState::Available, .. })), "{protected:?}");
    let unknown = queue::cancel(&mut *q.conn().await, JobId::generate(), "", None).await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    assert_eq!(q.dump().await, before, "a refusal changes nothing");
}

#[tokio::test]
async fn a_retry_brings_back_what_waits_was_discarded_or_cancelled() {
    let q = Queue::start().await;
    let mut one_try = job();
    one_try.max_attempts = 1;
    let ends: [(&str, Outcome); 4] =
        [("retryable", failed()), ("discarded", discarded()), ("cancelled", cancelled()), ("scheduled", snoozed(60))];
    for (state, end) in ends {
        let id = q.enqueue().await;
        let lease = q.lease().await.lease;
        q.settle(lease, end).await;
        assert_eq!(q.job(id).await.state.as_str(), state);
        let revision = q.job(id).await.revision;
        queue::retry(&mut *q.conn().await, id, Some(revision)).await.expect(state);
        let back = q.job(id).await;
        assert_eq!((back.state, back.revision), (JobState::Available, revision + 1), "{state}");
        let lease = q.lease().await.lease;
        assert_eq!(q.complete(lease).await, Fate::Settled(JobState::Completed), "{state}");
    }
    let id = q.enqueue_as(one_try).await;
    let lease = q.lease().await.lease;
    assert_eq!(q.settle(lease, failed()).await, Fate::Settled(JobState::Discarded));
    queue::retry(&mut *q.conn().await, id, None).await.expect("brought back");
    assert!(q.job(id).await.max_attempts > q.job(id).await.attempt, "it may fail once more");
}

/// A protected job stays protected, with its own budget, when it comes back from the finished.
#[tokio::test]
async fn a_retry_does_not_make_a_protected_job_an_ordinary_one() {
    let q = Queue::start().await;
    let mut guarded = job();
    guarded.protected = true;
    guarded.max_interruptions = 7;
    let id = q.enqueue_as(guarded).await;
    let lease = q.lease().await.lease;
    queue::append_step(&mut *q.conn().await, lease, "one", &json!(1), &json!({})).await.expect("a step");
    assert_eq!(q.settle(lease, cancelled()).await, Fate::Settled(JobState::Cancelled));
    queue::retry(&mut *q.conn().await, id, None).await.expect("brought back");
    let refused = queue::cancel(&mut *q.conn().await, id, "", None).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    let lease = q.lease().await.lease;
    queue::append_step(&mut *q.conn().await, lease, "two", &json!(2), &json!({})).await.expect("steps go on");
    assert_eq!(q.settle(lease, discarded()).await, Fate::Settled(JobState::Retryable));
    let budget: i32 =
        sqlx::query_scalar("select max_interruptions from jobs").fetch_one(q.db.pool()).await.expect("a row");
    assert_eq!(budget, 7);
}

#[tokio::test]
async fn a_retry_is_refused_for_running_due_completed_changed_and_unknown_jobs() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let refused = async |id: JobId, state: JobState| {
        let before = q.dump().await;
        let answer = queue::retry(&mut *q.conn().await, id, None).await;
        assert!(matches!(answer, Err(Error::Conflict { state: s, .. }) if s == state), "{answer:?}");
        assert_eq!(q.dump().await, before, "a refusal changes nothing");
    };
    refused(id, JobState::Available).await;
    let lease = q.lease().await.lease;
    refused(id, JobState::Running).await;
    q.complete(lease).await;
    refused(id, JobState::Completed).await;
    let stale = queue::retry(&mut *q.conn().await, id, Some(1)).await;
    assert!(matches!(stale, Err(Error::Stale { expected: 1, .. })), "{stale:?}");
    let unknown = queue::retry(&mut *q.conn().await, JobId::generate(), None).await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
}

/// the operator is told that another live job carries the key, and the finished job stays where it was, whatever
/// the caller does with its connection.
#[tokio::test]
async fn a_retry_under_a_taken_unique_key_is_a_conflict_and_loses_nothing() {
    let q = Queue::start().await;
    let old = q.enqueue_as(job().unique("k")).await;
    let lease = q.lease().await.lease;
    q.settle(lease, discarded()).await;
    q.enqueue_as(job().unique("k")).await;
    let before = q.dump().await;
    let refused = queue::retry(&mut *q.conn().await, old, None).await;
    assert!(matches!(refused, Err(Error::Conflict { state: JobState::Discarded, .. })), "{refused:?}");
    assert_eq!(q.dump().await, before);
}

/// the one attempt more that a retry allows is allowed also behind the most that may be asked for.
#[tokio::test]
async fn a_retry_brings_back_a_job_whose_thousand_attempts_are_spent() {
    let q = Queue::start().await;
    let mut wanted = job();
    wanted.max_attempts = 1000;
    let id = q.enqueue_as(wanted).await;
    sqlx::query("update jobs set attempt = 999").execute(q.db.pool()).await.expect("spent");
    let lease = q.lease().await.lease;
    assert_eq!(q.settle(lease, failed()).await, Fate::Settled(JobState::Discarded));
    queue::retry(&mut *q.conn().await, id, None).await.expect("brought back");
    assert_eq!((q.job(id).await.attempt, q.job(id).await.max_attempts), (1000, 1001));
}

/// the second of two retries finds the job live again, not absent.
#[tokio::test]
async fn a_retry_that_waited_for_another_is_told_that_the_job_is_due() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.settle(lease, discarded()).await;
    let mut session = q.db.session().await;
    let mut tx = sqlx::Connection::begin(&mut session).await.expect("a transaction");
    queue::retry(&mut tx, id, None).await.expect("brought back");
    let pool = q.db.pool().clone();
    let second = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::retry(&mut conn, id, None).await
    });
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    let told = second.await.expect("done");
    assert!(matches!(told, Err(Error::Conflict { state: JobState::Available, .. })), "{told:?}");
}
