//! Our queue: by its statements alone, and by whole workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::db;
use domain::ids::{BatchId, JobId, Kind, QueueName, WorkerId};
use domain::queue::{self, KindSpec, NewJob, WorkerSpec};
use sqlx::{Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;
use workers::jobs::Environment;
pub use workers::runner::Engine;
use workers::runner::{RunnerConfig, Worker};
use workers::seam::PgLeaseStore;

use crate::measure::{Figures, Meter};
use crate::stand::Stand;

/// What a handler without a result returns.
const NOTHING: serde_json::Value = serde_json::Value::Null;
/// Longest wait for one drain.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(20);

fn noop() -> KindSpec {
    let mut spec = KindSpec::new::<serde_json::Value>("system.noop", "does nothing");
    spec.queue = QueueName::new("bench").expect("a constant name");
    spec
}

async fn prepared(stand: &Stand) -> anyhow::Result<(String, PgConnection)> {
    let url = stand.fresh("bench_ours").await?;
    db::migrate(&db::connect(&url, 1).await?).await?;
    Ok((url.clone(), PgConnection::connect(&url).await?))
}

async fn fill(conn: &mut PgConnection, jobs: i64) -> anyhow::Result<()> {
    let spec = noop();
    let all: Vec<i64> = (0..jobs).collect();
    for chunk in all.chunks(1000) {
        let new: Vec<NewJob> = chunk.iter().map(|_| NewJob::new(&spec, serde_json::json!({}))).collect();
        queue::enqueue_many(&mut *conn, &new).await?;
    }
    Ok(())
}

async fn settle_down(conn: &mut PgConnection) -> anyhow::Result<()> {
    sqlx::raw_sql("vacuum analyze jobs").execute(conn).await?;
    Ok(())
}

async fn check_done(conn: &mut PgConnection, jobs: i64) -> anyhow::Result<()> {
    let done: i64 =
        sqlx::query_scalar("select count(*) from jobs_finished where state = 'completed'").fetch_one(conn).await?;
    anyhow::ensure!(done == jobs, "{done} of {jobs} jobs are done");
    Ok(())
}

/// Drains `jobs` with `connections` loops of our lease and settle statements.
///
/// # Errors
/// The database's.
pub async fn drain_by_statements(stand: &Stand, jobs: i64, connections: usize, batch: u16) -> anyhow::Result<Figures> {
    let (url, mut conn) = prepared(stand).await?;
    fill(&mut conn, jobs).await?;
    settle_down(&mut conn).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    let mut loops = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let pool = db::connect_hot(&url, 1)?;
        let spec = WorkerSpec {
            worker: WorkerId::generate(),
            queues: vec![QueueName::new("bench")?],
            kinds: vec![(Kind::new("system.noop")?, Duration::from_secs(30))],
        };
        loops.spawn(async move {
            let mut own = pool.acquire().await?;
            let mut ended: Vec<BatchId> = Vec::new();
            loop {
                let leased = queue::lease_next(&mut own, &spec, batch, &ended).await?;
                if leased.is_empty() {
                    return Ok::<_, sqlx::Error>(());
                }
                let done: Vec<_> = leased.iter().map(|l| (l.lease, &NOTHING)).collect();
                queue::complete_swiftly(&mut own, &done).await?;
                ended = leased.first().map(|l| l.batch).into_iter().collect();
            }
        });
    }
    while let Some(done) = loops.join_next().await {
        done??;
    }
    let figures = meter.stop(&mut conn, jobs).await?;
    check_done(&mut conn, jobs).await?;
    Ok(figures)
}

/// Drains `jobs` with `count` whole workers, each with its own pool, leases, renewals and engine.
///
/// # Errors
/// The database's, or a worker's.
pub async fn drain_by_workers(
    stand: &Stand,
    jobs: i64,
    count: usize,
    concurrency: u16,
    engine: Engine,
) -> anyhow::Result<Figures> {
    let (url, mut conn) = prepared(stand).await?;
    fill(&mut conn, jobs).await?;
    settle_down(&mut conn).await?;
    let pool = db::connect(&url, 4).await?;
    let shutdown = CancellationToken::new();
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..count {
        let store = Arc::new(PgLeaseStore::new(&pool));
        let registry = workers::jobs::registry(&Environment::new(pool.clone()));
        let config = RunnerConfig { queues: vec![QueueName::new("bench")?], concurrency, engine, ..Default::default() };
        running.spawn(Worker::builder(store, registry, config).run(shutdown.clone()));
    }
    let started = Instant::now();
    loop {
        let left: bool = sqlx::query_scalar("select exists (select from jobs)").fetch_one(&mut conn).await?;
        if !left {
            break;
        }
        anyhow::ensure!(started.elapsed() < DRAIN_LIMIT, "the drain took more than {DRAIN_LIMIT:?}");
        tokio::time::sleep(LOOK).await;
    }
    let figures = meter.stop(&mut conn, jobs).await?;
    shutdown.cancel();
    while let Some(done) = running.join_next().await {
        done??;
    }
    check_done(&mut conn, jobs).await?;
    Ok(figures)
}

/// Enqueues `jobs` in calls of 1,000.
///
/// # Errors
/// The database's.
pub async fn enqueue_bulk(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    fill(&mut conn, jobs).await?;
    meter.stop(&mut conn, jobs).await
}

/// Enqueues `jobs` one at a time on one connection.
///
/// # Errors
/// The database's.
pub async fn enqueue_single(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let spec = noop();
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    for i in 0..jobs {
        let mut job = NewJob::new(&spec, serde_json::json!({ "i": i }));
        job.id = JobId::generate();
        queue::enqueue(&mut conn, &job).await?;
    }
    meter.stop(&mut conn, jobs).await
}
