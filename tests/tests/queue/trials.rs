//! Two verbs at once on one job, as often as it takes: whoever comes first, the answers and the rows must agree.
//! The order of each is chance's; what is asserted holds for both orders.

use std::sync::Arc;
use std::time::Duration;

use domain::lease::Lease;
use domain::queue::{self, Cancelled, Error, Fate, JobState, Renewed, Settlement};
use sqlx::PgPool;
use tests::trials::trials;
use tokio::sync::Barrier;

use crate::support::{LEASE, Queue, completed, job, worker};

/// Two acts that begin at the same moment, on warm connections of their own.
async fn at_once<A, B>(first: impl Future<Output = A> + Send, second: impl Future<Output = B> + Send) -> (A, B)
where
    A: Send,
    B: Send,
{
    let line = Arc::new(Barrier::new(2));
    let other = Arc::clone(&line);
    tokio::join!(
        async {
            line.wait().await;
            first.await
        },
        async {
            other.wait().await;
            second.await
        },
    )
}

async fn settle(pool: &PgPool, lease: Lease) -> Fate {
    let mut conn = pool.acquire().await.expect("a connection");
    let asked = [Settlement { lease, outcome: completed() }];
    loop {
        let fate = queue::settle(&mut conn, &asked).await.expect("the database answers")[0];
        if fate != Fate::Busy {
            return fate;
        }
    }
}

/// The short way, as a worker goes it first.
async fn complete(pool: &PgPool, lease: Lease) -> Fate {
    let mut conn = pool.acquire().await.expect("a connection");
    let result = serde_json::json!({"ok": true});
    queue::complete_swiftly(&mut conn, &[(lease, &result)]).await.expect("the database answers")[0]
}

/// A job whose lease has expired.
async fn expired(q: &Queue) -> Lease {
    q.enqueue().await;
    let lease = q.lease().await.lease;
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    lease
}

async fn attempts(q: &Queue, lease: Lease) -> usize {
    queue::attempts(&mut *q.conn().await, lease.job).await.expect("the database answers").len()
}

/// Leaves nothing to lease behind.
async fn clear(q: &Queue, lease: Lease) {
    let _ = queue::cancel(&mut *q.conn().await, lease.job, "out of the way", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_and_a_rescue_at_once_agree_on_who_was_first() {
    let q = Queue::start().await;
    for trial in 0..trials() {
        let lease = expired(&q).await;
        let completes = async {
            if trial % 2 == 0 { settle(q.db.pool(), lease).await } else { complete(q.db.pool(), lease).await }
        };
        let (fate, rescued) = at_once(completes, q.rescue()).await;
        let state = q.job(lease.job).await.state;
        let seen = (fate, rescued.again, state, attempts(&q, lease).await);
        let completed = (Fate::Settled(JobState::Completed), 0, JobState::Completed, 0);
        let taken = (Fate::Lost, 1, JobState::Available, 1);
        assert!(seen == completed || seen == taken, "trial {trial}: {seen:?}");
        clear(&q, lease).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_a_rescue_at_once_agree_on_who_was_first() {
    let q = Queue::start().await;
    for trial in 0..trials() {
        let lease = expired(&q).await;
        let renews = async {
            let mut conn = q.conn().await;
            queue::renew(&mut conn, &[(lease, LEASE)]).await.expect("the database answers").remove(0)
        };
        let (told, rescued) = at_once(renews, q.rescue()).await;
        let state = q.job(lease.job).await.state;
        let seen = (told, rescued.again, state, attempts(&q, lease).await);
        // A renewal that met the rescue's lock asks again.
        let kept = (Renewed::Alive, 0, JobState::Running, 0);
        let taken = [Renewed::Lost, Renewed::Busy].map(|told| (told, 1, JobState::Available, 1));
        assert!(seen == kept || taken.contains(&seen), "trial {trial}: {seen:?}");
        clear(&q, lease).await;
        let _ = q.settle(lease, completed()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_and_a_cancel_at_once_agree_and_what_was_done_is_done() {
    let q = Queue::start().await;
    for trial in 0..trials() {
        q.enqueue().await;
        let lease = q.lease().await.lease;
        let cancels = async {
            let mut conn = q.conn().await;
            queue::cancel(&mut conn, lease.job, "at the same moment", None).await
        };
        let (fate, told) = at_once(settle(q.db.pool(), lease), cancels).await;
        assert_eq!(fate, Fate::Settled(JobState::Completed), "trial {trial}");
        let agrees = matches!(told, Ok(Cancelled::Requested) | Err(Error::Conflict { state: JobState::Completed, .. }));
        assert!(agrees, "trial {trial}: {told:?}");
        assert_eq!(q.job(lease.job).await.state, JobState::Completed, "trial {trial}");
    }
}

/// A duplicate: the same outcome is on its way twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_outcome_twice_at_once_is_recorded_once_and_never_called_lost() {
    let q = Queue::start().await;
    for trial in 0..trials() {
        q.enqueue().await;
        let lease = q.lease().await.lease;
        let (one, other) = at_once(complete(q.db.pool(), lease), settle(q.db.pool(), lease)).await;
        let fates = [one, other];
        let done = Fate::Settled(JobState::Completed);
        assert!(fates == [done, Fate::Already] || fates == [Fate::Already, done], "trial {trial}: {fates:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_leasings_at_once_share_what_is_due() {
    let q = Queue::start().await;
    for trial in 0..trials() {
        for _ in 0..3 {
            q.enqueue_as(job()).await;
        }
        let leases = async |limit| {
            let mut conn = q.db.pool().acquire().await.expect("a connection");
            queue::lease_next(&mut conn, &worker(), limit, &[]).await.expect("the database answers")
        };
        let (one, other) = at_once(leases(2), leases(2)).await;
        let mut rest = leases(3).await;
        rest.extend(one.into_iter().chain(other));
        let mut ids: Vec<_> = rest.iter().map(|leased| leased.lease.job).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), rest.len()), (3, 3), "trial {trial}: each once");
        for leased in rest {
            assert_eq!(q.complete(leased.lease).await, Fate::Settled(JobState::Completed), "trial {trial}");
        }
    }
}
