//! The API and several workers through one small pooler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use domain::ids::{JobId, WorkerId};
use domain::queue::{self, JobState, KindSpec, NewJob, Progress, WorkerSpec};
use serde_json::json;
use sqlx::Executor as _;
use tests::api::Server;
use tests::db::Database;
use tests::pgbouncer::{PgBouncer, SESSIONS};
use wire::{Batch, Reason};
use workers::runner::{Done, Engine, JobContext, JobError, Level, Registry};
use workers::seam::{LeaseStore as _, PgLeaseStore};

use crate::support::{Act, Running, act, attempts, complete, config, kind, queue_name, until_some, until_state};

/// Workers that share the pooler.
const WORKERS: usize = 3;
/// Connections of each client's pool: far more than the pooler has sessions.
const CLIENT_POOL: u32 = 10;

fn started(bouncer: &PgBouncer, registry: Registry, engine: Engine) -> Running {
    let store = Arc::new(PgLeaseStore::new(&bouncer.pool(CLIENT_POOL)));
    Running::on(store, registry, config(engine))
}

/// Sessions of the server that PgBouncer holds for our programs.
async fn lent_sessions(db: &Database) -> i64 {
    sqlx::query_scalar(
        "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = 'leasehold behind a pooler'",
    )
    .fetch_one(db.pool())
    .await
    .expect("the database answers")
}

