//! What a poll sees beside jobs.

use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{self, JobState, Look, PollRequest, WorkerSpec};
use sqlx::PgConnection;

use crate::support::{LEASE, Queue, failed, job, kind, queue_name, worker};

async fn look(conn: &mut PgConnection, me: &WorkerSpec) -> Look {
    let request = PollRequest { limit: 0, ended: &[], look: true, wall_clock: None, turns: None, low_water: None };
    let polled = queue::poll(conn, me, &request).await.expect("the database answers");
    assert!(polled.leased.is_empty(), "it asked for none");
    polled.look.expect("it was asked to look")
}

#[tokio::test]
async fn a_poll_sees_what_the_sweeps_have_to_do() {
    let q = Queue::start().await;
    let (me, mut conn) = (worker(), q.conn().await);
    let sees = async |conn: &mut PgConnection| {
        let look = look(conn, &me).await;
        (look.batches_due, look.due)
    };
    assert_eq!(sees(&mut conn).await, (false, false));
    for _ in 0..2 {
        q.enqueue().await;
    }
    let held = q.lease_up_to(2).await;
    assert_eq!(sees(&mut conn).await, (false, false), "leases live");
    let next = look(&mut conn, &me).await.next.expect("leases end");
    assert!(next > LEASE - Duration::from_secs(10) && next <= LEASE, "{next:?}");
    q.settle(held[0].lease, failed()).await;
    let next = look(&mut conn, &me).await.next.expect("a retry waits");
    assert!(next > Duration::from_secs(5) && next <= Duration::from_secs(10), "{next:?}");
    assert_eq!(sees(&mut conn).await, (false, false), "its time has not come");
    q.db.clock().advance(Duration::from_secs(11)).await;
    assert_eq!(sees(&mut conn).await, (false, true));
    assert_eq!(q.stage().await, 1);
    q.db.clock().advance(LEASE).await;
    assert_eq!(sees(&mut conn).await, (true, false));
    q.rescue().await;
    assert_eq!(sees(&mut conn).await, (false, false));

    // A batch is looked at once in the life of its leases, though they are renewed.
    let held = q.lease().await;
    q.db.clock().advance(LEASE / 2).await;
    queue::renew(&mut conn, &[(held.lease, LEASE)]).await.expect("renewed");
    q.db.clock().advance(LEASE / 2 + Duration::from_secs(1)).await;
    assert_eq!(sees(&mut conn).await, (true, false));
    assert_eq!(q.rescue().await, queue::Rescued::default());
    assert_eq!(sees(&mut conn).await, (false, false));
}

#[tokio::test]
async fn a_poll_tells_the_rank_among_the_living_who_serve_the_same_queues() {
    let q = Queue::start().await;
    let mut conn = q.conn().await;
    let on = |queues: &[&str]| WorkerSpec {
        worker: WorkerId::generate(),
        queues: queues.iter().map(|name| queue_name(name)).collect(),
        kinds: vec![(kind(), LEASE)],
    };
    let (first, other, second, third) = (on(&["a", "b"]), on(&["c"]), on(&["b"]), on(&["b", "d"]));
    for spec in [&first, &other, &second, &third] {
        queue::register_worker(&mut conn, spec, "h", 1, "0", None, 1).await.expect("registered");
    }
    let place = async |conn: &mut PgConnection, spec: &WorkerSpec| {
        let look = look(conn, spec).await;
        (look.rank, look.live)
    };
    assert_eq!(place(&mut conn, &first).await, (0, 3));
    assert_eq!(place(&mut conn, &second).await, (1, 3));
    assert_eq!(place(&mut conn, &third).await, (2, 3));
    assert_eq!(place(&mut conn, &other).await, (0, 1));
    queue::stop_worker(&mut conn, first.worker).await.expect("stopped");
    queue::drain_worker(&mut conn, second.worker).await.expect("draining");
    assert_eq!(place(&mut conn, &third).await, (0, 1));
    q.db.clock().advance(queue::policy::SILENT_AFTER + Duration::from_secs(1)).await;
    assert_eq!(place(&mut conn, &third).await, (0, 1), "who asks counts itself");
}

#[tokio::test]
async fn a_poll_that_tells_a_clock_says_that_the_worker_lives() {
    let q = Queue::start().await;
    let (me, mut conn) = (worker(), q.conn().await);
    queue::register_worker(&mut conn, &me, "h", 1, "0", None, 1).await.expect("registered");
    q.db.clock().advance(queue::policy::SILENT_AFTER + Duration::from_secs(1)).await;
    let seen = async |conn: &mut PgConnection| {
        let seen = queue::worker(conn, me.worker).await.expect("answers").expect("there");
        (seen.state, seen.clock_skew_ms)
    };
    let mut request = PollRequest { limit: 1, ended: &[], look: false, wall_clock: None, turns: None, low_water: None };
    let id = q.enqueue_as(job()).await;
    let polled = queue::poll(&mut conn, &me, &request).await.expect("answers");
    assert_eq!((polled.leased.len(), polled.look), (1, None), "not asked");
    assert_eq!(q.job(id).await.state, JobState::Running);
    assert_eq!(seen(&mut conn).await, ("silent".to_owned(), None));
    let now = q.db.clock().now().await;
    request.wall_clock = Some(now - Duration::from_secs(60));
    queue::poll(&mut conn, &me, &request).await.expect("answers");
    let (state, skew) = seen(&mut conn).await;
    assert_eq!(state, "live");
    assert!(skew.is_some_and(|ms| (-70_000..=-60_000).contains(&ms)), "{skew:?}");
}
