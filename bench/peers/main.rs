//! Leasehold as one peer among queues: the verbs of a harness that times queues side by side.
//!
//! `peer setup | enqueue | bulk | paced | work`, each with `--jobs`, `--concurrency`, `--seconds`, `--interval-ms` and
//! `--batch`. The database is `DATABASE_URL`; a handler counts into `BENCH_COUNT_FILE`, and writes when it began into
//! `BENCH_LOG_FILE` where `BENCH_MODE` is `latency` or `hold`; `LEASEHOLD_LEASE_MS` is the life of its leases.
//! bench/peers/README.md says how to put it beside others.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use async_trait::async_trait;
use clap::Parser as _;
use domain::db;
use domain::ids::QueueName;
use domain::queue::hints::Hint;
use domain::queue::{self, KindSpec, NewJob};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use workers::runner::{Done, Engine, Job, JobContext, JobError, Registry, RunnerConfig, Worker};
use workers::seam::{LeaseStore as _, PgLeaseStore};

/// Where the harness's jobs stand.
const QUEUE: &str = "bench";
/// Time between two writes of the counter.
const COUNTED: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let asked = Asked::parse();
    let url = variable("DATABASE_URL").context("DATABASE_URL is not set")?;
    match asked.verb {
        Verb::Setup => Ok(db::migrate(&db::connect(&url, 1).await?).await?),
        Verb::Enqueue => enqueue(&url, &asked).await,
        Verb::Bulk => bulk(&url, &asked).await,
        Verb::Paced => paced(&url, &asked).await,
        Verb::Work => work(&url, &asked).await,
    }
}

/// Leasehold as one peer of a harness that times queues side by side; the database is DATABASE_URL
#[derive(Debug, clap::Parser)]
struct Asked {
    #[arg(value_enum)]
    verb: Verb,
    /// Jobs to enqueue
    #[arg(long, default_value_t = 1000)]
    jobs: i64,
    /// Loops that enqueue, or jobs that run at once
    #[arg(long, default_value_t = 1)]
    concurrency: u16,
    /// Longest time of enqueueing one at a time
    #[arg(long, default_value_t = 1e9)]
    seconds: f64,
    /// Time between two paced jobs
    #[arg(long, default_value_t = 50)]
    interval_ms: u64,
    /// Jobs of one call in bulk
    #[arg(long, default_value_t = 1000)]
    batch: usize,
    /// Life of a lease; 30,000 unless it is set
    #[arg(long, env = "LEASEHOLD_LEASE_MS", value_parser = clap::value_parser!(u64).range(1000..))]
    lease_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Verb {
    /// Make the tables
    Setup,
    /// Enqueue one at a time from as many loops and connections as asked
    Enqueue,
    /// Enqueue in bulk
    Bulk,
    /// Enqueue one every so often
    Paced,
    /// Run jobs
    Work,
}

fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str) -> anyhow::Result<T> {
    text.parse().with_context(|| format!("{text:?} is no number"))
}

#[allow(clippy::disallowed_methods, reason = "the harness speaks through the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The wall clock, in nanoseconds: what the harness compares among processes.
#[allow(clippy::disallowed_methods, reason = "a measurement, which decides nothing")]
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn job(i: i64) -> NewJob {
    NewJob::new(&Bench::spec(), json!({ "i": i }))
}

/// One at a time from as many loops and connections as asked.
async fn enqueue(url: &str, asked: &Asked) -> anyhow::Result<()> {
    let pool = db::connect(url, u32::from(asked.concurrency)).await?;
    let (next, jobs, seconds) = (Arc::new(AtomicI64::new(0)), asked.jobs, asked.seconds);
    let began = Instant::now();
    let mut loops = tokio::task::JoinSet::new();
    for _ in 0..asked.concurrency {
        let (pool, next) = (pool.clone(), Arc::clone(&next));
        loops.spawn(async move {
            let mut conn = pool.acquire().await?;
            let mut made = 0_u64;
            while began.elapsed().as_secs_f64() < seconds {
                let i = next.fetch_add(1, Relaxed);
                if i >= jobs {
                    break;
                }
                queue::enqueue(&mut conn, &job(i)).await?;
                made += 1;
            }
            anyhow::Ok(made)
        });
    }
    let mut made = 0;
    while let Some(ended) = loops.join_next().await {
        made += ended??;
    }
    report(made, began);
    Ok(())
}

async fn bulk(url: &str, asked: &Asked) -> anyhow::Result<()> {
    let pool = db::connect(url, 1).await?;
    let mut conn = pool.acquire().await?;
    let began = Instant::now();
    let all: Vec<i64> = (0..asked.jobs).collect();
    for part in all.chunks(asked.batch.max(1)) {
        let jobs: Vec<NewJob> = part.iter().map(|i| job(*i)).collect();
        queue::enqueue_many(&mut conn, &jobs).await?;
    }
    report(all.len() as u64, began);
    Ok(())
}