/// Jobs that write everything a handler can write.
fn writes_everything() -> Registry {
    let mut registry = Registry::default();
    registry.add_as(
        kind("test.free"),
        Act(|_, context: JobContext| async move {
            context.step("one", &json!({"at": 1}), &json!({})).await?;
            context.log(Level::Info, "on its way").await?;
            context.progress(&Progress { done: 1, ..Progress::default() }).await?;
            context.enqueue_child(&NewJob::new(&kind("test.child"), json!({}))).await?;
            assert_eq!(context.steps().await?.len(), 1);
            complete()
        }),
    );
    registry.add_as(kind("test.child"), Act(|_, _| async { complete() }));
    registry
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_and_workers_run_every_job_once_through_a_pooler_of_four_sessions() {
    const JOBS: usize = 300;
    let db = Database::start().await;
    let bouncer = PgBouncer::before(&db).await;
    let server = Server::start_over(db, bouncer.pool(CLIENT_POOL), Server::config()).await;
    let engines = [Engine::Apalis, Engine::Plain, Engine::Plain];
    let workers: Vec<Running> =
        engines.map(|engine| started(&bouncer, writes_everything(), engine)).into_iter().collect();
    assert_eq!(workers.len(), WORKERS);
    let client = server.client();

    let batch = Batch { jobs: (0..JOBS).map(|n| wire::NewJob::new("test.free", json!({"n": n}))).collect() };
    client.enqueue_batch(&batch, Some("batch")).await.expect("enqueued");
    let mut single = Vec::new();
    for n in 0..20 {
        let made = client.enqueue(&wire::NewJob::new("test.free", json!({"one": n})), None).await.expect("enqueued");
        single.push(made.value.id);
    }

    until_some("all jobs and their children are done", async || {
        let lent = lent_sessions(&server.db).await;
        assert!(lent <= SESSIONS, "{lent} sessions");
        let left: i64 =
            sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count");
        (left == 0).then_some(())
    })
    .await;
    let finished: Vec<(String, String, i32, i64)> =
        sqlx::query_as("select kind, state, attempt, count(*) from jobs_finished group by 1, 2, 3 order by 1, 2, 3")
            .fetch_all(server.db.pool())
            .await
            .expect("counts");
    let total = i64::try_from(JOBS + 20).expect("few");
    let done = |kind: &str| (kind.to_owned(), "completed".to_owned(), 1, total);
    assert_eq!(finished, [done("test.child"), done("test.free")], "each in its first attempt");
    let refused: i64 =
        sqlx::query_scalar("select count(*) from fenced_writes").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(refused, 0);

    // What people read: every page of the API's lists, on transactions that read alone.
    let shown = client.job(single[0]).await.expect("shown");
    assert_eq!(shown.state, wire::JobState::Completed);
    assert_eq!(client.workers().await.expect("listed").items.len(), WORKERS);
    let again = client.enqueue_batch(&batch, Some("batch")).await.expect("answered");
    assert!(again.replayed, "a repeated call is answered as the first was");
    for worker in workers {
        assert_eq!(worker.stop().await.abandoned, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_retry_and_run_again_work_through_a_pooler() {
    let db = Database::start().await;
    let bouncer = PgBouncer::before(&db).await;
    let server = Server::start_over(db, bouncer.pool(CLIENT_POOL), Server::config()).await;
    let (client, reason) = (server.client(), Reason { reason: Some("because".to_owned()) });
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let spec = KindSpec { lease: Duration::from_millis(1500), ..kind("test.free") };
    let registry = act(spec, move |args, context| {
        count.fetch_add(1, SeqCst);
        async move {
            if args["hangs"] == json!(true) {
                context.cancel.cancelled().await;
                context.check()?;
            }
            complete()
        }
    });
    let worker = started(&bouncer, registry, Engine::Apalis);

    let hangs = client.enqueue(&wire::NewJob::new("test.free", json!({"hangs": true})), None).await.expect("enqueued");
    let id = hangs.value.id;
    until_state(&server.db, JobId(id), JobState::Running).await;
    client.cancel(id, &reason, None).await.expect("asked to end");
    until_state(&server.db, JobId(id), JobState::Cancelled).await;

    client.retry(id, &reason, None).await.expect("due again");
    until_some("it runs again", async || (runs.load(SeqCst) == 2).then_some(())).await;
    client.cancel(id, &reason, None).await.expect("asked to end");
    until_state(&server.db, JobId(id), JobState::Cancelled).await;

    let again = client.run_again(id, &reason, None, None).await.expect("a new job").value;
    until_state(&server.db, JobId(again.id), JobState::Running).await;
    client.cancel(again.id, &reason, None).await.expect("asked to end");
    until_state(&server.db, JobId(again.id), JobState::Cancelled).await;
    let acts = client.audit(Some("job"), Some(&id.to_string()), None, None).await.expect("the trail").items;
    assert_eq!(acts.len(), 4, "each act is audited: {acts:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_dead_worker_is_rescued_through_a_pooler() {
    let db = Database::start().await;
    let bouncer = PgBouncer::before(&db).await;
    let spec = kind("test.act");
    let id = crate::support::enqueue_kind(&db, &spec).await;
    let dead = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![queue_name("default")],
        kinds: vec![(spec.kind.clone(), Duration::from_secs(30))],
    };
    let pool = bouncer.pool(1);
    let mut conn = domain::db::session(&pool).await.expect("a session");
    let leased = queue::lease_next(&mut conn, &dead, 1, &[]).await.expect("answers");
    assert_eq!(conn.done(leased).await.expect("committed").len(), 1);
    let worker = started(&bouncer, act(spec, |_, _| async { complete() }), Engine::Plain);

    db.clock().advance(Duration::from_secs(31)).await;

    let done = until_state(&db, id, JobState::Completed).await;
    assert_eq!((done.interruptions, done.attempt), (1, 1), "an interruption is no attempt");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_settles_in_its_own_transaction_through_a_pooler() {
    let db = Database::start().await;
    db.pool().execute("create table change (n integer)").await.expect("a domain's table");
    let bouncer = PgBouncer::before(&db).await;
    let spec = KindSpec { local_db: true, ..kind("test.act") };
    let pool = bouncer.pool(CLIENT_POOL);
    let registry = act(spec.clone(), move |args, context| {
        let pool = pool.clone();
        async move {
            let mut tx = domain::db::begin(&pool).await.map_err(anyhow::Error::new)?;
            sqlx::query("insert into change values (1)").execute(&mut *tx).await.map_err(anyhow::Error::new)?;
            if args["fails"] == json!(true) && context.leased.attempt == 1 {
                // Dropped with its change.
                return Err(JobError::Retry { after: None, source: anyhow::anyhow!("not yet") });
            }
            context.complete_in(&mut tx, json!({"by": "the transaction"})).await?;
            tx.commit().await.map_err(anyhow::Error::new)?;
            Ok(Done::Snooze { after: Duration::from_secs(60) })
        }
    });
    let worker = started(&bouncer, registry, Engine::Apalis);
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(crate::support::enqueue(&db, &NewJob::new(&spec, json!({"fails": n % 2 == 0}))).await);
    }
    for id in &ids {
        until_state(&db, *id, JobState::Completed).await;
    }
    let changes: i64 = sqlx::query_scalar("select count(*) from change").fetch_one(db.pool()).await.expect("a count");
    assert_eq!(changes, 20, "one for each job");
    assert_eq!(attempts(&db, ids[0]).await.len(), 1, "the failure is kept");
    worker.stop().await;
}

/// Nothing depends on a session: neither a listener nor a statement that is kept.
#[tokio::test]
async fn nobody_listens_through_a_pooler_and_hints_are_still_told() {
    let db = Database::start().await;
    let bouncer = PgBouncer::before(&db).await;
    let store = PgLeaseStore::new(&bouncer.pool(CLIENT_POOL));
    assert!(store.hints().await.expect("answered").is_none());
    let mut listener = sqlx::postgres::PgListener::connect(db.url()).await.expect("the database answers");
    listener.listen(queue::hints::CHANNEL).await.expect("it listens");
    let mut hint = queue::hints::Hint::default();
    hint.add(&queue_name("mail"), 3);
    store.tell(&hint).await.expect("told");
    let heard = listener.recv().await.expect("heard");
    assert_eq!(queue::hints::Hint::read(heard.payload()).map(|(_, heard)| heard), Some(hint));
}

/// Clients that prepare under the same names in turn, in the same sessions, each get their own answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_share_a_session_never_meet_each_others_statements() {
    let db = Database::start().await;
    let bouncer = PgBouncer::before(&db).await;
    let clients = (0..12_i64).map(|n| {
        let pool = bouncer.pool(1);
        tokio::spawn(async move {
            for round in 0..40 {
                let mut conn = domain::db::session(&pool).await.expect("a session");
                // Texts of the same shape: whoever met another's statement would get its number.
                let sql = format!("select {n}::bigint * 1000 + $1");
                let got: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                    .bind(round)
                    .fetch_one(&mut *conn)
                    .await
                    .expect("answered");
                assert_eq!(conn.done(got).await.expect("committed"), n * 1000 + round);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("every answer is its own");
    }
}
