//! What a worker serves, how much it holds, and how it lives through outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use domain::ids::WorkerId;
use domain::queue::{self, JobState, KindSpec, Limits, NewJob, Rate, WorkerSpec};
use serde_json::json;
use sqlx::Connection as _;
use tests::db::Database;
use workers::runner::{Engine, RunnerConfig};

use crate::faults::Faulty;
use crate::support::{
    Act, Running, act, attempts, complete, config, enqueue, enqueue_kind, job, kind, kind_name, measured, meters,
    queue_name, refused, until_some, until_state,
};

/// Only the named queues and kinds are served; what nobody serves is visible as such.
pub async fn only_the_named_queues_and_kinds_are_served(engine: Engine) {
    let db = Database::start().await;
    let (served, unserved) = (kind("test.act"), kind("test.other"));
    let mut registry = act(served.clone(), |_, _| async { complete() });
    registry.add_as(unserved.clone(), Act(|_, _| async { complete() }));
    let elsewhere = enqueue(&db, &NewJob::new(&served, json!({})).on(queue_name("elsewhere"))).await;
    let other = enqueue_kind(&db, &unserved).await;
    let mine = enqueue(&db, &NewJob::new(&served, json!({})).on(queue_name("region.eu"))).await;
    let worker = Running::start(
        &db,
        registry,
        RunnerConfig {
            queues: vec![queue_name("default"), queue_name("region.eu")],
            kinds: Some(vec![kind_name("test.act")]),
            ..config(engine)
        },
    );

    until_state(&db, mine, JobState::Completed).await;
    // Two more rounds of leasing went by.
    for _ in 0..2 {
        let next = enqueue_kind(&db, &served).await;
        until_state(&db, next, JobState::Completed).await;
    }

    for id in [elsewhere, other] {
        let job = job(&db, id).await;
        assert_eq!((job.state, job.fence.0, job.unserved), (JobState::Available, 0, true));
    }
    worker.stop().await;
}

/// The concurrency bounds what runs, and what is held beside it is bounded too, however slowly outcomes are recorded.
pub async fn leases_held_are_bounded_while_outcomes_wait(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.settling.shut();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let registry = act(spec.clone(), move |_, _| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, SeqCst);
            complete()
        }
    });
    let jobs: Vec<NewJob> = (0..100).map(|_| NewJob::new(&spec, json!({}))).collect();
    let mut conn = db.session().await;
    queue::enqueue_many(&mut conn, &jobs).await.expect("the queue takes them");
    let worker = Running::on(store, registry, RunnerConfig { concurrency: 4, ..config(engine) });

    until_some("the bound is reached", async || (faults.most_held.load(SeqCst) == 8).then_some(())).await;
    until_some("an outcome waits", async || (faults.settling.arrived.load(SeqCst) > 0).then_some(())).await;
    assert_eq!(faults.most_held.load(SeqCst), 8, "twice the concurrency while no outcome is recorded");
    faults.settling.open();
    for new in &jobs {
        until_state(&db, new.id, JobState::Completed).await;
    }

    assert!(most.load(SeqCst) <= 4, "{} ran at once", most.load(SeqCst));
    worker.stop().await;
}

/// A start that a job took is spent, though it goes back before it began.
pub async fn jobs_whose_starts_are_limited_are_leased_when_there_is_a_slot_and_not_ahead(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let keyed = || NewJob { concurrency_key: Some("tenant".into()), ..NewJob::new(&spec, json!({})) };
    let jobs: Vec<NewJob> = (0..600).map(|_| keyed()).collect();
    let rate = Rate { starts: 1_000, span: Duration::from_secs(3_600) };
    let limits = Limits { starts_per_key: Some(rate), ..Limits::default() };
    let mut conn = db.session().await;
    queue::set_limits(&mut conn, &spec.queue, &limits, None, "a test", None).await.expect("set");
    queue::enqueue_many(&mut conn, &jobs).await.expect("the queue takes them");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let registry = act(spec.clone(), |_, _| async { complete() });
    let worker = Running::on(store, registry, RunnerConfig { concurrency: 4, ..config(engine) });
    for new in &jobs {
        until_state(&db, new.id, JobState::Completed).await;
    }
    assert!(faults.most_held.load(SeqCst) <= 8, "{}", faults.most_held.load(SeqCst));
    worker.stop().await;
}

