//! The wake-up of an idle worker: from the commit of a job to the start of its handler, with hints and without, beside the
//! limit: a bare session that listens and leases.
//!
//! `cargo run --release -p leasehold-bench --bin latency -- --help`

#![allow(clippy::print_stdout, reason = "what it measures is printed")]

use bench::queue::wakeup::{Waits, bare, ours};
use bench::stand::Stand;
use clap::Parser as _;

/// Measures the wake-up of an idle worker beside a bare session that listens
#[derive(Debug, clap::Parser)]
struct Settings {
    /// Jobs of each row; a quarter of them where workers are not told
    #[arg(long, default_value_t = 1000)]
    jobs: usize,
    /// Rounds, each of which is printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Settings { jobs, rounds } = Settings::parse();
    let stand = Stand::start().await?;
    println!("{:<44} {:>8} {:>8} {:>8} {:>8}", "ms", "p50", "p99", "most", "tx/job");
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        show("limit: a session that listens and leases", &bare(&stand, jobs).await?);
        show("one idle worker, with hints", &ours(&stand, jobs, 1, true).await?);
        show("ten idle workers, with hints", &ours(&stand, jobs, 10, true).await?);
        // Each waits for a poll: a quarter of the jobs takes as long.
        show("one idle worker, by polls", &ours(&stand, jobs / 4, 1, false).await?);
        show("ten idle workers, by polls", &ours(&stand, jobs / 4, 10, false).await?);
    }
    stand.stop().await;
    Ok(())
}

fn show(name: &str, waits: &Waits) {
    let ms = |permille| waits.at(permille).as_secs_f64() * 1000.0;
    println!("{name:<44} {:>8.2} {:>8.2} {:>8.2} {:>8.1}", ms(500), ms(990), ms(1000), waits.transactions);
}
