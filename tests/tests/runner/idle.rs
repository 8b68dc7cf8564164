//! What a worker asks of the database while it has nothing to do, and while it has too much.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{self, JobState, KindSpec, WorkerSpec};
use tests::db::Database;
use tokio::sync::Semaphore;
use workers::runner::{Engine, RunnerConfig};

use crate::faults::Faulty;
use crate::support::{Running, act, complete, config, enqueue_kind, kind, queue_name, until_some, until_state};

/// A poll looks after what the sweeps would do and says that the worker lives: nothing else is asked meanwhile.
pub async fn an_idle_worker_polls_and_asks_nothing_else(engine: Engine) {
    let db = Database::start().await;
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let worker = Running::on(store, act(kind("test.act"), |_, _| async { complete() }), config(engine));

    until_some("it polls on and on", async || (faults.polls.load(SeqCst) >= 8).then_some(())).await;

    assert!(faults.sweeps.load(SeqCst) <= 1, "one sweep goes with its first upkeep");
    assert_eq!(faults.beats.load(SeqCst), 0, "its polls say that it lives");
    let mut conn = db.session().await;
    let seen = queue::worker(&mut conn, worker.worker()).await.expect("answers").expect("registered");
    assert!(seen.clock_skew_ms.is_some(), "its first poll told its clock");
    worker.stop().await;
}

/// A worker whose slots are all taken polls for nothing; it takes over from the dead all the same.
pub async fn a_worker_whose_slots_are_taken_still_sweeps(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { lease: Duration::from_secs(300), ..kind("test.act") };
    let (go, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begun, waits) = (Arc::clone(&go), Arc::clone(&gate));
    let registry = act(spec.clone(), move |_, _| {
        let (begun, waits) = (Arc::clone(&begun), Arc::clone(&waits));
        async move {
            begun.add_permits(1);
            waits.acquire().await.expect("the gate stands").forget();
            complete()
        }
    });
    let long = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, RunnerConfig { concurrency: 1, ..config(engine) });
    go.acquire().await.expect("the gate stands").forget();

    // A worker that dies: it leases for a short time, and is never heard of again.
    let left = enqueue_kind(&db, &spec).await;
    let dead = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![queue_name("default")],
        kinds: vec![(spec.kind.clone(), Duration::from_secs(30))],
    };
    let mut conn = db.session().await;
    assert_eq!(queue::lease_next(&mut conn, &dead, 1, &[]).await.expect("answers").len(), 1);
    db.clock().advance(Duration::from_secs(31)).await;

    let back = until_state(&db, left, JobState::Available).await;
    assert_eq!(back.interruptions, 1);
    gate.add_permits(2);
    until_state(&db, long, JobState::Completed).await;
    until_state(&db, left, JobState::Completed).await;
    worker.stop().await;
}

/// The database keeps no batch of leases that have all ended.
pub async fn a_worker_removes_the_batches_that_it_is_done_with(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let worker = Running::start(&db, act(spec.clone(), |_, _| async { complete() }), config(engine));
    for _ in 0..3 {
        let id = enqueue_kind(&db, &spec).await;
        until_state(&db, id, JobState::Completed).await;
    }
    until_some("no batch is kept", async || {
        let kept: i64 =
            sqlx::query_scalar("select count(*) from lease_batches").fetch_one(db.pool()).await.expect("answers");
        (kept == 0).then_some(())
    })
    .await;
    worker.stop().await;
}
