//! PostgreSQL goes away under load, at once, and comes back.

use std::collections::BTreeMap;

use domain::ids::JobId;
use domain::lease::Fence;
use domain::queue::{self, KindSpec, NewJob};
use sandbox::postgres::{Options, Postgres};
use serde_json::{Value, json};
use sqlx::{PgPool, Row as _};
use tests::wait::until;

use crate::support::{Bench, PATIENCE};

const JOBS: i64 = 600;
const RESTARTS: i64 = 3;

async fn count(pool: &PgPool, sql: &'static str) -> Option<i64> {
    sqlx::query_scalar(sql).fetch_one(pool).await.ok()
}

async fn finished(pool: &PgPool) -> Option<i64> {
    count(pool, "select count(*) from jobs_finished").await
}

/// two worker processes at work, an immediate stop in the middle of it, three times. No job is lost; each is
/// completed once, by its newest lease; no step of an older lease stands behind one of a newer; and the outage costs no
/// job an attempt.
#[tokio::test]
async fn a_database_that_crashes_under_load_loses_no_job_and_doubles_none_past_its_fence() {
    let bench = Bench::start().await;
    let folder = tempfile::Builder::new().prefix("leasehold-restarts-").tempdir_in("/var/tmp").expect("a folder");
    let options = Options { dir: folder.path().join("postgres"), durable: false, keep: false };
    let server = Postgres::start(options).await.expect("a PostgreSQL of its own");
    let pool = domain::db::connect_lazy(&server.url(), 4).expect("a URL");
    domain::db::migrate(&pool).await.expect("migrated");
    let kind = KindSpec::new::<Value>("test.ends", "A kind of the tests.");
    let jobs: Vec<NewJob> = (0..JOBS).map(|n| NewJob::new(&kind, json!({"ms": n % 20}))).collect();
    let mut conn = pool.acquire().await.expect("it answers");
    queue::enqueue_many(&mut conn, &jobs).await.expect("the queue takes them");
    drop(conn);
    let port = server.port();
    let workers = ["apalis", "plain"].map(|engine| bench.worker_at(engine, engine, &server.url(), &[]));

    for restart in 1..=RESTARTS {
        let enough = JOBS * restart / (RESTARTS + 2);
        until("the workers are in the middle of it", PATIENCE, || async {
            finished(&pool).await.filter(|done| *done >= enough)
        })
        .await;
        server.crash().await;
        server.restart().await.expect("it starts again");
        assert_eq!(server.port(), port, "where its workers look for it");
        let left = until("it answers", PATIENCE, || async { finished(&pool).await }).await;
        assert!(left < JOBS, "there was something left to lose");
    }
    until("all jobs are done", PATIENCE, || async { finished(&pool).await.filter(|done| *done == JOBS) }).await;

    assert_eq!(count(&pool, "select count(*) from jobs").await, Some(0));
    let done = sqlx::query("select id, state, fence, attempt, settled_fence from jobs_finished")
        .fetch_all(&pool)
        .await
        .expect("it answers");
    let mut newest: BTreeMap<JobId, Vec<Fence>> = BTreeMap::new();
    for step in sqlx::query("select job_id, fence from job_steps order by job_id, seq")
        .fetch_all(&pool)
        .await
        .expect("it answers")
    {
        newest.entry(JobId(step.get("job_id"))).or_default().push(step.get("fence"));
    }
    for row in &done {
        let (id, fence) = (JobId(row.get("id")), row.get::<Fence, _>("fence"));
        assert_eq!(row.get::<&str, _>("state"), "completed", "{id}");
        assert_eq!(row.get::<Option<Fence>, _>("settled_fence"), Some(fence), "{id}: by its newest lease");
        assert_eq!(row.get::<i32, _>("attempt"), 1, "{id}: the outage spends no attempt");
        let steps = newest.remove(&id).unwrap_or_default();
        assert!(steps.is_sorted(), "{id}: no older step behind a newer one: {steps:?}");
        assert_eq!(steps.last(), Some(&fence), "{id}: who completed it did its work");
        let mut runs = steps.clone();
        runs.dedup();
        assert_eq!(runs.len(), steps.len(), "{id}: each of its leases did its work once");
    }
    let asked: std::collections::BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(done.iter().map(|row| JobId(row.get("id"))).collect::<std::collections::BTreeSet<_>>(), asked);
    for worker in workers {
        assert!(worker.stop().await.success(), "{}", worker.log());
    }
}
