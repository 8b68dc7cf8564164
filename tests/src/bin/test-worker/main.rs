//! A worker with kinds that only tests need; never shipped.
//!
//! ```text
//! test-worker run  --url URL --lease-ms N [--engine apalis|plain]   the product's runner with the kinds below
//! test-worker hold --url URL --lease-ms N --go FILE --answer FILE   a bare holder: leases one job, waits until FILE
//!                                                                   is there, then tries every write and tells how each was answered
//! test-worker puppet --url URL --lease-ms N --orders FILE --answers FILE   does what a test writes into FILE: see `puppet`
//! ```
//! `run` ends in order on SIGTERM. `hold` has no renewals and no self-stop, so that what it writes after its lease was
//! taken meets the fence and nothing else. It ends with 0 when everything was accepted and with 3 when all was refused.

mod puppet;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use domain::ids::{Kind, QueueName, WorkerId};
use domain::queue::{
    Backoff, Fate, KindSpec, Leased, NewJob, Outcome, PollRequest, Progress, Renewed, Settlement, WorkerSpec,
};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use workers::runner::{Done, Engine, Job, JobContext, JobError, Registry, RunnerConfig, Worker};
use workers::seam::{LeaseStore, PgLeaseStore, StoreError};

/// Pause between two looks at a file that a test makes.
const POLL: Duration = Duration::from_millis(20);
/// All writes were refused.
const ALL_REFUSED: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    match start().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("test-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned();
    let url = value("--url").context("--url is missing")?;
    let lease = Duration::from_millis(value("--lease-ms").context("--lease-ms is missing")?.parse()?);
    let pool = domain::db::connect_lazy(&url, 4)?;
    let store = Arc::new(PgLeaseStore::new(&pool));
    match args.first().map(String::as_str) {
        Some("run") => {
            let engine = match value("--engine").as_deref() {
                None | Some("apalis") => Engine::Apalis,
                Some("plain") => Engine::Plain,
                Some(other) => bail!("no engine {other}"),
            };
            run(store, engine, lease).await
        }
        Some("hold") => {
            let go = PathBuf::from(value("--go").context("--go is missing")?);
            let answer = PathBuf::from(value("--answer").context("--answer is missing")?);
            hold(&*store, lease, &go, &answer).await
        }
        Some("puppet") => {
            let orders = PathBuf::from(value("--orders").context("--orders is missing")?);
            let answers = PathBuf::from(value("--answers").context("--answers is missing")?);
            puppet::obey(&*store, lease, &orders, &answers).await
        }
        _ => bail!("usage: test-worker run|hold|puppet …"),
    }
}

async fn run(store: Arc<PgLeaseStore>, engine: Engine, lease: Duration) -> anyhow::Result<ExitCode> {
    let mut registry = Registry::default();
    registry.add_as(spec("test.tick", lease), Tick);
    registry.add_as(spec("test.dies_once", lease), DiesOnce);
    registry.add_as(spec("test.ends", lease), Ends);
    let config = RunnerConfig { engine, concurrency: 4, drain: Duration::from_secs(5), ..RunnerConfig::default() };
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let ask = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        ask.cancel();
    });
    Worker::builder(store, registry, config).run(shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn spec(name: &'static str, lease: Duration) -> KindSpec {
    KindSpec {
        lease,
        backoff: Backoff { base: Duration::from_millis(100), cap: Duration::from_millis(200) },
        ..KindSpec::new::<Value>(name, "A kind of the tests.")
    }
}

/// Records a step every tick until the file `until` is there, then completes and says which process it was.
struct Tick;

#[async_trait]
impl Job for Tick {
    type Args = Value;

    fn spec() -> KindSpec {
        spec("test.tick", Duration::from_secs(2))
    }

    async fn run(&self, args: Value, context: JobContext) -> Result<Done, JobError> {
        let until = PathBuf::from(args["until"].as_str().unwrap_or_default());
        let mut ticks = 0;
        while !until.exists() {
            ticks += 1;
            context.step("tick", &json!(ticks), &json!({"pid": std::process::id()})).await?;
            tokio::time::sleep(POLL).await;
        }
        Ok(Done::Complete(json!({"pid": std::process::id()})))
    }
}

/// Hangs in its first run, whose process a test kills; completes at once in the next.
struct DiesOnce;

#[async_trait]
impl Job for DiesOnce {
    type Args = Value;

    fn spec() -> KindSpec {
        spec("test.dies_once", Duration::from_secs(2))
    }

    async fn run(&self, _args: Value, context: JobContext) -> Result<Done, JobError> {
        if context.leased.interruptions == 0 {
            context.step("hangs", &json!(1), &json!({})).await?;
            std::future::pending::<()>().await;
        }
        Ok(Done::Complete(json!({"pid": std::process::id()})))
    }
}

/// Records a step for each run, works for `ms` milliseconds, and ends its first run as `first` says (`complete`, `fail`
/// or `snooze`); every other run completes. Its result is how many runs there were, as far as their steps tell.
struct Ends;

#[async_trait]
impl Job for Ends {
    type Args = Value;

    fn spec() -> KindSpec {
        spec("test.ends", Duration::from_secs(2))
    }

    async fn run(&self, args: Value, context: JobContext) -> Result<Done, JobError> {
        context.step("run", &json!(context.leased.lease.fence), &json!({"pid": std::process::id()})).await?;
        tokio::time::sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or_default())).await;
        let runs = context.steps().await?.len();
        let soon = Duration::from_millis(10);
        match args["first"].as_str() {
            Some("fail") if runs == 1 => Err(anyhow::anyhow!("as asked").into()),
            Some("snooze") if runs == 1 => Ok(Done::Snooze { after: soon }),
            _ => Ok(Done::Complete(json!({"runs": runs, "pid": std::process::id()}))),
        }
    }
}

