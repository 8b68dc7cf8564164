//! The cut: the source's last acts for an instance, in one order.
//!
//! # Consistency
//! The route is closed first, so that nothing starts the child again; then its end is proven, then that the replica carries
//! every transaction, then that the staging is that replica. Only then is the box's own database deleted, and the last act
//! gives the record to the target (I5). Each step checks the lease before and after itself.
//!
//! # Crash consistency
//! A run begins at the top: what was done is found done. Once the purge has begun, its proof stands and the steps before it
//! are not repeated: there may be no database any more, and none is made.

use std::time::Duration;

use domain::instances::moves::{self, Cas, Move, MoveState, Obstacle, policy};
use domain::instances::plan::Txid;
use domain::instances::{self, Refusal};
use serde_json::{Value, json};

use super::journal::MoveJournal;
use super::{InstanceMove, Turn, snooze, stands, told};
use crate::activator::{Activator, Rehearsed};
use crate::jobs::halt::{Halt, obstacle_of_unready, pass_until};
use crate::jobs::replica::pair_of;
use crate::jobs::{JobContext, JobError};
use crate::mirror::{Mirror, Outcome, Pair, PassReport, Unobserved};

/// The wait before a step that failed is tried again. Short: the tenant holds its writes.
const RETRY: Duration = Duration::from_secs(2);
/// The wait where the proof found something broken.
const BROKEN: Duration = Duration::from_secs(30);
/// The step that proves the tail.
const PROOF: &str = "prove_tail";

impl InstanceMove {
    /// A ready move that was asked to cut by itself is cut now (M-127): the route is closed before the child ends, so what
    /// is written until then is carried over, and nothing can be written after. What holds it up, where it is not cut yet.
    pub(super) async fn cut_by_itself(&self, found: &Move, context: &JobContext) -> Result<Option<Obstacle>, JobError> {
        let mut conn = self.connection().await?;
        let cut = moves::cut_by_itself(&mut conn, context.lease(), found.id).await;
        if let Err(instances::Error::Refused(refusal)) = &cut {
            if matches!(refusal, Refusal::FreezeOverBudget { .. }) {
                return Ok(Some(Obstacle::passing(policy::FREEZE_OVER_BUDGET, refusal.to_string())));
            }
            // A box that is heard again could.
            if matches!(refusal, Refusal::RegionCannotHost(_) | Refusal::RegionHoldsNoKey(_)) {
                return Ok(Some(Obstacle::passing(policy::TARGET_CANNOT_HOST, refusal.to_string())));
            }
            // Disarmed since it was looked at: the next turn looks again, and is held by that.
            if matches!(refusal, Refusal::RegionUnarmed(_)) {
                return Ok(None);
            }
        }
        stands(conn, told(context, cut)?).await?;
        // Set, or lost to a verb: the state says what is to be done.
        Ok(None)
    }

    /// One run of a cut, to its end or to what holds it up.
    pub(super) async fn cut(&self, found: &Move, context: &JobContext) -> Result<Turn, JobError> {
        let Some(activator) = self.node.activator() else {
            let message =
                "this box has no litestream, so it cannot prove what it stages: set node.litestream".to_owned();
            return self.blocked(found, context, "cannot_prove", message).await;
        };
        crate::failpoint::hit("cut.before_close", found.host.as_str()).await;
        let closed = {
            let mut conn = self.connection().await?;
            let closed = moves::close_route(&mut conn, context.lease(), found.id, self.node.id()).await;
            stands(conn, told(context, closed)?).await?
        };
        let Cas::Set(()) = closed else { return Ok(Turn::Again) };
        crate::failpoint::hit("cut.after_close", found.host.as_str()).await;
        let down = self.step(found, context, "stop_child", async {
            let hangs = |error| Halt::of_box("child_hangs", &error);
            // Where there is no database, litestream has nothing to upload any more, and would hold up the purge.
            let end = if activator.has_database(&found.host).map_err(hangs)? {
                activator.stop_child(&found.host).await
            } else {
                activator.stop(&found.host).await
            };
            end.map(|end| ((), json!(end))).map_err(hangs)
        });
        if let Some(turn) = down.await?.err() {
            return Ok(turn);
        }
        if found.purge_began_at.is_none()
            && let Some(turn) = self.prove(found, activator, context).await?
        {
            return Ok(turn);
        }
        crate::failpoint::hit("cut.before_purge", found.host.as_str()).await;
        let purged = self.step(found, context, "purge", async {
            let purged = activator.purge(&found.host).await;
            purged.map(|purged| ((), json!(purged))).map_err(|error| Halt::of_box("purge_failed", &error))
        });
        if let Some(turn) = purged.await?.err() {
            return Ok(turn);
        }
        crate::failpoint::hit("cut.before_flip", found.host.as_str()).await;
        let pair = Pair::of_instance(found.host.as_str()).map_err(anyhow::Error::new)?;
        let flipped = {
            let mut conn = self.connection().await?;
            let flipped = moves::flip(&mut conn, context.lease(), found.id, pair.source_prefix()).await;
            stands(conn, told(context, flipped)?).await?
        };
        crate::failpoint::hit("cut.after_flip", found.host.as_str()).await;
        if let Cas::Set(flipped) = flipped {
            tracing::info!(host = %found.host, move.id = %found.id, to = %flipped.to, "move is flipped");
            context.tell_enqueued(&flipped.landing, flipped.made);
        }
        // It is over, by us now or by us before: what is left is the route and the journal of copies.
        Ok(Turn::Again)
    }