/// One every so often; idle workers are told after each, as an API tells them.
async fn paced(url: &str, asked: &Asked) -> anyhow::Result<()> {
    let pool = db::connect(url, 1).await?;
    let teller = PgLeaseStore::new(&pool);
    let mut hint = Hint::default();
    hint.add(&QueueName::new(QUEUE)?, 1);
    let mut tick = tokio::time::interval(Duration::from_millis(asked.interval_ms));
    for i in 0..asked.jobs {
        tick.tick().await;
        let sent = now_ns();
        let mut conn = pool.acquire().await?;
        queue::enqueue(&mut conn, &job(i)).await?;
        let committed = now_ns();
        drop(conn);
        teller.tell(&hint).await?;
        say(&json!({ "i": i, "sent": sent, "committed": committed }));
    }
    Ok(())
}

async fn work(url: &str, asked: &Asked) -> anyhow::Result<()> {
    let tally = Arc::new(Tally::new()?);
    tally.write_on();
    let mut registry = Registry::default();
    let mut spec = Bench::spec();
    if let Some(life) = asked.lease_ms {
        spec.lease = Duration::from_millis(life);
    }
    registry.add_as(spec, Bench { tally });
    let engine = match variable("LEASEHOLD_ENGINE").as_deref() {
        Some("plain") => Engine::Plain,
        Some(_) | None => Engine::Apalis,
    };
    let config = RunnerConfig {
        queues: vec![QueueName::new(QUEUE)?],
        concurrency: asked.concurrency,
        engine,
        ..RunnerConfig::default()
    };
    let store = Arc::new(PgLeaseStore::new(&db::connect(url, 4).await?));
    Worker::builder(store, registry, config).run(CancellationToken::new()).await?;
    Ok(())
}

fn report(jobs: u64, began: Instant) {
    say(&json!({ "jobs": jobs, "seconds": began.elapsed().as_secs_f64() }));
}

#[allow(clippy::print_stdout, reason = "the harness reads it")]
fn say(line: &serde_json::Value) {
    println!("{line}");
}

/// The handler, the same for every peer: nothing, a line, or a wait between two lines.
#[derive(Debug)]
struct Bench {
    tally: Arc<Tally>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    i: i64,
}

#[async_trait]
impl Job for Bench {
    type Args = Args;

    fn spec() -> KindSpec {
        let mut spec = KindSpec::new::<Args>("bench.job", "Counts.");
        spec.queue = QueueName::new(QUEUE).expect("a constant name");
        spec
    }

    async fn run(&self, args: Args, _context: JobContext) -> Result<Done, JobError> {
        self.tally.began();
        match self.tally.mode {
            Mode::Noop => {}
            Mode::Latency => self.tally.line("start", args.i),
            Mode::Hold(time) => {
                self.tally.line("start", args.i);
                tokio::time::sleep(time).await;
                self.tally.line("end", args.i);
            }
        }
        self.tally.ended();
        Ok(Done::Complete(serde_json::Value::Null))
    }
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Noop,
    Latency,
    Hold(Duration),
}

/// How many began and ended, and when the first and the last.
#[derive(Debug)]
struct Tally {
    mode: Mode,
    log: Mutex<File>,
    count: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        let mode = match variable("BENCH_MODE").as_deref() {
            Some("latency") => Mode::Latency,
            Some("hold") => {
                Mode::Hold(Duration::from_millis(variable("BENCH_HOLD_MS").as_deref().map_or(Ok(1000), number::<u64>)?))
            }
            Some(_) | None => Mode::Noop,
        };
        let path = variable("BENCH_LOG_FILE").unwrap_or_else(|| "/dev/null".to_owned());
        let log = OpenOptions::new().create(true).append(true).open(&path).with_context(|| format!("open {path}"))?;
        let zero = AtomicU64::default;
        Ok(Self { mode, log: Mutex::new(log), count: zero(), first: zero(), last: zero() })
    }

    fn began(&self) {
        if self.first.load(Relaxed) == 0 {
            let _ = self.first.compare_exchange(0, now_ns(), Relaxed, Relaxed);
        }
    }

    fn ended(&self) {
        self.count.fetch_add(1, Relaxed);
        self.last.store(now_ns(), Relaxed);
    }

    fn line(&self, word: &str, i: i64) {
        let line = format!("{word} {i} {} {}\n", std::process::id(), now_ns());
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // A line that cannot be written is missing from the harness's count.
        let _ = log.write_all(line.as_bytes());
    }

    /// Writes the counts where the harness reads them, fifty times a second.
    fn write_on(self: &Arc<Self>) {
        let Some(path) = variable("BENCH_COUNT_FILE") else { return };
        let tally = Arc::clone(self);
        std::thread::spawn(move || -> std::io::Result<()> {
            let file = File::create(format!("{path}.{}", std::process::id()))?;
            loop {
                let [count, first, last] = [&tally.count, &tally.first, &tally.last].map(|n| n.load(Relaxed));
                file.write_all_at(format!("{count:>20} {first:>20} {last:>20}\n").as_bytes(), 0)?;
                std::thread::sleep(COUNTED);
            }
        });
    }
}
