//! The queue beside the bare limit: drains of no-op jobs, in turn, on one private PostgreSQL with fsync on.
//!
//! The limit is SQL that leases in batches under a token, settles in batches checking the token, keeps the finished
//! rows, and does nothing else. Rates move with the machine's load: read the ratios first, then the CPU a job.
//!
//! `cargo run --release -p leasehold-bench --bin queue -- [--jobs 100000] [--rounds 3] [--batch 100] [--concurrency 50]`

#![allow(clippy::print_stdout, reason = "what it measures is printed")]

use anyhow::Context as _;
use bench::measure::{Figures, median};
use bench::queue::{limit, ours};
use bench::stand::Stand;

struct Settings {
    jobs: i64,
    rounds: usize,
    batch: u16,
    concurrency: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = read_arguments()?;
    let stand = Stand::start().await?;
    let mut rows: Vec<(String, Vec<Figures>)> = Vec::new();
    for round in 0..settings.rounds {
        eprintln!("round {} of {}", round + 1, settings.rounds);
        for processes in [1, 2] {
            let name = format!("limit, finished rows kept, {processes} connection(s), batch {}", settings.batch);
            let figures = limit::drain(&stand, settings.jobs, processes, settings.batch).await?;
            keep(&mut rows, name, figures);
            let name = format!("lease and settle, {processes} connection(s), batch {}", settings.batch);
            let figures = ours::drain_by_statements(&stand, settings.jobs, processes, settings.batch).await?;
            keep(&mut rows, name, figures);
            for engine in [ours::Engine::Apalis, ours::Engine::Plain] {
                let name = format!("worker, {engine:?}, {processes} at concurrency {}", settings.concurrency);
                let figures =
                    ours::drain_by_workers(&stand, settings.jobs, processes, settings.concurrency, engine).await?;
                keep(&mut rows, name, figures);
            }
        }
        keep(&mut rows, "limit, bulk enqueue, 1,000 a call".into(), limit::enqueue_bulk(&stand, settings.jobs).await?);
        keep(&mut rows, "bulk enqueue, 1,000 a call".into(), ours::enqueue_bulk(&stand, settings.jobs).await?);
        keep(&mut rows, "limit, enqueue, 1 connection".into(), limit::enqueue_single(&stand, SINGLE).await?);
        keep(&mut rows, "enqueue, 1 connection".into(), ours::enqueue_single(&stand, SINGLE).await?);
    }
    println!("{:<58} {:>10} {:>10} {:>10} {:>8}", "median", "jobs/s", "server µs", "client µs", "WAL B");
    for (name, figures) in &rows {
        println!(
            "{name:<58} {:>10.0} {:>10.1} {:>10.1} {:>8.0}",
            median(figures, |f| f.rate()),
            median(figures, |f| f.server_us()),
            median(figures, |f| f.client_us()),
            median(figures, |f| f.wal_bytes_each()),
        );
    }
    stand.stop().await;
    Ok(())
}

/// Jobs that are enqueued one at a time.
const SINGLE: i64 = 3_000;

fn keep(rows: &mut Vec<(String, Vec<Figures>)>, name: String, figures: Figures) {
    eprintln!("  {name}: {:.0} jobs/s", figures.rate());
    match rows.iter_mut().find(|(n, _)| *n == name) {
        Some((_, kept)) => kept.push(figures),
        None => rows.push((name, vec![figures])),
    }
}

fn read_arguments() -> anyhow::Result<Settings> {
    let mut settings = Settings { jobs: 100_000, rounds: 3, batch: 100, concurrency: 50 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} takes a number"))?;
        match name.as_str() {
            "--jobs" => settings.jobs = value.parse().context("read --jobs")?,
            "--rounds" => settings.rounds = value.parse().context("read --rounds")?,
            "--batch" => settings.batch = value.parse().context("read --batch")?,
            "--concurrency" => settings.concurrency = value.parse().context("read --concurrency")?,
            other => anyhow::bail!("unknown argument {other}: --jobs, --rounds, --batch, --concurrency"),
        }
    }
    Ok(settings)
}
