//! Hints: an idle worker looks before its next poll, and nothing depends on it.
//!
//! Time stands still in most of these tests: no timer of the runtime fires, so no poll comes by itself, and what happens
//! all the same, a hint alone has done.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use domain::ids::JobId;
use domain::queue::hints::CHANNEL;
use domain::queue::{self, JobState, NewJob};
use serde_json::json;
use sqlx::postgres::PgListener;
use tests::api::Server;
use tests::db::Database;
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use workers::runner::{Engine, Registry, RunnerConfig};
use workers::seam::{LeaseStore as _, PgLeaseStore};

use crate::faults::{Faults, Faulty};
use crate::support::{PATIENCE, Running, act, complete, config, enqueue_kind, kind, queue_name, until_state};

/// Time that stands still, on a runtime of one thread.
struct Stillness {
    over: mpsc::Sender<()>,
    /// A task that blocks keeps the runtime from skipping to the next timer.
    task: JoinHandle<bool>,
}

impl Stillness {
    fn begin() -> Self {
        tokio::time::pause();
        let (over, told) = mpsc::channel::<()>();
        let task = spawn_blocking(move || told.recv_timeout(PATIENCE * 2).is_ok());
        Self { over, task }
    }

    /// Time goes on.
    async fn end(self) {
        let _ = self.over.send(());
        assert!(self.task.await.expect("it only waits"), "the test took so long that time went on by itself");
        tokio::time::resume();
    }
}

/// As `until`, without a timer.
async fn until_true(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        yield_now().await;
    }
}

/// An idle worker that listens, and whose polls have all been answered.
async fn idle(faults: &Faults, polls: usize, listens: usize) {
    until_true("the worker listens and idles", async || {
        let (asked, answered) = (faults.polls.load(SeqCst), faults.polled.load(SeqCst));
        faults.listened.load(SeqCst) >= listens && answered >= polls && asked == answered
    })
    .await;
}

fn nothing(name: &'static str) -> Registry {
    act(kind(name), |_, _| async { complete() })
}

async fn completed(db: &Database, id: JobId) {
    until_true("the job is completed", async || crate::support::job(db, id).await.state == JobState::Completed).await;
}

#[tokio::test]
async fn a_job_enqueued_over_the_api_starts_by_its_hint_before_any_poll() {
    let server = Server::start().await;
    let time = Stillness::begin();
    let store = Faulty::before(&server.db);
    let faults = Arc::clone(&store.faults);
    let worker = Running::on(store, nothing("test.free"), config(Engine::Plain));
    // One poll at its start, and one when it begins to listen.
    idle(&faults, 2, 1).await;
    let before = faults.polls.load(SeqCst);

    let made = server.client().enqueue(&wire::NewJob::new("test.free", json!({})), None).await.expect("enqueued").value;

    completed(&server.db, JobId(made.id)).await;
    assert!(faults.polls.load(SeqCst) > before);
    time.end().await;
    worker.stop().await;
}

#[tokio::test]
async fn a_hint_for_other_queues_wakes_nobody() {
    let db = Database::start().await;
    let time = Stillness::begin();
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let worker = Running::on(store, nothing("test.act"), config(Engine::Plain));
    idle(&faults, 2, 1).await;
    let before = faults.polls.load(SeqCst);

    let mut conn = db.session().await;
    for noise in ["0 elsewhere=5", "no hint of ours", "", "1 default=many"] {
        queue::tell(&mut conn, noise).await.expect("told");
    }
    // Hints come in the order in which they were told: when the last one was heard, the others were too.
    let id = enqueue_kind(&db, &kind("test.act")).await;
    queue::tell(&mut conn, "0 default=1").await.expect("told");
    completed(&db, id).await;

    let after = faults.polls.load(SeqCst);
    assert!(after - before <= 2, "one for the job, and one after it: {}", after - before);
    time.end().await;
    worker.stop().await;
}

#[tokio::test]
async fn a_listener_whose_session_is_ended_listens_again_and_hears_the_next_hint() {
    let db = Database::start().await;
    let time = Stillness::begin();
    let store = Faulty::before(&db);
    let faults = Arc::clone(&store.faults);
    let worker = Running::on(store, nothing("test.act"), config(Engine::Plain));
    idle(&faults, 2, 1).await;

    let mut conn = db.session().await;
    let ended: i64 = sqlx::query_scalar(
        "select count(*) filter (where pg_terminate_backend(pid))
           from pg_stat_activity where datname = current_database() and query ilike 'listen %'",
    )
    .fetch_one(&mut conn)
    .await
    .expect("the database answers");
    assert_eq!(ended, 1, "one connection of the worker listens");
    until_true("it listens again, after a pause", async || {
        tokio::time::advance(Duration::from_millis(1)).await;
        // No faster than the database answers, or limits on its answers would be over before they come.
        sqlx::query("select 1").execute(&mut conn).await.expect("the database answers");
        faults.listened.load(SeqCst) == 2
    })
    .await;
    idle(&faults, 3, 2).await;

    let id = enqueue_kind(&db, &kind("test.act")).await;
    queue::tell(&mut conn, "0 default=1").await.expect("told");
    completed(&db, id).await;
    time.end().await;
    worker.stop().await;
}

