//! What rounds of the mirror cost: wall time, our CPU, requests, memory.
//!
//! `mirror [--keys N] [--runs N]` measures a full mirror, rounds without a change and rounds with 1 % changed, on
//! SeaweedFS. `mirror --fake-keys N` lists N keys from a server that makes them up, to show that memory does not grow
//! with them. Figures are printed, never asserted.

#![allow(clippy::print_stdout)]

mod fake;
mod figures;
mod weed;

use anyhow::{Context as _, bail};

#[derive(Debug, Clone, Copy)]
enum Mode {
    Weed {
        keys: u64,
        runs: usize,
    },
    Fake {
        keys: u64,
    },
    /// The child that answers for [`Mode::Fake`], so that its work is not counted as ours.
    Serve,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match arguments()? {
        Mode::Weed { keys, runs } => weed::measure(keys, runs).await,
        Mode::Fake { keys } => fake::measure(keys).await,
        Mode::Serve => fake::serve().await,
    }
}

fn arguments() -> anyhow::Result<Mode> {
    let (mut keys, mut runs, mut fake, mut serve) = (10_020, 5, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a number"))?;
        let value: u64 = value.parse().with_context(|| format!("{name} needs a number"))?;
        match name.as_str() {
            "--keys" => keys = value,
            "--runs" => runs = usize::try_from(value)?,
            "--fake-keys" => fake = Some(value),
            "--serve-fake" => serve = true,
            _ => bail!("unknown argument {name}"),
        }
    }
    Ok(match (serve, fake) {
        (true, _) => Mode::Serve,
        (false, Some(keys)) => Mode::Fake { keys },
        (false, None) => Mode::Weed { keys, runs },
    })
}