/// The answer to a settlement is lost: the second try learns that it was recorded, and nothing is evidence of a loss.
pub async fn a_settlement_whose_answer_was_lost_is_recorded_once(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.answers_lost.store(2, SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let registry = act(spec.clone(), move |_, _| {
        count.fetch_add(1, SeqCst);
        async { complete() }
    });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));

    let done = until_state(&db, id, JobState::Completed).await;
    until_some("both answers were lost", async || (faults.answers_lost.load(SeqCst) == 0).then_some(())).await;
    let summary = worker.stop().await;

    assert_eq!((runs.load(SeqCst), done.attempt, summary.abandoned), (1, 1, 0));
    assert!(refused(&db, id).await.is_empty());
    let counted = completed_count(&db).await;
    assert_eq!(counted, 1, "counted once");
}

async fn completed_count(db: &Database) -> i64 {
    let mut conn = db.session().await;
    let points = queue::throughput(&mut conn, 60).await.expect("the database answers");
    points.iter().filter(|point| point.outcome == "completed").map(|point| point.total).sum()
}

/// Every connection is cut again and again while jobs run: none is lost, and each ends once.
pub async fn cut_connections_lose_no_job(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let registry = act(spec.clone(), |_, context| async move {
        // Some fail for the cut itself: they are tried again.
        context.step("one", &json!(null), &json!({})).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        complete()
    });
    let jobs: Vec<NewJob> = (0..100).map(|_| NewJob::new(&spec, json!({}))).collect();
    let mut conn = db.session().await;
    queue::enqueue_many(&mut conn, &jobs).await.expect("the queue takes them");
    let worker = Running::start(&db, registry, config(engine));

    for _ in 0..10 {
        let _: Vec<bool> = sqlx::query_scalar(
            "select pg_terminate_backend(pid) from pg_stat_activity
              where datname = current_database() and pid <> pg_backend_pid()",
        )
        .fetch_all(&mut conn)
        .await
        .expect("this session is not cut");
        // The worker is at work again before the next cut.
        let before = left(&mut conn).await;
        until_some("a job is done", async || {
            let now = left(&mut db.session().await).await;
            (now < before || now == 0).then_some(())
        })
        .await;
    }
    until_some("all jobs are done", async || (left(&mut db.session().await).await == 0).then_some(())).await;

    let done: i64 = sqlx::query_scalar("select count(*) from jobs_finished where state = 'completed'")
        .fetch_one(&mut conn)
        .await
        .expect("the database answers");
    assert_eq!(done, 100);
    worker.stop().await;
}

async fn left(conn: &mut sqlx::PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from jobs").fetch_one(conn).await.expect("the database answers")
}

/// A database that is away at the start is waited for.
pub async fn leasing_goes_on_after_an_outage(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.leasings_fail.store(3, SeqCst);
    let registry = act(spec.clone(), |_, _| async { complete() });
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, registry, config(engine));

    until_state(&db, id, JobState::Completed).await;

    assert_eq!(faults.leasings_fail.load(SeqCst), 0);
    worker.stop().await;
}

/// As an outage, so many would keep the worker away for minutes.
pub async fn leasing_goes_on_at_once_where_others_held_it_up(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.leasings_held.store(50, SeqCst);
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, act(spec.clone(), |_, _| async { complete() }), config(engine));

    until_state(&db, id, JobState::Completed).await;

    assert_eq!(faults.leasings_held.load(SeqCst), 0);
    worker.stop().await;
}

/// A stranger's session hangs while it takes the first place of one queue's limit.
pub async fn a_place_that_others_hold_up_holds_up_no_other_queue(engine: Engine) {
    let db = Database::start().await;
    let spec = kind("test.act");
    let limits = Limits { running: Some(1), ..Limits::default() };
    queue::set_limits(&mut db.session().await, &spec.queue, &limits, None, "a test", None).await.expect("set");
    enqueue_kind(&db, &spec).await;
    let mut stranger = db.session().await;
    let mut hangs = stranger.begin().await.expect("a transaction");
    let other = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![spec.queue.clone()],
        kinds: vec![(spec.kind.clone(), spec.lease)],
    };
    assert_eq!(queue::lease_next(&mut hangs, &other, 1, &[]).await.expect("answers").len(), 1);
    // It stands before the other, and so wants the same place.
    enqueue(&db, &NewJob { priority: -1, ..NewJob::new(&spec, json!({})) }).await;
    let free = queue_name("free");
    let queues = vec![spec.queue.clone(), free.clone()];
    let registry = act(spec.clone(), |_, _| async { complete() });
    let worker = Running::start(&db, registry, RunnerConfig { queues, ..config(engine) });
    db.until_blocked().await;

    let id = enqueue(&db, &NewJob::new(&spec, json!({})).on(free)).await;

    until_state(&db, id, JobState::Completed).await;
    hangs.rollback().await.expect("it takes no place");
    worker.stop().await;
}