async fn hold(store: &dyn LeaseStore, lease: Duration, go: &Path, answer: &Path) -> anyhow::Result<ExitCode> {
    let kind = Kind::new("test.tick")?;
    let worker = WorkerSpec {
        worker: WorkerId::generate(),
        queues: vec![QueueName::new("default")?],
        kinds: vec![(kind.clone(), lease)],
    };
    let leased = loop {
        let request = PollRequest { limit: 1, ended: &[], look: false, wall_clock: None, turns: None, low_water: None };
        if let Some(leased) = store.poll(&worker, &request).await?.leased.pop() {
            break leased;
        }
        tokio::time::sleep(POLL).await;
    };
    while !go.exists() {
        tokio::time::sleep(POLL).await;
    }
    let told = write_everything(store, &leased, lease, &spec("test.tick", lease)).await?;
    let accepted = told.iter().filter(|(_, accepted)| *accepted).count();
    let told: serde_json::Map<String, Value> =
        told.into_iter().map(|(what, accepted)| (what.to_owned(), Value::from(accepted))).collect();
    let written = answer.with_extension("new");
    std::fs::write(&written, Value::from(told).to_string())?;
    publish(&written, answer)?;
    Ok(if accepted == 0 { ExitCode::from(ALL_REFUSED) } else { ExitCode::SUCCESS })
}

#[allow(
    clippy::disallowed_methods,
    reason = "whoever reads the answer must find it whole; it need not survive a crash"
)]
fn publish(written: &Path, answer: &Path) -> std::io::Result<()> {
    std::fs::rename(written, answer)
}

/// Tries each write of a worker once; what ends the lease comes last.
async fn write_everything(
    store: &dyn LeaseStore,
    leased: &Leased,
    life: Duration,
    spec: &KindSpec,
) -> anyhow::Result<Vec<(&'static str, bool)>> {
    let lease = leased.lease;
    let mut told = Vec::new();
    told.push(("renew", store.renew(&[(lease, life)]).await?[0] != Renewed::Lost));
    told.push(("progress", accepted(store.progress(lease, &Progress::default()).await)?));
    told.push(("step", accepted(store.step(lease, "late", &json!(0), &json!({})).await)?));
    told.push(("log", accepted(store.log(lease, "info", "late").await)?));
    let child = NewJob::new(spec, json!({"late": true})).on(QueueName::new("children")?);
    told.push(("enqueue_child", accepted(store.enqueue_child(lease, &child).await)?));
    let failed = Outcome::Failed { error: json!({"code": "late"}), after: Duration::ZERO };
    for (what, outcome) in [
        ("snooze", Outcome::Snoozed { after: Duration::ZERO }),
        ("fail", failed),
        ("release", Outcome::Released),
        ("complete", Outcome::Completed { result: json!("late") }),
    ] {
        let fate = store.settle(&[Settlement { lease, outcome }]).await?[0];
        told.push((what, fate != Fate::Lost));
    }
    Ok(told)
}

fn accepted<T>(answer: Result<T, StoreError>) -> anyhow::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(StoreError::LeaseLost(_)) => Ok(false),
        Err(other @ (StoreError::Unavailable(_) | StoreError::Held(_) | StoreError::Refused(_))) => Err(other.into()),
    }
}
