//! How long a move freezes its tenant's writes: the demo's whole journey, several times.
//!
//! `moves [--runs N] --leasehold PATH` runs `leasehold demo --json` and prints, for each leg and in the median, the time from
//! the freeze to the first row that the other region acknowledged, and the part of it from the flip until the record served.
//! Figures are printed, never asserted.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use sandbox::exec::Spawn;
use serde::Deserialize;

/// How long one demo may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures how long a move freezes its tenant's writes
#[derive(Debug, clap::Parser)]
struct Settings {
    /// Demos
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The program, of the build that is measured
    #[arg(long, value_name = "PATH")]
    leasehold: PathBuf,
    /// Where litestream is kept or fetched to
    #[arg(long, value_name = "PATH", default_value = ".tools")]
    tools: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Proof {
    legs: Vec<Leg>,
}

#[derive(Debug, Deserialize)]
struct Leg {
    from: String,
    to: String,
    bytes: u64,
    frozen_ms: u64,
    flip_to_served_ms: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Settings { runs, leasehold, tools } = Settings::parse();
    let tools = std::path::absolute(tools).context("find the tools")?;
    let mut legs = Vec::new();
    for run in 1..=runs {
        let demo = Spawn::new(&leasehold).args(["demo", "--json"]).env("LEASEHOLD_TOOLS_DIR", &tools);
        let ended = demo.run(LIMIT).await.and_then(sandbox::exec::Finished::success).context("run the demo")?;
        let proof: Proof = serde_json::from_str(&ended.stdout).context("read the demo's proof")?;
        for leg in proof.legs {
            println!(
                "run {run}: {} to {}, {} KiB: frozen for {} ms, of which {} ms from the flip until it served",
                leg.from,
                leg.to,
                leg.bytes / 1024,
                leg.frozen_ms,
                leg.flip_to_served_ms
            );
            legs.push(leg);
        }
    }
    let median = |figure: fn(&Leg) -> f64| bench::measure::middle(legs.iter().map(figure).collect());
    println!(
        "median of {}: frozen for {:.0} ms, of which {:.0} ms from the flip until it served",
        legs.len(),
        median(|leg| leg.frozen_ms as f64),
        median(|leg| leg.flip_to_served_ms as f64)
    );
    Ok(())
}
