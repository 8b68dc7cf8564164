//! Our queue: by its statements alone, and by whole workers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use domain::db;
use domain::ids::{BatchId, Kind, QueueName, WorkerId};
use domain::queue::{self, KindSpec, Limits, NewJob, WorkerSpec};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workers::jobs::Environment;
pub use workers::runner::Engine;
use workers::runner::{RunnerConfig, Worker};
use workers::seam::PgLeaseStore;

use super::counted::Counted;
use super::course::{Backlog, Course, measure, pin, settle_down};
use super::progress::Progress;
use crate::measure::{Figures, Meter};
use crate::stand::Stand;

/// Its database.
const DATABASE: &str = "bench_ours";
/// What a handler without a result returns.
const NOTHING: serde_json::Value = serde_json::Value::Null;

/// Who drains.
#[derive(Debug, Clone, Copy)]
pub struct Staff {
    /// Jobs that each worker runs at once.
    pub concurrency: u16,
    /// What drives the handlers.
    pub engine: Engine,
    /// What holds for the queue.
    pub limits: Limits,
}

impl Staff {
    /// Without limits.
    #[must_use]
    pub fn of(concurrency: u16, engine: Engine) -> Self {
        Self { concurrency, engine, limits: Limits::default() }
    }
}

fn noop() -> KindSpec {
    let mut spec = KindSpec::new::<serde_json::Value>("system.noop", "does nothing");
    spec.queue = QueueName::new("bench").expect("a constant name");
    spec
}

/// A new database with our tables; its URL.
pub(super) async fn prepared(stand: &Stand) -> anyhow::Result<(String, PgConnection)> {
    let url = stand.fresh(DATABASE).await?;
    db::migrate(&db::connect(&url, 1).await?).await?;
    Ok((url.clone(), PgConnection::connect(&url).await?))
}

/// Removes it.
pub(super) async fn remove(stand: &Stand) -> anyhow::Result<()> {
    stand.remove(DATABASE).await
}

async fn fill(conn: &mut PgConnection, backlog: &Backlog) -> anyhow::Result<()> {
    let spec = noop();
    let queues = queues(backlog)?;
    let all: Vec<i64> = (0..backlog.jobs).collect();
    let mut turns = queues.iter().cycle();
    for chunk in all.chunks(1000) {
        let new = chunk.iter().zip(&mut turns).map(|(i, queue)| {
            let job = NewJob::new(&spec, serde_json::json!({})).on(queue.clone());
            if backlog.keys > 0 { job.keyed(format!("key{}", i % backlog.keys)) } else { job }
        });
        queue::enqueue_many(&mut *conn, &new.collect::<Vec<_>>()).await?;
    }
    Ok(())
}

fn queues(backlog: &Backlog) -> anyhow::Result<Vec<QueueName>> {
    backlog.names().iter().map(|name| QueueName::new(name.as_str()).context("name a queue")).collect()
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
    fill(&mut conn, &Backlog::of(jobs)).await?;
    settle_down(&mut conn, "jobs").await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    let mut loops = JoinSet::new();
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
    remove(stand).await?;
    Ok(figures)
}

/// Drains `course` with whole workers, each with its own store, leases, renewals and engine; the figures of each portion.
///
/// # Errors
/// The database's, or a worker's.
pub async fn drain(stand: &Stand, course: &Course, staff: &Staff) -> anyhow::Result<Vec<Figures>> {
    let (url, mut conn) = prepared(stand).await?;
    if let Some(before) = course.before() {
        drain_in(stand, &url, &mut conn, &before, staff).await?;
    }
    if !staff.limits.is_none() {
        for queue in queues(&course.backlog)? {
            queue::set_limits(&mut conn, &queue, &staff.limits, None, "to be measured", None).await?;
        }
    }
    let figures = drain_in(stand, &url, &mut conn, course, staff).await?;
    remove(stand).await?;
    Ok(figures)
}

async fn drain_in(
    stand: &Stand,
    url: &str,
    conn: &mut PgConnection,
    course: &Course,
    staff: &Staff,
) -> anyhow::Result<Vec<Figures>> {
    fill(conn, &course.backlog).await?;
    settle_down(conn, "jobs").await?;
    let _pin = if course.pinned { Some(pin(url).await?) } else { None };
    let pool = db::connect(url, 4).await?;
    let progress = Arc::new(Progress::default());
    let shutdown = CancellationToken::new();
    let mut workers = Vec::new();
    for _ in 0..course.hands {
        let store = Counted { inner: PgLeaseStore::new(&pool), progress: Arc::clone(&progress) };
        let registry = workers::jobs::registry(&Environment::new(pool.clone()));
        let config = RunnerConfig {
            queues: queues(&course.backlog)?,
            concurrency: staff.concurrency,
            engine: staff.engine,
            ..RunnerConfig::default()
        };
        let shutdown = shutdown.clone();
        workers.push(async move {
            Worker::builder(Arc::new(store), registry, config).run(shutdown).await?;
            anyhow::Ok(())
        });
    }
    let start = || workers.into_iter().collect::<JoinSet<_>>();
    let (figures, mut running) = measure(conn, stand.pid(), course, &progress, start).await?;
    shutdown.cancel();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    check_done(conn, course.kept + progress.done()).await?;
    Ok(figures)
}

/// Enqueues `jobs` in calls of 1,000.
///
/// # Errors
/// The database's.
pub async fn enqueue_bulk(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    fill(&mut conn, &Backlog::of(jobs)).await?;
    let figures = meter.stop(&mut conn, jobs).await?;
    remove(stand).await?;
    Ok(figures)
}

/// Enqueues `each` jobs one at a time on each of so many connections at once.
///
/// # Errors
/// The database's.
pub async fn enqueue_single(stand: &Stand, each: i64, connections: i64) -> anyhow::Result<Figures> {
    let (url, mut conn) = prepared(stand).await?;
    let mut loops = JoinSet::new();
    let mut own = Vec::new();
    for _ in 0..connections {
        own.push(PgConnection::connect(&url).await?);
    }
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    for mut own in own {
        loops.spawn(async move {
            let spec = noop();
            for i in 0..each {
                queue::enqueue(&mut own, &NewJob::new(&spec, serde_json::json!({ "i": i }))).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    let figures = meter.stop(&mut conn, each * connections).await?;
    remove(stand).await?;
    Ok(figures)
}