/// The answer to a poll is lost after its commit: nobody holds the leases, and their batch finds them when they end.
pub async fn leases_whose_answer_was_lost_are_found_again(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { lease: Duration::from_secs(300), ..kind("test.act") };
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    faults.polls_lost.store(1, SeqCst);
    let id = enqueue_kind(&db, &spec).await;
    let worker = Running::on(store, act(spec.clone(), |_, _| async { complete() }), config(engine));
    until_some("the answer is lost", async || (faults.polls_lost.load(SeqCst) == 0).then_some(())).await;
    until_state(&db, id, JobState::Running).await;

    db.clock().advance(Duration::from_secs(301)).await;

    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.attempt, done.interruptions), (1, 1));
    worker.stop().await;
}

/// Any worker stages what is due, and takes over what a dead one left.
pub async fn a_worker_stages_due_jobs_and_takes_over_from_the_dead(engine: Engine) {
    let db = Database::start().await;
    let spec = KindSpec { lease: Duration::from_secs(30), ..kind("test.act") };
    let left = enqueue_kind(&db, &spec).await;
    let mut conn = db.session().await;
    // A worker that dies: it leases, and is never heard of again.
    let dead = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![queue_name("default")],
        kinds: vec![(spec.kind.clone(), spec.lease)],
    };
    assert_eq!(queue::lease_next(&mut conn, &dead, 10, &[]).await.expect("the database answers").len(), 1);
    let in_an_hour = db.clock().now().await + Duration::from_secs(3600);
    let later = enqueue(&db, &NewJob { run_at: Some(in_an_hour), ..NewJob::new(&spec, json!({})) }).await;
    let worker = Running::start(&db, act(spec.clone(), |_, _| async { complete() }), config(engine));
    let now = enqueue_kind(&db, &spec).await;
    until_state(&db, now, JobState::Completed).await;
    assert_eq!(job(&db, later).await.state, JobState::Scheduled);
    assert_eq!(job(&db, left).await.state, JobState::Running);

    db.clock().advance(Duration::from_secs(3601)).await;

    until_state(&db, later, JobState::Completed).await;
    let rescued = until_state(&db, left, JobState::Completed).await;
    assert_eq!((rescued.attempt, rescued.interruptions), (1, 1));
    assert_eq!(attempts(&db, left).await[0].outcome, "interrupted");
    worker.stop().await;
}

/// What a worker did is added up for readers, the last second of it too, and told to Prometheus.
pub async fn what_was_done_is_counted(engine: Engine) {
    meters();
    let db = Database::start().await;
    let spec = kind("test.act");
    let child = kind("test.child");
    let (given, parent_ran) = (child.clone(), Arc::new(AtomicBool::new(false)));
    let ran = Arc::clone(&parent_ran);
    let registry = act(spec.clone(), move |_, context| {
        let (child, ran) = (given.clone(), Arc::clone(&ran));
        async move {
            context.enqueue_child(&NewJob::new(&child, json!({}))).await?;
            ran.store(true, SeqCst);
            complete()
        }
    });
    for _ in 0..3 {
        enqueue_kind(&db, &spec).await;
    }
    let worker = Running::start(&db, registry, config(engine));
    until_some("all are done", async || {
        let mut conn = db.session().await;
        let filter = queue::Filter { state: Some(JobState::Completed), ..queue::Filter::default() };
        let page = queue::list(&mut conn, &filter, 10).await.expect("the database answers");
        (page.items.len() == 3).then_some(())
    })
    .await;
    worker.stop().await;

    let mut conn = db.session().await;
    let points = queue::throughput(&mut conn, 60).await.expect("the database answers");
    let total = |kind: &str, outcome: &str| -> i64 {
        points.iter().filter(|p| p.kind == kind && p.outcome == outcome).map(|p| p.total).sum()
    };
    assert_eq!((total("test.act", "completed"), total("test.child", "enqueued")), (3, 3));
    assert!(parent_ran.load(SeqCst));
    let labels = [("queue", "default"), ("kind", "test.act")];
    for name in ["leasehold_jobs_started_total", "leasehold_job_run_seconds_count", "leasehold_job_wait_seconds_count"]
    {
        assert!(measured(name, &labels) >= Some(3.0), "{name}: {}", meters().render());
    }
    let completed = [("kind", "test.act"), ("outcome", "completed")];
    assert!(measured("leasehold_jobs_finished_total", &completed) >= Some(3.0));
    assert_eq!(measured("leasehold_jobs_running", &labels), Some(0.0));
}
