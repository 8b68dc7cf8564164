//! stopping a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use domain::queue::{self, JobState, KindSpec, NewJob};
use serde_json::json;
use tests::db::Database;
use tokio::sync::watch;
use workers::runner::{Engine, Error, RunnerConfig};

use crate::faults::Faulty;
use crate::support::{
    Running, act, attempts, complete, config, enqueue, enqueue_kind, job, kind, until_some, until_state,
};

async fn until_draining(db: &Database, worker: domain::ids::WorkerId) {
    until_some("the worker drains", async || {
        let mut conn = db.session().await;
        let view = queue::worker(&mut conn, worker).await.expect("the database answers")?;
        (view.state == "draining").then_some(())
    })
    .await;
}

/// A handler that is told and ends within the drain time completes; nothing new begins; the worker says goodbye.
pub async fn a_drain_lets_handlers_end_and_begins_nothing_new(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let (release, held) = watch::channel(false);
    let registry = act(spec.clone(), move |_, context| {
        count.fetch_add(1, SeqCst);
        let mut held = held.clone();
        async move {
            context.draining.cancelled().await;
            assert!(!context.cancel.is_cancelled(), "a drain is no cancellation");
            held.wait_for(|open| *open).await.expect("the test holds the sender");
            complete()
        }
    });
    let running = enqueue_kind(&db, &spec).await;
    let worker = Running::start(&db, registry, config(engine));
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;

    worker.shutdown.cancel();
    let id = worker.worker();
    until_draining(&db, id).await;
    let late = enqueue_kind(&db, &spec).await;
    release.send_replace(true);
    let summary = worker.stop().await;

    assert_eq!(summary.abandoned, 0);
    assert_eq!(job(&db, running).await.state, JobState::Completed);
    let waiting = job(&db, late).await;
    // A request that was on its way when the drain began may have leased it; then it was handed back.
    assert_eq!((waiting.state, waiting.attempt, begun.load(SeqCst)), (JobState::Available, 0, 1), "it never began");
    let mut conn = db.session().await;
    let view = queue::worker(&mut conn, id).await.expect("the database answers").expect("it was registered");
    assert_eq!(view.state, "stopped");
}

/// What runs longer than the drain time goes to another worker, without an attempt spent.
pub async fn what_outlasts_the_drain_is_snoozed_without_an_attempt(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |_, _| {
        let run = count.fetch_add(1, SeqCst);
        async move { if run == 0 { std::future::pending().await } else { complete() } }
    });
    let id = enqueue_kind(&db, &spec).await;
    let quick = RunnerConfig { drain: Duration::from_millis(100), ..config(engine) };
    let worker = Running::start(&db, registry.clone(), quick);
    until_some("the handler runs", async || (begun.load(SeqCst) == 1).then_some(())).await;

    let asked = Instant::now();
    let summary = worker.stop().await;

    assert!(asked.elapsed() < Duration::from_secs(4), "dropped when the drain time is over: {:?}", asked.elapsed());
    assert_eq!(summary.abandoned, 0);
    let snoozed = job(&db, id).await;
    assert_eq!((snoozed.state, snoozed.attempt, snoozed.interruptions), (JobState::Available, 0, 0));
    assert_eq!(attempts(&db, id).await[0].outcome, "snoozed");
    let next = Running::start(&db, registry, config(engine));
    assert_eq!(until_state(&db, id, JobState::Completed).await.attempt, 1);
    next.stop().await;
}

/// Leases whose answer arrives while the worker drains are handed back unbegun.
pub async fn leases_that_arrive_during_the_drain_are_handed_back(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.leasing.shut();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |_, _| {
        count.fetch_add(1, SeqCst);
        async { complete() }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));
    until_some("the job is leased", async || (faults.leasing.arrived.load(SeqCst) == 1).then_some(())).await;

    worker.shutdown.cancel();
    // The drain begins before the answer arrives.
    until_draining(&db, worker.worker()).await;
    faults.leasing.open();
    let summary = worker.stop().await;

    let job = job(&db, id).await;
    assert_eq!((job.state, job.attempt, begun.load(SeqCst)), (JobState::Available, 0, 0), "{summary:?}");
    assert_eq!(attempts(&db, id).await[0].outcome, "released");
}

/// The second signal: handlers are dropped where they are, and their leases handed back.
pub async fn stopping_at_once_drops_handlers_and_hands_their_leases_back(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |_, _| {
        count.fetch_add(1, SeqCst);
        std::future::pending()
    });
    let ids = [enqueue_kind(&db, &spec).await, enqueue_kind(&db, &spec).await];
    let worker = Running::start(&db, registry, RunnerConfig { drain: Duration::from_secs(3600), ..config(engine) });
    until_some("both run", async || (begun.load(SeqCst) == 2).then_some(())).await;

    worker.shutdown.cancel();
    worker.handle.stop_now();
    let summary = worker.ended().await.expect("it was told to end");

    assert_eq!(summary.abandoned, 0);
    for id in ids {
        let job = job(&db, id).await;
        assert_eq!((job.state, job.attempt), (JobState::Available, 0));
    }
}

/// A fault of the runner's own is none of the jobs that it ran: they go on elsewhere, and no attempt is spent.
pub async fn a_loop_that_dies_spends_no_attempt(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { max_attempts: 1, ..kind("test.act") };
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let registry = act(spec.clone(), move |_, _| {
        count.fetch_add(1, SeqCst);
        std::future::pending()
    });
    let ids = [enqueue_kind(&db, &spec).await, enqueue_kind(&db, &spec).await];
    let worker = Running::on(store, registry, config(engine));
    until_some("both run", async || (begun.load(SeqCst) == 2).then_some(())).await;

    faults.sweep_dies.store(true, SeqCst);
    // The time of a job comes, which calls for a sweep.
    let soon = db.clock().now().await + Duration::from_secs(60);
    enqueue(&db, &NewJob { run_at: Some(soon), ..NewJob::new(&spec, json!({})) }).await;
    db.clock().advance(Duration::from_secs(61)).await;
    let ended = worker.ended().await;

    assert!(matches!(ended, Err(Error::LoopDied(_))), "{ended:?}");
    for id in ids {
        let job = job(&db, id).await;
        assert_eq!((job.state, job.attempt), (JobState::Available, 0), "{:?}", job.last_error);
    }
}

/// A worker whose renewals died cannot keep a lease: it ends with an error, and its jobs go on elsewhere.
pub async fn a_worker_without_its_renewals_ends_with_an_error(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    store.faults.keeper_dies.store(true, SeqCst);
    let registry = act(spec.clone(), |_, _| std::future::pending());
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));

    let ended = worker.ended().await;

    assert!(matches!(ended, Err(Error::LoopDied("renewals"))), "{ended:?}");
    let job = job(&db, id).await;
    assert!(job.lease.is_none(), "{job:?}");
}