/// A job of a queue that its enqueuer's worker does not serve.
fn child() -> NewJob {
    NewJob::new(&kind("test.child"), json!({})).on(queue_name("children"))
}

#[tokio::test]
async fn a_child_starts_by_its_hint_on_another_worker() {
    let db = Database::start().await;
    let registry = act(kind("test.act"), |_, context| async move {
        context.enqueue_child(&child()).await?;
        complete()
    });
    starts_by_its_hint(&db, registry).await;
}

#[tokio::test]
async fn what_a_handler_enqueued_in_its_own_transaction_starts_by_its_hint() {
    let db = Database::start().await;
    let pool = db.pool().clone();
    let registry = act(kind("test.act"), move |_, context| {
        let pool = pool.clone();
        async move {
            let mut tx = pool.begin().await.map_err(anyhow::Error::from)?;
            let made = queue::enqueue(&mut tx, &child()).await.map_err(anyhow::Error::from)?;
            tx.commit().await.map_err(anyhow::Error::from)?;
            context.tell_enqueued(&child(), made);
            complete()
        }
    });
    starts_by_its_hint(&db, registry).await;
}

/// A worker that idles on another queue hears of what a handler enqueued, although the handler's worker serves it not.
async fn starts_by_its_hint(db: &Database, registry: Registry) {
    let time = Stillness::begin();
    let (first, second) = (Faulty::before(db), Faulty::before(db));
    let (parents, children) = (Arc::clone(&first.faults), Arc::clone(&second.faults));
    let parent = Running::on(first, registry, config(Engine::Plain));
    let serves = RunnerConfig { queues: vec![queue_name("children")], ..config(Engine::Plain) };
    let child = Running::on(second, nothing("test.child"), serves);
    idle(&parents, 2, 1).await;
    idle(&children, 2, 1).await;

    enqueue_kind(db, &kind("test.act")).await;
    parent.handle.wake();

    until_true("the child is completed", async || {
        let done: i64 =
            sqlx::query_scalar("select count(*) from jobs_finished where kind = 'test.child' and state = 'completed'")
                .fetch_one(db.pool())
                .await
                .expect("the database answers");
        done == 1
    })
    .await;
    time.end().await;
    parent.stop().await;
    child.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_jobs_run_by_polls_and_nobody_listens() {
    let config_without = api::Config { hints: false, ..Server::config() };
    let server = Server::start_with(config_without).await;
    let store = Arc::new(PgLeaseStore::new(server.db.pool()).without_hints());
    let mut listener = PgListener::connect(server.db.url()).await.expect("the database answers");
    listener.listen(CHANNEL).await.expect("it listens");
    let worker = Running::on(store, nothing("test.free"), config(Engine::Plain));
    let made = server.client().enqueue(&wire::NewJob::new("test.free", json!({})), None).await.expect("enqueued").value;

    until_state(&server.db, JobId(made.id), JobState::Completed).await;

    // This test's own connection alone.
    let listens: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'",
    )
    .fetch_one(server.db.pool())
    .await
    .expect("the database answers");
    assert_eq!(listens, 1);
    queue::tell(&mut server.db.session().await, "1 the-end=1").await.expect("told");
    let first = listener.recv().await.expect("heard");
    assert_eq!(first.payload(), "1 the-end=1", "nothing was told before");
    worker.stop().await;
}

/// Rescued jobs may be others' to run: whoever sweeps tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stages_jobs_tells_of_them() {
    let db = Database::start().await;
    let mut listener = PgListener::connect(db.url()).await.expect("the database answers");
    listener.listen(CHANNEL).await.expect("it listens");
    let worker = Running::start(&db, nothing("test.act"), config(Engine::Plain));
    let later = db.clock().now().await + Duration::from_secs(600);
    let job = NewJob { run_at: Some(later), ..NewJob::new(&kind("test.other"), json!({})) }.on(queue_name("elsewhere"));
    crate::support::enqueue(&db, &job).await;

    db.clock().advance(Duration::from_secs(601)).await;

    let heard = tokio::time::timeout(PATIENCE, listener.recv()).await.expect("somebody tells").expect("heard");
    assert!(heard.payload().ends_with(" *=1"), "{}", heard.payload());
    worker.stop().await;
}

#[tokio::test]
async fn a_store_tells_and_hears_hints() {
    let db = Database::start().await;
    let store = PgLeaseStore::new(db.pool());
    let mut hints = store.hints().await.expect("the database answers").expect("there are hints");
    let mut hint = queue::hints::Hint::default();
    hint.add(&queue_name("mail"), 3);
    store.tell(&hint).await.expect("told");
    let heard = futures::StreamExt::next(&mut hints).await.map(|(_, heard)| heard);
    assert_eq!(heard, Some(hint));
}
