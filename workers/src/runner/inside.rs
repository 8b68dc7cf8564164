//! Settling a job inside a transaction of its handler's own: the change and the end of the job commit together.
//!
//! The runner does not see that transaction commit. What was recorded inside is remembered with the lease, and when the
//! handler has ended the runner settles as ever: the database answers `Already` where the transaction committed, and
//! takes the handler's own verdict where it did not.

use std::time::Duration;

use domain::ids::Kind;
use domain::queue::{self, Error, JobState, Outcome, Settlement};
use serde_json::Value;
use sqlx::PgConnection;

use super::attempt;
use super::context::JobContext;
use super::job::JobError;

/// The kind is not one of those that may.
#[derive(Debug, thiserror::Error)]
#[error(
    "the kind {0} is not marked `local_db`: its workers may have no transaction of the queue's database, so return the \
     outcome instead"
)]
struct NotLocal(Kind);

impl JobContext {
    /// Completes the job in the handler's own transaction.
    ///
    /// Call it last, commit, and return: after the commit the lease is over and the handler is dropped at the next
    /// renewal. While the transaction is open the lease cannot be renewed, so keep it short; no act on the world belongs
    /// into it (I3). Roll back no nested transaction around it: see [`queue::settle_in`].
    ///
    /// # Errors
    /// [`JobError::LeaseLost`] where the fence refused it, and where an earlier transaction of the same lease had
    /// committed though its answer was lost: in both cases this one cannot commit. A retry where the database did not take
    /// it, or the kind is not marked `local_db`.
    pub async fn complete_in(&self, conn: &mut PgConnection, result: Value) -> Result<JobState, JobError> {
        self.settle_in(conn, Outcome::Completed { result }).await
    }

    /// Puts the job off in the handler's own transaction; no attempt is spent. As [`Self::complete_in`].
    ///
    /// # Errors
    /// As [`Self::complete_in`].
    pub async fn snooze_in(&self, conn: &mut PgConnection, after: Duration) -> Result<JobState, JobError> {
        self.settle_in(conn, Outcome::Snoozed { after }).await
    }

    /// Fails the attempt in the handler's own transaction: what it learnt is kept, and the job is tried again after
    /// the wait unless its attempts are spent. As [`Self::complete_in`].
    ///
    /// # Errors
    /// As [`Self::complete_in`].
    pub async fn fail_in(&self, conn: &mut PgConnection, message: &str, after: Duration) -> Result<JobState, JobError> {
        self.settle_in(conn, Outcome::Failed { error: attempt::error("failed", message), after }).await
    }

    async fn settle_in(&self, conn: &mut PgConnection, outcome: Outcome) -> Result<JobState, JobError> {
        // A context without a runner is a test's, which has the database at hand.
        if let Some((core, _)) = &self.runner
            && !core.registry.get(&self.leased.kind).is_some_and(|entry| entry.spec.local_db)
        {
            let source = anyhow::Error::new(NotLocal(self.leased.kind.clone()));
            return Err(JobError::Retry { after: None, source });
        }
        let settlement = Settlement { lease: self.lease(), outcome };
        let settled = queue::settle_in(conn, &settlement).await;
        match &settled {
            Ok(_) => {
                if let Some((_, held)) = &self.runner {
                    held.settled_inside(settlement.outcome);
                }
            }
            // The evidence is kept on another connection: this transaction takes with it what it writes.
            Err(Error::LeaseLost(_)) => self.refused(settlement.outcome.operation()),
            Err(_) => {}
        }
        Ok(settled?)
    }
}
