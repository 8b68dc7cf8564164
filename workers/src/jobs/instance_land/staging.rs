//! What a landing leaves: the staging is deleted once the record serves. That it cannot be deleted fails no landing (M-098).

use domain::ids::{Host, MoveId};
use domain::instances::landing;
use domain::instances::moves::{self, Copies};
use serde_json::json;

use super::{Arrival, InstanceLand, RETRY};
use crate::chain::chain;
use crate::jobs::instance_move::told;
use crate::jobs::sweep::{SweepError, sweep};
use crate::jobs::{Done, JobContext, JobError};
use crate::mirror::Pair;

/// Rows of the journal of copies that one statement removes.
const FORGET_AT_ONCE: u16 = 10_000;

impl InstanceLand {
    pub(super) async fn delete_staging(&self, arrival: &Arrival<'_>) -> Result<Done, JobError> {
        let landed: Vec<MoveId> = arrival.fall.pending.iter().map(|(landed, _)| *landed).collect();
        self.clean(&arrival.fall.host, &landed, arrival.context).await
    }

    /// Deletes what moves that have landed here left staged, and completes; tries again later where the store refuses.
    pub(super) async fn clean(&self, host: &Host, staged: &[MoveId], context: &JobContext) -> Result<Done, JobError> {
        if staged.is_empty() {
            return Ok(Done::Complete(json!({"landed": true, "host": host})));
        }
        let pair = Pair::of_instance(host.as_str()).map_err(anyhow::Error::new)?;
        let swept = match sweep(&self.node.own().await, pair.staging_prefix(), context).await {
            Ok(swept) => swept,
            Err(SweepError::Stop(stop)) => return Err(stop),
            Err(SweepError::Store(error)) => {
                tracing::warn!(%host, error = %chain(&error), "the staging of a landed move is left; trying again");
                return Ok(Done::Snooze { after: RETRY });
            }
        };
        if let Some(obstacle) = swept.obstacle(pair.staging_prefix()) {
            tracing::warn!(%host, code = obstacle.code, "the staging of a landed move is left: {}", obstacle.message);
            return Ok(Done::Snooze { after: RETRY });
        }
        for id in staged {
            self.forget_copies(*id, context).await?;
            let mut conn = self.connection().await?;
            told(context, landing::staging_deleted(&mut conn, context.lease(), *id, &swept.evidence()).await)?;
            conn.done(()).await.map_err(anyhow::Error::new)?;
        }
        Ok(Done::Complete(json!({"landed": true, "host": host, "staging_deleted": swept.deleted})))
    }

    /// Deletes a staging that was landed without a move. No row tells of it, so what the store refuses stays, and is told.
    pub(super) async fn drop_staging(&self, arrival: &Arrival<'_>) -> Result<(), JobError> {
        let pair = Pair::of_instance(arrival.fall.host.as_str()).map_err(anyhow::Error::new)?;
        let why = match sweep(&self.node.own().await, pair.staging_prefix(), arrival.context).await {
            Ok(swept) => swept.obstacle(pair.staging_prefix()).map(|obstacle| obstacle.message),
            Err(SweepError::Stop(stop)) => return Err(stop),
            Err(SweepError::Store(error)) => Some(chain(&error)),
        };
        if let Some(why) = why {
            tracing::warn!(host = %arrival.fall.host, "a staging that was landed is left, remove it by hand: {why}");
        }
        Ok(())
    }

    /// Removes what the journal of copies says of a landing.
    pub(super) async fn forget_copies(&self, id: MoveId, context: &JobContext) -> Result<(), JobError> {
        let mut more = true;
        while more {
            context.check()?;
            let mut conn = self.connection().await?;
            let whose = Copies::OfLanding;
            let left = moves::forget_some_keys(&mut conn, context.lease(), id, whose, FORGET_AT_ONCE).await;
            more = conn.done(told(context, left)?).await.map_err(anyhow::Error::new)?;
        }
        Ok(())
    }
}
