//! The queue in what it meets in its life, beside the bare limit where there is one, on one private PostgreSQL with fsync
//! on. `--help` tells the situations and their sizes.
//!
//! `cargo build --release -p leasehold-bench -p leasehold-sandbox --bins`, then `situations [NAME…]`

use bench::queue::situations::{Situation, Sizes, run};
use clap::Parser as _;

/// Measures the queue in what it meets in its life, beside the bare limit
#[derive(Debug, clap::Parser)]
struct Asked {
    /// Which situations; all of them where none is named
    #[arg(value_enum)]
    situations: Vec<Situation>,
    #[command(flatten)]
    sizes: Sizes,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let asked = Asked::parse();
    run(&asked.situations, &asked.sizes).await
}
