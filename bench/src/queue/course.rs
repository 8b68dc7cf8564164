//! What is drained and how it is measured: the same for the limit and for ours.

use std::time::Duration;

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::progress::Progress;
use crate::measure::{Figures, Meter};

/// Longest wait for one portion.
const PORTION_LIMIT: Duration = Duration::from_secs(600);

/// Jobs that wait.
#[derive(Debug, Clone, Copy)]
pub struct Backlog {
    /// How many.
    pub jobs: i64,
    /// Queues that they are spread over, in turn; at least one.
    pub queues: i64,
    /// Concurrency keys that they are spread over, in turn; none for jobs without. The limit knows no keys.
    pub keys: i64,
}

impl Backlog {
    /// Jobs of one queue, without keys.
    #[must_use]
    pub const fn of(jobs: i64) -> Self {
        Self { jobs, queues: 1, keys: 0 }
    }

    /// The names of its queues.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self.queues {
            1 => vec![String::from("bench")],
            many => (0..many).map(|n| format!("bench{n}")).collect(),
        }
    }
}

/// One drain.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// What waits when it begins.
    pub backlog: Backlog,
    /// Jobs that were drained before, and are kept.
    pub kept: i64,
    /// Jobs of one portion, which is measured by itself.
    pub portion: i64,
    /// Portions that are drained. They may be less than what waits.
    pub portions: i64,
    /// Connections of the limit, or workers of ours.
    pub hands: usize,
    /// Whether a session holds a snapshot all the while, so that nothing that died since can be removed.
    pub pinned: bool,
}

impl Course {
    /// All of `jobs`, measured as a whole.
    #[must_use]
    pub const fn whole(jobs: i64, hands: usize) -> Self {
        Self { backlog: Backlog::of(jobs), kept: 0, portion: jobs, portions: 1, hands, pinned: false }
    }

    /// The drain before this one, of what is kept.
    pub(super) const fn before(&self) -> Option<Self> {
        match self.kept {
            0 => None,
            kept => Some(Self::whole(kept, 1)),
        }
    }

    /// How many are drained in all.
    pub(super) const fn total(&self) -> i64 {
        self.portion * self.portions
    }
}

/// Measures each portion of what `start` sets going; gives what still runs then.
pub(super) async fn measure(
    conn: &mut PgConnection,
    postmaster: u32,
    course: &Course,
    progress: &Progress,
    start: impl FnOnce() -> JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<(Vec<Figures>, JoinSet<anyhow::Result<()>>)> {
    let mut figures = Vec::new();
    let mut before = progress.done();
    let mut meter = Meter::start(conn, postmaster).await?;
    let mut running = start();
    for n in 1..=course.portions {
        let reached = reach(progress, n * course.portion, &mut running);
        timeout(PORTION_LIMIT, reached).await.with_context(|| format!("portion {n} of {}", course.portions))??;
        let done = progress.done();
        figures.push(meter.lap(conn, done - before).await?);
        before = done;
    }
    Ok((figures, running))
}

/// Waits until so many are done, or whoever does them ends with an error or too early.
async fn reach(progress: &Progress, goal: i64, running: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            biased;
            () = progress.until(goal) => return Ok(()),
            ended = running.join_next() => match ended {
                Some(ended) => ended??,
                None => anyhow::bail!("{} of {goal} jobs are done, and nobody goes on", progress.done()),
            },
        }
    }
}

/// A session that holds a snapshot for as long as it is kept.
pub(super) async fn pin(url: &str) -> anyhow::Result<PgConnection> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql("begin isolation level repeatable read; select 1")
        .execute(&mut conn)
        .await
        .context("pin a snapshot")?;
    Ok(conn)
}

/// Lets the tables know what is in them.
pub(super) async fn settle_down(conn: &mut PgConnection, table: &str) -> anyhow::Result<()> {
    let sql = format!("vacuum analyze {table}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(conn).await.context("vacuum")?;
    Ok(())
}
