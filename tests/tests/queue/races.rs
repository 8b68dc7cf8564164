//! Races made, not hoped for: a second session changes the row and holds it until the verb waits on that lock.

use std::time::Duration;

use domain::ids::JobId;
use domain::lease::Lease;
use domain::queue::{self, Cancelled, Error, Fate, JobState, Renewed, Rescued, Settlement};
use sqlx::Connection as _;
use sqlx::postgres::PgPool;
use tests::proxy::Proxy;

use crate::support::{LEASE, Queue, completed};

fn settle_elsewhere(pool: &PgPool, lease: Lease) -> tokio::task::JoinHandle<Fate> {
    let pool = pool.clone();
    tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        let asked = [Settlement { lease, outcome: completed() }];
        loop {
            // As the runner does: the wait for a row is short and is made again.
            let fate = queue::settle(&mut conn, &asked).await.expect("the database answers")[0];
            if fate != Fate::Busy {
                return fate;
            }
        }
    })
}

fn cancel_elsewhere(pool: &PgPool, id: JobId) -> tokio::task::JoinHandle<Result<Cancelled, Error>> {
    let pool = pool.clone();
    tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::cancel(&mut conn, id, "too late?", None).await
    })
}

/// Case (k), the completion first: the cancel waits for it, and then there is nothing left to cancel.
#[tokio::test]
async fn a_cancel_that_waited_for_a_completion_is_refused() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    let fates = queue::settle(&mut tx, &[Settlement { lease, outcome: completed() }]).await.expect("settled");
    assert_eq!(fates, [Fate::Settled(JobState::Completed)]);
    let cancel = cancel_elsewhere(q.db.pool(), id);
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    let told = cancel.await.expect("done");
    assert!(matches!(told, Err(Error::Conflict { state: JobState::Completed, .. })), "{told:?}");
    assert_eq!(q.job(id).await.state, JobState::Completed);
}

/// Case (k), the cancel first: the completion waits for it, and what was done stays done.
#[tokio::test]
async fn a_completion_that_waited_for_a_cancel_still_completes() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    assert_eq!(queue::cancel(&mut tx, id, "please", None).await.expect("asked"), Cancelled::Requested);
    let settle = settle_elsewhere(q.db.pool(), lease);
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    assert_eq!(settle.await.expect("done"), Fate::Settled(JobState::Completed));
    assert_eq!(q.job(id).await.state, JobState::Completed);
}

/// Case (j): rescue reads the expired lease while its completion is under way, and does not touch it.
#[tokio::test]
async fn a_rescue_passes_by_a_job_whose_completion_is_under_way() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    queue::settle(&mut tx, &[Settlement { lease, outcome: completed() }]).await.expect("settled");
    assert_eq!(q.rescue().await, Rescued::default());
    tx.commit().await.expect("committed");
    assert_eq!(q.rescue().await, Rescued::default());
    assert_eq!(q.job(id).await.state, JobState::Completed);
    assert_eq!(q.complete(lease).await, Fate::Already);
}

/// Case (j), the other way: the rescue comes first and the completion waits for it. It matches no row and is told.
#[tokio::test]
async fn a_completion_that_waited_for_a_rescue_is_lost() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    assert_eq!(queue::rescue_expired(&mut tx, 10).await.expect("rescued").again, 1);
    let settle = settle_elsewhere(q.db.pool(), lease);
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    assert_eq!(settle.await.expect("done"), Fate::Lost);
    assert_eq!(q.job(id).await.state, JobState::Available);
}

/// The whole takeover commits while the zombie's write waits: a rescue and a fresh lease.
#[tokio::test]
async fn a_write_that_waited_for_a_takeover_is_lost() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    queue::rescue_expired(&mut tx, 10).await.expect("rescued");
    let successor = queue::lease_next(&mut tx, &crate::support::worker(), 1, &[]).await.expect("leased").remove(0);
    let renew = async || queue::renew(&mut *q.conn().await, &[(lease, LEASE)]).await.expect("the database answers");
    assert_eq!(renew().await, [Renewed::Busy], "nothing is committed: it is not called lost");
    let settle = settle_elsewhere(q.db.pool(), lease);
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    assert_eq!(renew().await, [Renewed::Lost]);
    assert_eq!(settle.await.expect("done"), Fate::Lost);
    assert_eq!(q.complete(successor.lease).await, Fate::Settled(JobState::Completed));
}

/// Case (l): the first try of an outcome is late, not lost, and commits between the second try's two looks: at what was
/// settled before, and at what is still held.
#[tokio::test]
async fn a_second_try_that_the_first_one_overtakes_between_its_looks_is_told_that_it_was_done() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let proxy = Proxy::before(q.db.url()).await;
    let pool = domain::db::connect_lazy(&proxy.url(q.db.url()), 1).expect("a URL");
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    let asked = [Settlement { lease, outcome: completed() }];
    queue::settle(&mut tx, &asked).await.expect("settled, not yet committed");
    proxy.hold("as a(id, fence)\n          join jobs j");
    let second = settle_elsewhere(&pool, lease);
    proxy.until_held().await;
    tx.commit().await.expect("committed");
    proxy.release();
    assert_eq!(second.await.expect("done"), Fate::Already);
}

/// A check of the lease inside a domain transaction holds the row: no takeover slips in before that transaction ends.
#[tokio::test]
async fn a_rescue_waits_out_a_domain_transaction_under_the_lease() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    queue::require_lease(&mut tx, lease).await.expect("nobody took it over");
    assert_eq!(q.rescue().await, Rescued::default(), "it passes by");
    tx.commit().await.expect("committed");
    // What was held is looked at again a second later.
    q.db.clock().advance(Duration::from_secs(2)).await;
    assert_eq!(q.rescue().await.again, 1);
    assert_eq!(q.job(id).await.state, JobState::Available);
}

/// A cancel on a bare connection looks and writes in one transaction: a job that is being leased meanwhile is asked to
/// end, not torn away from its holder.
#[tokio::test]
async fn a_cancel_that_waited_for_a_lease_asks_the_holder() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    let held = queue::lease_next(&mut tx, &crate::support::worker(), 1, &[]).await.expect("leased").remove(0);
    let cancel = cancel_elsewhere(q.db.pool(), id);
    q.db.until_blocked().await;
    tx.commit().await.expect("committed");
    assert_eq!(cancel.await.expect("done").expect("asked"), Cancelled::Requested);
    let told = queue::renew(&mut *q.conn().await, &[(held.lease, LEASE)]).await.expect("answers");
    assert_eq!(told, [Renewed::CancelRequested { reason: "too late?".to_owned() }]);
}
