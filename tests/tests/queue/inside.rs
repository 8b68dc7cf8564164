//! Settling inside a transaction of the holder's own: all of it, or nothing.

use std::time::Duration;

use domain::ids::JobId;
use domain::lease::{Fence, Lease};
use domain::queue::{self, Error, Fate, JobState, Outcome, Settlement};
use serde_json::json;
use sqlx::{Postgres, Transaction};

use crate::support::{Queue, cancelled, completed, discarded, failed, snoozed};

/// A queue beside a domain's own table.
async fn start() -> Queue {
    let q = Queue::start().await;
    sqlx::query("create table change (n integer)").execute(q.db.pool()).await.expect("a domain's table");
    q
}

/// A transaction with a domain's change in it.
async fn changed(q: &Queue) -> Transaction<'static, Postgres> {
    let mut tx = q.db.pool().begin().await.expect("a transaction");
    sqlx::query("insert into change values (1)").execute(&mut *tx).await.expect("a change");
    tx
}

async fn changes(q: &Queue) -> i64 {
    sqlx::query_scalar("select count(*) from change").fetch_one(q.db.pool()).await.expect("a count")
}

fn of(lease: Lease, outcome: Outcome) -> Settlement {
    Settlement { lease, outcome }
}

#[tokio::test]
async fn a_commit_settles_the_job_with_the_change_and_a_second_one_is_refused() {
    let q = start().await;
    for (outcome, state) in [
        (completed(), JobState::Completed),
        (failed(), JobState::Retryable),
        (snoozed(60), JobState::Scheduled),
        (discarded(), JobState::Discarded),
        (cancelled(), JobState::Cancelled),
    ] {
        let before = changes(&q).await;
        let id = q.enqueue().await;
        let lease = q.lease().await.lease;
        let mut tx = changed(&q).await;
        let told = queue::settle_in(&mut tx, &of(lease, outcome.clone())).await.expect("its lease");
        assert_eq!((told, q.job(id).await.state), (state, JobState::Running), "not before the commit");
        tx.commit().await.expect("committed");
        assert_eq!((q.job(id).await.state, changes(&q).await), (state, before + 1));
        // The answer to the commit was lost: the same once more must change nothing twice.
        let kept = q.dump().await;
        let mut tx = changed(&q).await;
        let again = queue::settle_in(&mut tx, &of(lease, outcome.clone())).await;
        assert!(matches!(again, Err(Error::SettledBefore(_))), "{again:?}");
        let _ = tx.commit().await;
        assert_eq!(q.dump().await, kept);
        assert_eq!(q.settle(lease, outcome).await, Fate::Already);
    }
}

#[tokio::test]
async fn a_rollback_leaves_the_change_and_the_job_undone() {
    let q = start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let before = q.dump().await;
    let mut tx = changed(&q).await;
    queue::settle_in(&mut tx, &of(lease, completed())).await.expect("its lease");
    tx.rollback().await.expect("rolled back");
    assert_eq!((q.dump().await, q.job(id).await.state), (before, JobState::Running));
    assert_eq!(q.complete(lease).await, Fate::Settled(JobState::Completed));
}

/// The program makes nothing of the error and commits: the server commits nothing.
#[tokio::test]
async fn a_stale_fence_lets_nothing_of_the_transaction_commit_though_the_error_is_swallowed() {
    let q = start().await;
    q.enqueue().await;
    let stale = q.lease().await.lease;
    q.expire_and_rescue().await;
    let outcomes = [completed(), failed(), snoozed(60), discarded(), cancelled()];
    let refused = async |what: &str| {
        for outcome in &outcomes {
            let before = q.dump().await;
            let mut tx = changed(&q).await;
            let told = queue::settle_in(&mut tx, &of(stale, outcome.clone())).await;
            assert!(matches!(&told, Err(Error::LeaseLost(lost)) if lost.lease == stale), "{what}: {told:?}");
            let _ = tx.commit().await;
            assert_eq!(q.dump().await, before, "{what}: {outcome:?}");
        }
    };
    refused("while the job is back in the queue").await;
    let successor = q.lease().await.lease;
    refused("while the successor runs").await;
    q.complete(successor).await;
    refused("after the successor finished").await;
    assert_eq!(changes(&q).await, 0);
}

#[tokio::test]
async fn the_server_itself_raises_under_a_code_of_its_own() {
    let q = start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let raised = async |job: JobId, fence: Fence| {
        let asked = sqlx::query("select lh_require_lease($1, $2)").bind(job.0).bind(fence.0).execute(q.db.pool()).await;
        asked.err().and_then(|error| Some(error.as_database_error()?.code()?.into_owned()))
    };
    assert_eq!(raised(id, lease.fence).await, None);
    assert_eq!(raised(id, Fence(lease.fence.0 - 1)).await.as_deref(), Some("LH001"));
    assert_eq!(raised(JobId::generate(), lease.fence).await.as_deref(), Some("LH001"));
    q.complete(lease).await;
    assert_eq!(raised(id, lease.fence).await.as_deref(), Some("LH004"));
}

/// From the check to the commit the lease cannot change hands.
#[tokio::test]
async fn no_rescue_slips_between_the_check_and_the_commit() {
    let q = start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut tx = changed(&q).await;
    queue::settle_in(&mut tx, &of(lease, completed())).await.expect("its lease");
    q.db.clock().advance(Duration::from_secs(3600)).await;
    assert_eq!(q.rescue().await.again, 0, "passed by");
    tx.commit().await.expect("committed");
    assert_eq!((q.job(id).await.state, changes(&q).await), (JobState::Completed, 1));
    assert_eq!(q.rescue().await.again, 0);
}

#[tokio::test]
async fn a_result_beyond_the_bound_is_refused_by_its_size() {
    let q = start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let large = Outcome::Completed { result: json!("x".repeat(queue::policy::MAX_PAYLOAD_BYTES)) };
    let mut tx = changed(&q).await;
    let told = queue::settle_in(&mut tx, &of(lease, large)).await;
    assert!(matches!(told, Err(Error::Invalid { field: "result", .. })), "{told:?}");
    // Nothing was asked of the database, so the same transaction may say something smaller.
    queue::settle_in(&mut tx, &of(lease, completed())).await.expect("its lease");
    tx.commit().await.expect("committed");
    assert_eq!(changes(&q).await, 1);
}
