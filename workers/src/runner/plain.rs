//! The plain engine: a task for each job. The way out of the other, and the measure of what it adds.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::grip::Grip;

/// Runs jobs until `draining` fires and the last has ended. Dropped, it drops every handler.
pub(super) async fn run(mut jobs: mpsc::UnboundedReceiver<Arc<Grip>>, draining: CancellationToken) {
    // A set aborts its tasks when it is dropped.
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = running.join_next() => {}
            () = draining.cancelled() => break,
            job = jobs.recv() => match job {
                Some(grip) => {
                    running.spawn(async move {
                        let verdict = grip.run().await;
                        // A lost lease was noted where it was found.
                        let _ = grip.conclude(verdict).await;
                    });
                }
                None => break,
            },
        }
    }
    while running.join_next().await.is_some() {}
}
