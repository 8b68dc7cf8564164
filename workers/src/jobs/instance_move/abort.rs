//! An abort: everything that is staged is deleted, twice, and only then is the move cleared.

use std::time::Duration;

use domain::instances::jobs::move_spec;
use domain::instances::moves::{self, Cas, Move, MoveState, Obstacle, Swept, policy};
use serde_json::{Value, json};

use super::{InstanceMove, Turn, snooze, stands, told};
use crate::chain::chain;
use crate::jobs::sweep::{Sweep, SweepError, sweep};
use crate::jobs::{JobContext, JobError};
use crate::mirror::Pair;

/// The wait before another try where the store refused, or did not answer.
const RETRY: Duration = Duration::from_secs(5);
impl InstanceMove {
    /// One run of an abort: a sweep; the first that leaves nothing is noted, and one that leaves nothing long enough after it
    /// clears the move (M-082, M-083).
    pub(super) async fn abort(&self, found: &Move, context: &JobContext) -> Result<Turn, JobError> {
        let begun = {
            let mut conn = self.connection().await?;
            let begun =
                moves::begin_step(&mut conn, context.lease(), found.id, MoveState::Aborting, "sweep_staging").await;
            stands(conn, told(context, begun)?).await?
        };
        let Cas::Set(step) = begun else { return Ok(Turn::Again) };
        // Before this sweep: what arrives while it runs is only found by one that began late enough.
        let before = moves::swept(&mut *self.connection().await?, found.id).await.map_err(anyhow::Error::new)?;
        crate::failpoint::hit("abort.before_sweep", found.host.as_str()).await;
        // Nothing is pinned: no round ever began, and nothing was staged.
        let swept = match &found.target {
            None => Sweep { empty: true, ..Sweep::default() },
            Some(target) => {
                let pair = Pair::of_instance(found.host.as_str()).map_err(anyhow::Error::new)?;
                match sweep(&self.node.place(target).await, pair.staging_prefix(), context).await {
                    Ok(swept) => swept,
                    Err(SweepError::Stop(stop)) => return Err(stop),
                    Err(SweepError::Store(error)) => {
                        self.end_step(step, "failed", &json!({"error": chain(&error)}), context).await?;
                        let message = format!("the staging cannot be deleted: {}", chain(&error));
                        self.note(found, context, Obstacle::passing("sweep_failed", message)).await?;
                        return Ok(snooze(RETRY));
                    }
                }
            }
        };
        crate::failpoint::hit("abort.after_sweep", found.host.as_str()).await;
        let outcome = if swept.empty && swept.refusals == 0 { "empty" } else { "left" };
        self.end_step(step, outcome, &swept.evidence(), context).await?;
        let at = found.target.as_ref().map_or_else(String::new, |target| format!("bucket {}", target.name));
        if let Some(obstacle) = swept.obstacle(&format!("moves/{}/ in {at}", found.host)) {
            self.note(found, context, obstacle).await?;
            return Ok(snooze(RETRY));
        }
        self.clear_when_settled(found, before, context).await
    }

    async fn clear_when_settled(
        &self,
        found: &Move,
        before: Option<Swept>,
        context: &JobContext,
    ) -> Result<Turn, JobError> {
        let tuning = self.node.config().tuning;
        let settled =
            |loose| policy::second_sweep_after(move_spec().lease, tuning.request_timeout, tuning.copy_timeout, loose);
        let Some(first) = before else {
            let mut conn = self.connection().await?;
            told(context, moves::note_swept(&mut conn, context.lease(), found.id).await)?;
            stands(conn, ()).await?;
            // Nothing was ever sent there: no request can be under way.
            let wait = if found.target.is_none() { Duration::ZERO } else { settled(false) };
            return Ok(snooze(wait));
        };
        let left = settled(first.loose).checked_sub(first.ago).filter(|left| !left.is_zero());
        if let Some(left) = left.filter(|_| found.target.is_some()) {
            return Ok(snooze(left));
        }
        crate::failpoint::hit("abort.before_clear", found.host.as_str()).await;
        let cleared = {
            let mut conn = self.connection().await?;
            let cleared = told(context, moves::clear(&mut conn, context.lease(), found.id).await)?;
            stands(conn, cleared).await?
        };
        if let Cas::Set(()) = cleared {
            tracing::info!(host = %found.host, move.id = %found.id, "move is aborted");
        }
        crate::failpoint::hit("abort.after_clear", found.host.as_str()).await;
        // It is over: what is left is the journal of copies.
        Ok(Turn::Again)
    }

    pub(super) async fn end_step(
        &self,
        step: i64,
        outcome: &str,
        evidence: &Value,
        context: &JobContext,
    ) -> Result<(), JobError> {
        let mut conn = self.connection().await?;
        told(context, moves::end_step(&mut conn, context.lease(), step, outcome, evidence).await)?;
        stands(conn, ()).await
    }
}
