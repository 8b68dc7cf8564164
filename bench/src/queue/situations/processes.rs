//! Situations of whole processes: one that is killed, ten that idle, one whose memory is looked at.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use domain::entropy;
use domain::queue::policy;
use sqlx::PgConnection;
use tokio::time::sleep;

use super::super::ours;
use super::super::peer::{self, Manner, Peer};
use super::{Sizes, grouped};
use crate::measure::{family_cpu, middle};
use crate::stand::Stand;

/// Between two looks at what a process says.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for what processes are to do.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longer than any wait here: a job that is held does not end by itself.
const HELD: Duration = Duration::from_secs(3600);
/// The short lease beside the default.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// Workers that idle, and how many jobs each would run.
const IDLE_WORKERS: usize = 10;
const IDLE_CONCURRENCY: u16 = 10;
/// Until they have found their turns, their start is over, and each of their sessions has told what it did: PostgreSQL's
/// sessions tell it ten seconds after their last statement at the latest.
const CALM: Duration = Duration::from_secs(15);
/// Until a second worker polls as one that has been there.
const SETTLED: Duration = Duration::from_secs(3);

/// Waits until `look` sees it.
async fn until(what: &str, mut look: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let began = Instant::now();
    while !look().await? {
        anyhow::ensure!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(LOOK).await;
    }
    Ok(())
}

async fn registered(conn: &mut PgConnection, workers: i64) -> anyhow::Result<()> {
    until("workers register", async || {
        let found: i64 = sqlx::query_scalar("select count(*) from workers").fetch_one(&mut *conn).await?;
        Ok(found >= workers)
    })
    .await
}

pub(super) async fn recovery(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    for lease in [policy::DEFAULT_LEASE, SHORT_LEASE] {
        let mut waits = Vec::new();
        for round in 0..sizes.rounds {
            let name = format!("lease-{}-{round}", lease.as_secs());
            let wait = recover(stand, folder.path(), &name, lease, sizes.held).await?.as_secs_f64();
            eprintln!("  {name}: {wait:.2} s");
            waits.push(wait);
        }
        let (least, most) = (waits.iter().copied().fold(f64::MAX, f64::min), waits.iter().copied().fold(0.0, f64::max));
        println!(
            "recovery of {} jobs after kill -9, lease {} s: {:.2} s, {least:.2}–{most:.2} s",
            sizes.held,
            lease.as_secs(),
            middle(waits),
        );
    }
    Ok(())
}

/// From the kill until the last of the jobs has begun anew, in the hands of a worker that was there before.
async fn recover(stand: &Stand, folder: &Path, name: &str, lease: Duration, held: u16) -> anyhow::Result<Duration> {
    let (url, mut conn) = ours::prepared(stand).await?;
    peer::enqueue(&url, i64::from(held)).await?;
    let own_lease = (lease != policy::DEFAULT_LEASE).then_some(lease);
    let manner = Manner { concurrency: held, hold: Some(HELD), lease: own_lease, counts: false };
    let first = Peer::work(&url, folder, &format!("{name}-first"), manner)?;
    until("the first worker holds every job", async || Ok(first.began()? == usize::from(held))).await?;
    let second = Peer::work(&url, folder, &format!("{name}-second"), manner)?;
    registered(&mut conn, 2).await?;
    // Leases are renewed each third of their life: the kill falls anywhere between two renewals.
    sleep(SETTLED + (lease / 3).mul_f64(entropy::fraction())).await;
    let killed = Instant::now();
    first.kill9();
    until("the second worker holds every job", async || Ok(second.began()? == usize::from(held))).await?;
    let wait = killed.elapsed();
    drop(second);
    ours::remove(stand).await?;
    Ok(wait)
}

pub(super) async fn idle(stand: &Stand, time: Duration) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let (url, mut conn) = ours::prepared(stand).await?;
    let manner = Manner { concurrency: IDLE_CONCURRENCY, hold: None, lease: None, counts: false };
    let mut workers = Vec::new();
    for n in 0..IDLE_WORKERS {
        workers.push(Peer::work(&url, folder.path(), &n.to_string(), manner)?);
    }
    registered(&mut conn, i64::try_from(workers.len())?).await?;
    sleep(CALM).await;
    let cpu = || workers.iter().map(Peer::cpu).sum::<anyhow::Result<Duration>>();
    let (transactions_before, own_before, server_before) =
        (transactions(&mut conn).await?, cpu()?, family_cpu(stand.pid())?);
    let began = Instant::now();
    sleep(time).await;
    let seconds = began.elapsed().as_secs_f64();
    let (own, server) = (cpu()? - own_before, family_cpu(stand.pid())?.saturating_sub(server_before));
    #[allow(clippy::cast_precision_loss)]
    let transactions = (transactions(&mut conn).await? - transactions_before) as f64;
    println!(
        "{IDLE_WORKERS} idle workers for {seconds:.0} s: {:.2} transactions a second, CPU of all workers {:.2} % of a core, \
         of PostgreSQL {:.2} %",
        transactions / seconds,
        own.as_secs_f64() / seconds * 100.0,
        server.as_secs_f64() / seconds * 100.0,
    );
    drop(workers);
    ours::remove(stand).await
}

/// Transactions of the whole database so far, as far as its sessions have told.
async fn transactions(conn: &mut PgConnection) -> anyhow::Result<i64> {
    let sql = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
    sqlx::query_scalar(sql).fetch_one(conn).await.context("read the transactions")
}

pub(super) async fn memory(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    for behind in [0, sizes.deep] {
        let folder = tempfile::tempdir().context("make a folder")?;
        let (url, _conn) = ours::prepared(stand).await?;
        peer::enqueue(&url, sizes.jobs + behind).await?;
        let manner = Manner { concurrency: sizes.concurrency, hold: None, lease: None, counts: true };
        let worker = Peer::work(&url, folder.path(), "worker", manner)?;
        until("the worker drains", async || Ok(worker.ended()? >= sizes.jobs)).await?;
        let (largest, present) = worker.memory_mib()?;
        println!(
            "memory of a worker at concurrency {}, {} jobs drained before {} that wait: at most {largest:.1} MiB, then \
             {present:.1} MiB",
            sizes.concurrency,
            grouped(sizes.jobs),
            grouped(behind),
        );
        drop(worker);
        ours::remove(stand).await?;
    }
    Ok(())
}