    /// From the child's end to the purge's beginning: the tail, the final delta, and both recorded. `None`: go on.
    async fn prove(&self, found: &Move, activator: &Activator, context: &JobContext) -> Result<Option<Turn>, JobError> {
        crate::failpoint::hit("cut.before_proof", found.host.as_str()).await;
        let proven = self.step(found, context, PROOF, async {
            let failed = |error| Halt::of_box("tail_unproven", &error);
            let local = activator.has_database(&found.host).map_err(failed)?;
            let proven = if local {
                // Names and positions say nothing of what older objects hold: before the database goes, what is left of it is
                // restored once, and must be it. The purge removes the rehearsal with the rest.
                activator.rehearse(&found.host).await
            } else {
                let tail = activator.prove_replica(&found.host).await;
                tail.map(|tail| Rehearsed { tail, renewed: None, whole: None })
            };
            let Rehearsed { tail, renewed, whole } = proven.map_err(failed)?;
            if let Some(differed) = &renewed {
                tracing::warn!(host = %found.host, "the replica was not its database, and is uploaded anew: {differed}");
            }
            let evidence = json!({
                "local": local, "txid": tail.txid, "sha256": tail.sha256, "size": tail.size, "renewed": renewed,
                "whole": whole,
            });
            Ok((tail, evidence))
        });
        let tail = match proven.await? {
            Ok(tail) => tail,
            Err(turn) => return Ok(Some(turn)),
        };
        crate::failpoint::hit("cut.before_delta", found.host.as_str()).await;
        let delta = self.step(found, context, "final_delta", async {
            let report = self.final_pass(found, context).await?;
            let evidence = json!({
                "iterations": report.iterations, "source_keys": report.source_keys, "copied": report.copied,
                "copied_bytes": report.copied_bytes, "deleted": report.deleted, "lost": report.lost,
                "newest_txid": report.newest.map(|newest| newest.to_string()),
            });
            // Nobody writes there any more, so a staging that is not exactly what was proven is no staging of this cut.
            if report.newest.as_ref().map(Txid::to_string).as_deref() != Some(tail.txid.as_str()) {
                let newest = report.newest.map_or_else(|| "none".to_owned(), |newest| newest.to_string());
                let message = format!("the staging ends with transaction {newest}, the database with {}", tail.txid);
                return Err(Halt::passing("tail_not_staged", message));
            }
            Ok(((), evidence))
        });
        if let Some(turn) = delta.await?.err() {
            return Ok(Some(turn));
        }
        crate::failpoint::hit("cut.before_record", found.host.as_str()).await;
        let mut conn = self.connection().await?;
        let recorded = told(context, moves::record_tail(&mut conn, context.lease(), found.id, &tail).await)?;
        let begun = match recorded {
            Cas::Set(()) => told(context, moves::begin_purge(&mut conn, context.lease(), found.id).await)?,
            Cas::Lost(state) => Cas::Lost(state),
        };
        Ok(match stands(conn, begun).await? {
            Cas::Set(()) => None,
            Cas::Lost(_) => Some(Turn::Again),
        })
    }

    /// Passes until a fresh listing of both sides shows no difference. The source is down: a pass that is still busy has met
    /// a store that lies.
    async fn final_pass(&self, found: &Move, context: &JobContext) -> Result<PassReport, Halt> {
        let Some(target) = &found.target else {
            return Err(Halt::passing("target_coordinates_missing", "the move never staged anything"));
        };
        let pair = pair_of(&self.node, &found.host).await.map_err(Halt::Held)?;
        let mirror = Mirror {
            source: self.node.own().await,
            target: self.node.place(target).await,
            pairs: vec![pair],
            settings: self.node.config().mirror.clone(),
        };
        let journal = MoveJournal::new(self.pool.clone(), context.clone(), found.id);
        let report = pass_until(&mirror, &journal, &Unobserved, context, std::future::pending()).await?;
        let differs = "the replica still changes, although its process has ended: find who writes to its prefix";
        match &report.outcome {
            Outcome::InSync => Ok(report),
            Outcome::WithinBars => Err(Halt::passing("busy", differs)),
            Outcome::NotReady(why) => Err(Halt::Held(obstacle_of_unready(why, || differs.to_owned()))),
        }
    }

    /// Journals one step around an act: its row is opened under the lease before, and closed under the lease after. An act
    /// that fails is said in the move's status, and the run ends.
    async fn step<T>(
        &self,
        found: &Move,
        context: &JobContext,
        step: &'static str,
        act: impl Future<Output = Result<(T, Value), Halt>>,
    ) -> Result<Result<T, Turn>, JobError> {
        context.check()?;
        let begun = {
            let mut conn = self.connection().await?;
            let begun = moves::begin_step(&mut conn, context.lease(), found.id, MoveState::Cutting, step).await;
            stands(conn, told(context, begun)?).await?
        };
        let Cas::Set(row) = begun else { return Ok(Err(Turn::Again)) };
        match act.await {
            Ok((done, evidence)) => {
                self.end_step(row, "done", &evidence, context).await?;
                Ok(Ok(done))
            }
            Err(Halt::Held(obstacle)) => {
                let evidence = json!({"code": obstacle.code, "message": obstacle.message});
                self.end_step(row, "failed", &evidence, context).await?;
                // What is broken is read whole at every try: it is not read all the time.
                let after = if obstacle.permanent && step == PROOF { BROKEN } else { RETRY };
                self.note(found, context, obstacle).await?;
                Ok(Err(snooze(after)))
            }
            Err(Halt::Drained) => {
                let why = json!({"why": "the worker stops, or the job is to"});
                self.end_step(row, "cancelled", &why, context).await?;
                Ok(Err(snooze(Duration::ZERO)))
            }
        }
    }
}
