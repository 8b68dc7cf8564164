//! The box's beat, and the sweeps that find what a crash left behind.

use std::sync::Arc;
use std::time::Duration;

use domain::ids::{NodeId, QueueName};
use domain::queue::hints::Hint;
use domain::{db, entropy, instances, nodes};
use sqlx::PgPool;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::NodeContext;
use crate::chain::chain;
use crate::seam::{LeaseStore, StoreError};

/// The longest time between two beats: a sixth of the silence after which a box counts as away.
const BEAT: Duration = Duration::from_secs(10);
/// Longest wait for one beat: a connection that hangs is left in time for two more tries within that silence.
const BEAT_LIMIT: Duration = Duration::from_secs(12);
/// Longest wait for telling what was enqueued: a hint that is lost costs the wait for a poll.
const TELL_LIMIT: Duration = Duration::from_secs(1);
/// Beats between two looks for records without a landing: it reads all records, and finds one only where a job was
/// taken away by hand or a move was aborted before its host was served.
const BEATS_A_SWEEP: u32 = 6;

/// What one beat found to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// Whether the box is known.
    pub known: bool,
    /// Open moves that had no job.
    pub moves: usize,
    /// Records that no box serves and that had no landing.
    pub landings: usize,
    /// Old replicas whose time had come.
    pub purges: usize,
    /// What idle workers should hear: the jobs that both have now.
    pub due: Hint,
}

impl Kept {
    /// Notes the jobs that were enqueued; says how many.
    fn add(&mut self, queues: &[QueueName]) -> usize {
        queues.iter().for_each(|queue| self.due.add(queue, 1));
        queues.len()
    }
}

/// One beat: the box lives, and open moves get the jobs that they lack. Safe from any box at any time.
///
/// # Errors
/// The database's, or the queue's.
pub async fn beat(pool: &PgPool, node: NodeId) -> Result<Kept, instances::Error> {
    let mut conn = db::session(pool).await?;
    let mut kept = Kept { known: nodes::seen(&mut conn, node).await?, ..Kept::default() };
    kept.moves = kept.add(&instances::moves::requeue_orphans(&mut conn).await?);
    Ok(conn.done(kept).await?)
}

/// A beat that also gives records that no box serves the landings that they lack.
///
/// # Errors
/// The database's, or the queue's.
pub async fn sweep(pool: &PgPool, node: NodeId) -> Result<Kept, instances::Error> {
    let mut kept = beat(pool, node).await?;
    let mut conn = db::session(pool).await?;
    kept.landings = kept.add(&instances::requeue_landings(&mut conn).await?);
    kept.purges = kept.add(&instances::residency::requeue_purges(&mut conn).await?);
    Ok(conn.done(kept).await?)
}

/// Beats until told to stop, every eight to ten seconds, so that boxes that began together drift apart. An outage of the
/// database is logged once, and its end. What was enqueued is told through `store` after its commit.
pub async fn keep(pool: PgPool, node: NodeContext, store: Arc<dyn LeaseStore>, stop: CancellationToken) {
    let mut away = false;
    for turn in (0..BEATS_A_SWEEP).cycle() {
        let kept = in_time(BEAT_LIMIT, async {
            if turn == 0 { sweep(&pool, node.id()).await } else { beat(&pool, node.id()).await }
        });
        match kept.await {
            Ok(kept) => {
                if away {
                    tracing::info!(node.id = %node.id(), "node beats again");
                    away = false;
                }
                if !kept.known {
                    tracing::error!(node.id = %node.id(), "this node's row is gone: start its worker again to register it");
                }
                if kept.moves > 0 {
                    tracing::warn!(node.id = %node.id(), moves = kept.moves, "open moves had no job: enqueued again");
                }
                if kept.landings > 0 {
                    tracing::info!(node.id = %node.id(), landings = kept.landings, "unserved records had no landing: enqueued");
                }
                if !kept.due.is_empty() && !in_passing(&stop, store.tell(&kept.due)).await {
                    tracing::debug!(node.id = %node.id(), "a hint is lost: the jobs wait for a poll");
                }
            }
            Err(error) if away => {
                tracing::debug!(node.id = %node.id(), error = %chain(&*error), "node's beat failed again");
            }
            Err(error) => {
                away = true;
                tracing::warn!(node.id = %node.id(), error = %chain(&*error), "node's beat failed");
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause())).await.is_none() {
            return;
        }
    }
}

/// The answer to one beat, or that there was none in time.
async fn in_time<T>(
    limit: Duration,
    beat: impl Future<Output = Result<T, instances::Error>>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    Ok(timeout(limit, beat).await??)
}

/// Whether a hint was told before its limit, and before whoever tells it is to stop.
async fn in_passing(stop: &CancellationToken, telling: impl Future<Output = Result<(), StoreError>>) -> bool {
    matches!(stop.run_until_cancelled(timeout(TELL_LIMIT, telling)).await, Some(Ok(Ok(()))))
}

fn pause() -> Duration {
    BEAT.mul_f64(0.8 + entropy::fraction() / 5.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_beat_that_hangs_is_left_while_the_box_still_counts_as_alive() {
        in_time(Duration::from_millis(1), std::future::pending::<Result<(), _>>()).await.expect_err("it hangs");
        let third = TELL_LIMIT + (BEAT + BEAT_LIMIT) * 2 + BEAT;
        assert!(third < nodes::SILENT_AFTER, "after one that was in time two hang, and a third is in time");
    }

    #[tokio::test]
    async fn a_hint_that_hangs_keeps_no_box_from_stopping() {
        let stop = CancellationToken::new();
        assert!(in_passing(&stop, std::future::ready(Ok(()))).await, "it is told");
        stop.cancel();
        let told = timeout(TELL_LIMIT / 2, in_passing(&stop, std::future::pending())).await;
        assert!(!told.expect("the stop ends it"), "and is lost");
    }

    #[test]
    fn beats_are_apart_and_never_rarer_than_stated() {
        let pauses: Vec<Duration> = (0..50).map(|_| pause()).collect();
        assert!(pauses.iter().all(|pause| *pause <= BEAT && *pause >= BEAT * 4 / 5));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
