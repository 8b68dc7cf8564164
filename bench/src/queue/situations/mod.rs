//! What a queue meets in its life: other concurrencies, depth, history, many queues, a reader that holds a snapshot,
//! limits, a worker that is killed, nothing to do.

mod drains;
mod enqueues;
mod horizon;
mod processes;

use std::time::Duration;

use clap::ValueEnum as _;

use super::ours::Engine;
use crate::report;
use crate::stand::Stand;

/// One situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Situation {
    /// Drain by one worker at 10, 50 and 500, and by two
    Concurrency,
    /// One at a time from 1 and from 8 connections, and in bulk
    Enqueue,
    /// The first jobs of a short and of a long backlog
    Depth,
    /// With many finished jobs kept
    Kept,
    /// The same backlog in 1, 4, 16 and 64 queues
    Queues,
    /// While a session holds a snapshot, portion by portion
    Horizon,
    /// With concurrency keys, limits and rates
    Limits,
    /// From a kill -9 until each job of the dead worker has begun anew
    Recovery,
    /// Ten workers with nothing to do
    Idle,
    /// Memory of a worker
    Memory,
}

fn at_least(least: i64) -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(least..)
}

/// How large they are.
#[derive(Debug, Clone, clap::Args)]
pub struct Sizes {
    /// Rounds of each situation, of which the medians are told
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Jobs of a whole drain
    #[arg(long, default_value_t = 100_000, value_parser = at_least(1))]
    pub jobs: i64,
    /// Jobs that each connection enqueues one at a time
    #[arg(long, default_value_t = 3_000, value_parser = at_least(1))]
    pub singles: i64,
    /// Jobs that are drained of a backlog, and with finished jobs kept
    #[arg(long, default_value_t = 20_000, value_parser = at_least(1))]
    pub portion: i64,
    /// Jobs that wait behind these in a short backlog
    #[arg(long, default_value_t = 10_000, value_parser = at_least(0))]
    pub shallow: i64,
    /// And in a long one
    #[arg(long, default_value_t = 1_000_000, value_parser = at_least(0))]
    pub deep: i64,
    /// Finished jobs that are kept
    #[arg(long, default_value_t = 1_000_000, value_parser = at_least(0))]
    pub kept: i64,
    /// Jobs that are drained while a session holds a snapshot
    #[arg(long, default_value_t = 300_000, value_parser = at_least(1))]
    pub horizon_jobs: i64,
    /// In portions of so many
    #[arg(long, default_value_t = 50_000, value_parser = at_least(1))]
    pub horizon_portion: i64,
    /// Jobs that a worker holds when it is killed
    #[arg(long, default_value_t = 10)]
    pub held: u16,
    /// How long the idle workers are watched
    #[arg(long, default_value_t = 60)]
    pub idle_seconds: u64,
    /// Jobs that the limit leases at once
    #[arg(long, default_value_t = 100)]
    pub batch: u16,
    /// Jobs that a worker runs at once, where a situation does not say
    #[arg(long, default_value_t = 50)]
    pub concurrency: u16,
    /// Whether the plain loop drives the handlers instead of apalis
    #[arg(long)]
    pub plain: bool,
}

impl Sizes {
    const fn engine(&self) -> Engine {
        if self.plain { Engine::Plain } else { Engine::Apalis }
    }
}

/// Runs the situations that are named, or all of them, and prints what was measured.
///
/// # Errors
/// The database's, a worker's, or an unreadable /proc.
pub async fn run(named: &[Situation], sizes: &Sizes) -> anyhow::Result<()> {
    let stand = Stand::start().await?;
    let all = Situation::value_variants();
    report::print_heading();
    for situation in if named.is_empty() { all } else { named } {
        eprintln!("{situation:?}");
        match situation {
            Situation::Concurrency => drains::concurrency(&stand, sizes).await?,
            Situation::Enqueue => enqueues::enqueue(&stand, sizes).await?,
            Situation::Depth => drains::depth(&stand, sizes).await?,
            Situation::Kept => drains::kept(&stand, sizes).await?,
            Situation::Queues => drains::queues(&stand, sizes).await?,
            Situation::Horizon => horizon::horizon(&stand, sizes).await?,
            Situation::Limits => drains::limits(&stand, sizes).await?,
            Situation::Recovery => processes::recovery(&stand, sizes).await?,
            Situation::Idle => processes::idle(&stand, Duration::from_secs(sizes.idle_seconds)).await?,
            Situation::Memory => processes::memory(&stand, sizes).await?,
        }
    }
    stand.stop().await;
    Ok(())
}

/// One thing, or so many of them.
fn counted(n: impl TryInto<i64>, thing: &str) -> String {
    match n.try_into().unwrap_or(i64::MAX) {
        1 => format!("1 {thing}"),
        many => format!("{many} {thing}s"),
    }
}

/// So many, with a comma between the thousands.
fn grouped(n: i64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1_000, 20_000, 1_234_567].map(grouped), ["0", "999", "1,000", "20,000", "1,234,567"]);
    }
}
