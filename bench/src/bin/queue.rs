//! The queue beside the bare limit: drains of no-op jobs, in turn, on one private PostgreSQL with fsync on.
//!
//! The limit is SQL that leases in batches under a token, settles in batches checking the token, keeps the finished
//! rows, and does nothing else. Rates move with the machine's load: read the ratios first, then the CPU a job.
//!
//! `cargo run --release -p leasehold-bench --bin queue -- --help`

#![allow(clippy::print_stdout, reason = "what it measures is printed")]

use bench::measure::{Figures, median};
use bench::queue::course::Course;
use bench::queue::ours::{Engine, Staff};
use bench::queue::{limit, ours};
use bench::stand::Stand;
use clap::Parser as _;

/// Measures drains of no-op jobs and enqueues beside the bare limit
#[derive(Debug, clap::Parser)]
struct Settings {
    /// Jobs of a drain, and of a bulk enqueue
    #[arg(long, default_value_t = 100_000)]
    jobs: i64,
    /// Rounds, of which the medians are told
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs that one bare statement leases
    #[arg(long, default_value_t = 100)]
    batch: u16,
    /// Jobs that each worker runs at once
    #[arg(long, default_value_t = 50)]
    concurrency: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    let stand = Stand::start().await?;
    let mut rows: Vec<(String, Vec<Figures>)> = Vec::new();
    for round in 0..settings.rounds {
        eprintln!("round {} of {}", round + 1, settings.rounds);
        for processes in [1, 2] {
            let name = format!("limit, finished rows kept, {processes} connection(s), batch {}", settings.batch);
            let course = Course::whole(settings.jobs, processes);
            keep(&mut rows, &name, limit::drain(&stand, &course, settings.batch).await?);
            let name = format!("lease and settle, {processes} connection(s), batch {}", settings.batch);
            let figures = ours::drain_by_statements(&stand, settings.jobs, processes, settings.batch).await?;
            keep(&mut rows, &name, [figures]);
            for engine in [Engine::Apalis, Engine::Plain] {
                let name = format!("worker, {engine:?}, {processes} at concurrency {}", settings.concurrency);
                let staff = Staff::of(settings.concurrency, engine);
                keep(&mut rows, &name, ours::drain(&stand, &course, &staff).await?);
            }
        }
        keep(&mut rows, "limit, bulk enqueue, 1,000 a call", [limit::enqueue_bulk(&stand, settings.jobs).await?]);
        keep(&mut rows, "bulk enqueue, 1,000 a call", [ours::enqueue_bulk(&stand, settings.jobs).await?]);
        keep(&mut rows, "limit, enqueue, 1 connection", [limit::enqueue_single(&stand, SINGLE, 1).await?]);
        keep(&mut rows, "enqueue, 1 connection", [ours::enqueue_single(&stand, SINGLE, 1).await?]);
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

fn keep(rows: &mut Vec<(String, Vec<Figures>)>, name: &str, figures: impl IntoIterator<Item = Figures>) {
    for figures in figures {
        eprintln!("  {name}: {:.0} jobs/s", figures.rate());
        match rows.iter_mut().find(|(n, _)| n == name) {
            Some((_, kept)) => kept.push(figures),
            None => rows.push((name.to_owned(), vec![figures])),
        }
    }
}
