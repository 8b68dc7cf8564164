//! From a job's commit to the start of its handler: ours, and the bare limit's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_trait::async_trait;
use domain::db;
use domain::ids::QueueName;
use domain::queue::{self, KindSpec, NewJob, hints};
use serde_json::Value;
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use workers::runner::{Done, Job, JobContext, JobError, Registry, RunnerConfig, Worker};
use workers::seam::{LeaseStore as _, PgLeaseStore};

use super::limit;
use crate::stand::Stand;

/// Longest wait for one job.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest pause between two jobs that are told; each is from nothing to this.
const PAUSE: Duration = Duration::from_millis(120);
/// The same for jobs that wait for a poll: two intervals of it, so that no phase of the polls is favoured.
const PAUSE_OF_POLLS: Duration = Duration::from_millis(500);

/// What was seen.
#[derive(Debug, Clone)]
pub struct Waits {
    /// One wait for each job, sorted.
    waits: Vec<Duration>,
    /// Transactions of the whole database for each job: enqueue, hint, polls, settle.
    pub transactions: f64,
}

impl Waits {
    /// The wait that so many of a thousand do not exceed.
    #[must_use]
    pub fn at(&self, permille: usize) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        self.waits.get((self.waits.len() * permille / 1000).min(last)).copied().unwrap_or_default()
    }
}

/// Measures around what one round of a loop does.
struct Course {
    watch: PgConnection,
    before: i64,
    waits: Vec<Duration>,
}

impl Course {
    async fn begin(url: &str) -> anyhow::Result<Self> {
        let mut watch = PgConnection::connect(url).await?;
        let before = transactions(&mut watch).await?;
        Ok(Self { watch, before, waits: Vec::new() })
    }

    async fn end(mut self) -> anyhow::Result<Waits> {
        let spent = transactions(&mut self.watch).await? - self.before;
        self.waits.sort();
        #[allow(clippy::cast_precision_loss)]
        let transactions = spent as f64 / self.waits.len() as f64;
        Ok(Waits { waits: self.waits, transactions })
    }
}

async fn transactions(conn: &mut PgConnection) -> anyhow::Result<i64> {
    // Sessions tell what they did at most once a second; idle ones tell the rest.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let sql = "select xact_commit from pg_stat_database where datname = current_database()";
    sqlx::query_scalar(sql).fetch_one(conn).await.context("read the transactions")
}

async fn pause(longest: Duration) {
    tokio::time::sleep(longest.mul_f64(domain::entropy::fraction())).await;
}

/// The limit: a bare session that listens and leases by one statement, told by another after the commit.
///
/// # Errors
/// The database's.
pub async fn bare(stand: &Stand, jobs: usize) -> anyhow::Result<Waits> {
    let (url, mut enqueuer) = limit::prepared(stand).await?;
    let mut teller = PgConnection::connect(&url).await?;
    let mut leaser = limit::connect(&url).await?;
    let mut listener = PgListener::connect(&url).await?;
    listener.listen("bare").await?;
    let (give, mut started) = mpsc::unbounded_channel();
    let leasing = tokio::spawn(async move {
        loop {
            listener.recv().await?;
            if limit::lease(&mut leaser).await? > 0 {
                let _ = give.send(Instant::now());
            }
        }
        #[allow(unreachable_code)]
        Ok::<(), sqlx::Error>(())
    });
    let mut course = Course::begin(&url).await?;
    for i in 0..jobs {
        limit::enqueue(&mut enqueuer, i).await?;
        let committed = Instant::now();
        sqlx::query("select set_config('synchronous_commit', 'off', true), pg_notify('bare', $1)")
            .bind(i.to_string())
            .execute(&mut teller)
            .await?;
        let at = tokio::time::timeout(PATIENCE, started.recv()).await?.context("the leaser ended")?;
        course.waits.push(at.saturating_duration_since(committed));
        pause(PAUSE).await;
    }
    leasing.abort();
    course.end().await
}

/// Tells when it was started.
struct Probe(Arc<Mutex<mpsc::UnboundedSender<Instant>>>);

#[async_trait]
impl Job for Probe {
    type Args = Value;

    fn spec() -> KindSpec {
        KindSpec::new::<Value>("bench.probe", "Tells when it was started.")
    }

    async fn run(&self, _args: Value, _context: JobContext) -> Result<Done, JobError> {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Instant::now());
        Ok(Done::Complete(Value::Null))
    }
}

/// Ours: so many idle workers, told after the commit as the API tells them, or not at all.
///
/// # Errors
/// The database's, or a worker's.
pub async fn ours(stand: &Stand, jobs: usize, workers: usize, told: bool) -> anyhow::Result<Waits> {
    let url = stand.fresh("bench_ours").await?;
    db::migrate(&db::connect(&url, 1).await?).await?;
    let pool = db::connect(&url, 4).await?;
    let (give, mut started) = mpsc::unbounded_channel();
    let give = Arc::new(Mutex::new(give));
    let shutdown = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let store = PgLeaseStore::new(&pool);
        let store = if told { store } else { store.without_hints() };
        let mut registry = Registry::default();
        registry.add(Probe(Arc::clone(&give)));
        let config = RunnerConfig { concurrency: 10, ..RunnerConfig::default() };
        running.spawn(Worker::builder(Arc::new(store), registry, config).run(shutdown.clone()));
    }
    let teller = PgLeaseStore::new(&pool);
    let mut enqueuer = PgConnection::connect(&url).await?;
    // All of them have found their turns by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let queue = QueueName::new("default")?;
    let mut course = Course::begin(&url).await?;
    for _ in 0..jobs {
        queue::enqueue(&mut enqueuer, &NewJob::new(&Probe::spec(), serde_json::json!({}))).await?;
        let committed = Instant::now();
        if told {
            let mut hint = hints::Hint::default();
            hint.add(&queue, 1);
            teller.tell(&hint).await?;
        }
        let at = tokio::time::timeout(PATIENCE, started.recv()).await?.context("no worker runs it")?;
        course.waits.push(at.saturating_duration_since(committed));
        pause(if told { PAUSE } else { PAUSE_OF_POLLS }).await;
    }
    let waits = course.end().await?;
    shutdown.cancel();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(waits)
}
