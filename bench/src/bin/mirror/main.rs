//! What rounds of the mirror cost: wall time, our CPU, requests, memory.
//!
//! `mirror [--keys N] [--runs N] [--s5cmd PATH] [--rclone PATH]` measures a full mirror, rounds without a change and rounds
//! with 1 % changed, on SeaweedFS, and beside each what these programs need for it. `mirror --fake-keys N` lists N keys from a server that makes them up, to show that memory does not grow
//! with them. Figures are printed, never asserted.

#![allow(clippy::print_stdout)]

mod fake;
mod figures;
mod peers;
mod weed;

use clap::Parser as _;

/// Measures rounds of the mirror: wall time, CPU, requests, memory
#[derive(Debug, clap::Parser)]
struct Settings {
    /// Objects that the measured store has
    #[arg(long, default_value_t = 10_020)]
    keys: u64,
    /// Rounds of each sort
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// s5cmd, to be measured beside ours over the same objects
    #[arg(long, value_name = "PATH")]
    s5cmd: Option<std::path::PathBuf>,
    /// rclone, likewise
    #[arg(long, value_name = "PATH")]
    rclone: Option<std::path::PathBuf>,
    /// Lists so many keys that a server makes up, instead
    #[arg(long, conflicts_with_all = ["keys", "runs", "s5cmd", "rclone"])]
    fake_keys: Option<u64>,
    /// The child that answers for these, so that its work is not counted as ours
    #[arg(long, hide = true, exclusive = true)]
    serve_fake: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Settings::parse() {
        Settings { serve_fake: true, .. } => fake::serve().await,
        Settings { fake_keys: Some(keys), .. } => fake::measure(keys).await,
        Settings { keys, runs, s5cmd, rclone, .. } => {
            let peers = s5cmd.map(peers::Peer::S5cmd).into_iter().chain(rclone.map(peers::Peer::Rclone));
            weed::measure(keys, runs, &peers.collect::<Vec<_>>()).await
        }
    }
}
