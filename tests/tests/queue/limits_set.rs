//! Setting limits: what is refused, and who wins.

use domain::queue::{self, Error, Limits, NewJob, PollRequest};
use sqlx::Connection as _;
use workers::seam::{LeaseStore as _, PgLeaseStore, StoreError};

use crate::limits::{per_key, rate, running};
use crate::support::{Queue, job, queue_name, worker};

/// Limits outside their bounds are refused with the field; a change that did not see the last one is refused.
#[tokio::test]
async fn limits_have_bounds_and_a_revision() {
    let q = Queue::start().await;
    let name = queue_name("default");
    let mut conn = q.conn().await;
    let untouched = queue::limits(&mut conn, &name).await.expect("the database answers");
    assert_eq!((untouched.revision, untouched.limits), (0, Limits::default()));
    let refused = [
        (running(0), "running"),
        (running(10_001), "running"),
        (per_key(1001), "running_per_key"),
        (rate(0, 60), "starts_per_key"),
        (rate(1, 0), "starts_per_key"),
        (rate(1, 86_401), "starts_per_key"),
    ];
    for (limits, wanted) in refused {
        let answer = queue::set_limits(&mut conn, &name, &limits, None, "", None).await;
        assert!(matches!(answer, Err(Error::Invalid { field, .. }) if field == wanted), "{answer:?}");
    }
    let set = queue::set_limits(&mut conn, &name, &running(4), None, "quiet", Some(0)).await.expect("unset before");
    assert_eq!((set.revision, set.limits, set.reason.as_str()), (1, running(4), "quiet"));
    let stale = queue::set_limits(&mut conn, &name, &running(5), None, "", Some(0)).await;
    assert!(matches!(stale, Err(Error::StaleLimits { expected: 0, found: 1, .. })), "{stale:?}");
    let stale = queue::set_limits(&mut conn, &queue_name("other"), &running(5), None, "", Some(3)).await;
    assert!(matches!(stale, Err(Error::StaleLimits { expected: 3, found: 0, .. })), "{stale:?}");
    let set = queue::set_limits(&mut conn, &name, &Limits::default(), None, "", Some(1)).await.expect("the last one");
    assert_eq!((set.revision, set.limits), (2, Limits::default()));
}

/// A place that nobody ever had is a new row: of two leases that want it at once the second waits for the first, for a
/// moment, and is told that this is no outage.
#[tokio::test]
async fn a_poll_that_waits_for_anothers_first_place_is_told_that_it_is_held_up() {
    let q = Queue::start().await;
    let name = queue_name("default");
    queue::set_limits(&mut *q.conn().await, &name, &running(1), None, "quiet", None).await.expect("limited");
    q.enqueue().await;
    let mut session = q.db.session().await;
    let mut first = session.begin().await.expect("a transaction");
    assert_eq!(queue::lease_next(&mut first, &worker(), 1, &[]).await.expect("answers").len(), 1);
    // It stands before the other, and so wants the same place.
    let urgent = q.enqueue_as(NewJob { priority: -1, ..job() }).await;

    let store = PgLeaseStore::new(q.db.pool());
    let spec = worker();
    let request = PollRequest { limit: 1, ended: &[], look: false, wall_clock: None, turns: None, low_water: None };
    let polled = store.poll(&spec, &request).await.expect("it passes by what has a limit");
    assert!(polled.leased.is_empty() && polled.turns.is_wanted(), "{polled:?}");
    let request = PollRequest { turns: Some(&polled.turns), ..request };
    let held = store.poll(&spec, &request).await;
    assert!(matches!(held, Err(StoreError::Held(_))), "{held:?}");
    first.rollback().await.expect("it takes no place");
    let polled = store.poll(&spec, &request).await.expect("the place is free");
    assert!(polled.leased.len() == 1 && polled.leased[0].lease.job == urgent, "{polled:?}");
}

/// A place that somebody had is taken by whoever names the fence it was read with: of two leases that saw it free at
/// once one gets it, whether the other passes it by or waits.
#[tokio::test]
async fn a_place_that_another_lease_is_taking_is_not_taken_again() {
    let q = Queue::start().await;
    queue::set_limits(&mut *q.conn().await, &queue_name("default"), &running(1), None, "quiet", None)
        .await
        .expect("limited");
    q.enqueue().await;
    let before = q.lease().await;
    q.complete(before.lease).await;
    q.enqueue().await;
    let mut session = q.db.session().await;
    let mut first = session.begin().await.expect("a transaction");
    assert_eq!(queue::lease_next(&mut first, &worker(), 1, &[]).await.expect("answers").len(), 1);
    // It stands before the other, and so wants the same place.
    q.enqueue_as(NewJob { priority: -1, ..job() }).await;
    let pool = q.db.pool_of(1).await;
    let mut second = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::lease_next(&mut conn, &worker(), 1, &[]).await.expect("answers").len()
    });
    let leased = tokio::select! {
        leased = &mut second => {
            first.commit().await.expect("it has the place");
            leased
        }
        () = q.db.until_blocked() => {
            first.commit().await.expect("it has the place");
            second.await
        }
    };
    assert_eq!(leased.expect("it ends"), 0);
    assert!(q.lease_up_to(5).await.is_empty());
}
