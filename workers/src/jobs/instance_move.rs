//! `instance.move`: carries a move out, one pass over its state a run, then snoozes.
//!
//! # Consistency
//! A run reads record and move afresh and decides again; every write stands under the lease and names the states that
//! it may leave (M-011). A box acts only on a record of its own region whose route is its own (M-037, M-038).
//!
//! # Retries
//! What holds a move up goes into its status by a stable code, and the run snoozes: longer after failures, slower
//! while somebody must help, never in a hot loop and never for the last time.
//!
//! # Cancellation
//! A draining worker stops between requests and hands the move back; the next run goes on from the journal of copies.
//!
//! # Crash consistency
//! A round that died leaves an open row in the journal and copies that may not be recorded: they are made again.

use std::time::Duration;

use async_trait::async_trait;
use domain::db::{self, Session};
use domain::ids::MoveId;
use domain::instances::jobs::{MoveArgs, move_spec};
use domain::instances::moves::policy::{self, Bearing, Pass, Sight, Target};
use domain::instances::moves::{self, Cas, Copies, Move, MoveState, Obstacle, Round, RoundEnd};
use domain::instances::{self, Refusal};
use domain::nodes::{self, Bucket};
use domain::queue::{KindSpec, Operation};
use serde_json::json;
use sqlx::PgPool;

use super::halt::{obstacle_of, pass_until};
use super::replica::pair_of;
use super::{Done, Environment, Job, JobContext, JobError};
use crate::mirror::{Mirror, MirrorError, PassReport};
use crate::node::NodeContext;

mod abort;
mod cut;
pub(super) mod journal;
mod report;

use journal::MoveJournal;
use report::Narrator;

/// Times that one run decides anew after it lost a compare-and-set, before it snoozes.
const MAX_DECISIONS: u32 = 4;
/// Pause between two looks at the move's state while a round runs.
const STATE_LOOK: Duration = Duration::from_secs(1);
/// Rows of the journal of copies that one statement removes.
const FORGET_AT_ONCE: u16 = 10_000;

/// Moves instances away from one box.
#[derive(Debug, Clone)]
pub struct InstanceMove {
    pool: PgPool,
    node: NodeContext,
}

/// What one decision came to.
enum Turn {
    /// The run ends.
    End(Done),
    /// The state changed under us: read again, decide again.
    Again,
}

impl InstanceMove {
    /// The job of this environment's box; `None` without one.
    #[must_use]
    pub fn of(environment: &Environment) -> Option<Self> {
        Some(Self { pool: environment.pool.clone(), node: environment.node.clone()? })
    }

    async fn turn(&self, id: MoveId, context: &JobContext) -> Result<Turn, JobError> {
        let found = moves::get(&mut *self.connection().await?, id).await.map_err(anyhow::Error::new)?;
        let Some(found) = found else {
            return Ok(Turn::End(Done::Complete(json!({"outcome": "gone"}))));
        };
        let sight = Sight {
            region: &found.region,
            route: found.node,
            state: &found.state,
            finished: found.finished_at.is_some(),
        };
        match policy::pass(sight, self.node.id(), self.node.region()) {
            Pass::Over => self.tidy(&found, context).await,
            Pass::NotOurs => {
                // The sweep gives the move to the box that serves the host.
                Ok(Turn::End(Done::Complete(json!({"outcome": "handed_over", "node_id": found.node}))))
            }
            Pass::OutOfScope => {
                let message =
                    format!("the record is in region {}, this box is in {}", found.region, self.node.region());
                self.blocked(&found, context, "out_of_scope", message).await
            }
            Pass::NoAction(state) => {
                let message = format!("this version does not act on state {:?}: upgrade the worker", state.as_str());
                self.blocked(&found, context, "state_unknown", message).await
            }
            Pass::Mirror(state) => self.mirror(&found, state, context).await,
            Pass::Abort => self.abort(&found, context).await,
            Pass::Cut => self.cut(&found, context).await,
        }
    }

    /// One round, and the promotion that it may earn.
    async fn mirror(&self, found: &Move, state: MoveState, context: &JobContext) -> Result<Turn, JobError> {
        let (armed, published) = {
            let mut conn = self.connection().await?;
            let region = nodes::region(&mut conn, &found.to).await.map_err(anyhow::Error::new)?;
            let published = instances::coordinates(&mut conn, &found.to).await.map_err(anyhow::Error::new)?;
            (region.is_some_and(|region| region.armed), published)
        };
        if !armed {
            let message = format!("region {} was disarmed: arm it again, or abort the move", found.to);
            return self.blocked(found, context, "target_unarmed", message).await;
        }
        let target: Bucket = match policy::target(found.target.as_ref(), published.as_ref()) {
            Target::Pinned(bucket) => bucket.clone(),
            Target::Pin(bucket) => {
                let mut conn = self.connection().await?;
                let pinned = told(context, moves::pin_target(&mut conn, context.lease(), found.id, bucket).await)?;
                let pinned = stands(conn, pinned).await?;
                crate::failpoint::hit("move.after_pin", found.host.as_str()).await;
                pinned
            }
            Target::Missing => {
                let message = format!("no box of region {} has published its bucket yet", found.to);
                let obstacle = Obstacle { code: "target_coordinates_missing".to_owned(), message, permanent: false };
                self.note(found, context, obstacle).await?;
                return Ok(snooze(self.interval()));
            }
            Target::Changed { pinned, published } => {
                let message = format!(
                    "region {} now publishes bucket {} ({}), the move stages in {} ({}): abort it and start it again",
                    found.to, published.name, published.region, pinned.name, pinned.region
                );
                return self.blocked(found, context, "target_changed", message).await;
            }
        };
        // Behind the checks of the target: a region that was disarmed meanwhile holds this cut, too.
        let held: Move;
        let found = if found.cut_auto && state == MoveState::Ready {
            let Some(obstacle) = self.cut_by_itself(found, context).await? else { return Ok(Turn::Again) };
            // Rounds go on, so that little is left to copy once it may be cut; what holds it up stands beside their ends.
            self.note(found, context, obstacle.clone()).await?;
            held = Move { status: moves::Status { obstacle: Some(obstacle), ..found.status.clone() }, ..found.clone() };
            &held
        } else {
            found
        };
        let pair = match pair_of(&self.node, &found.host).await {
            Ok(pair) => pair,
            Err(obstacle) => {
                let permanent = obstacle.permanent;
                self.note(found, context, obstacle).await?;
                let wait = if permanent { policy::wait_while_blocked(self.interval()) } else { self.interval() };
                return Ok(snooze(wait));
            }
        };
        let begun = {
            let mut conn = self.connection().await?;
            let begun = told(context, moves::begin_round(&mut conn, context.lease(), found.id).await)?;
            stands(conn, begun).await?
        };
        let Cas::Set(round) = begun else { return Ok(Turn::Again) };
        crate::failpoint::hit("move.after_begin", found.host.as_str()).await;
        let mirror = Mirror {
            source: self.node.own().await,
            target: self.node.place(&target).await,
            pairs: vec![pair],
            settings: self.node.config().mirror.clone(),
        };
        let journal = MoveJournal::new(self.pool.clone(), context.clone(), found.id);
        let narrator = Narrator::new(context.clone(), found, round);
        // An abort or a cut waits for no long round.
        let left = self.no_longer_mirrors(found.id);
        match pass_until(&mirror, &journal, &narrator, context, left).await {
            Ok(report) => self.after_round(found, state, round, &report, &narrator, context).await,
            Err(error) => self.after_failure(found, round, error, &narrator, context).await,
        }
    }

    async fn after_round(
        &self,
        found: &Move,
        state: MoveState,
        round: Round,
        report: &PassReport,
        narrator: &Narrator,
        context: &JobContext,
    ) -> Result<Turn, JobError> {
        let end = report::end_of(found, report);
        let status = self.end_round(found, round, &end, context).await?;
        narrator.round_ended(report, &end).await?;
        if policy::promotes(state, end.obstacle.as_ref()) {
            crate::failpoint::hit("move.before_promote", found.host.as_str()).await;
            let mut conn = self.connection().await?;
            let promoted = moves::promote(&mut conn, context.lease(), found.id, round.number).await;
            let promoted = told(context, promoted)?;
            match stands(conn, promoted).await? {
                Cas::Set(ready_at) => {
                    crate::failpoint::hit("move.after_promote", found.host.as_str()).await;
                    tracing::info!(host = %found.host, move.id = %found.id, %ready_at, "move is ready");
                    if found.cut_auto {
                        let Some(obstacle) = self.cut_by_itself(found, context).await? else { return Ok(Turn::Again) };
                        self.note(found, context, obstacle).await?;
                    }
                }
                // Lost to an abort or another verb: nothing was promoted (M-061).
                Cas::Lost(_) => return Ok(Turn::Again),
            }
        }
        Ok(self.snooze_after(&end, &status))
    }

    async fn after_failure(
        &self,
        found: &Move,
        round: Round,
        error: MirrorError,
        narrator: &Narrator,
        context: &JobContext,
    ) -> Result<Turn, JobError> {
        match &error {
            // Noted where the write was refused: by the journal, or by the job's progress.
            MirrorError::LeaseLost => return Err(JobError::LeaseLost),
            MirrorError::Cancelled => {
                // A lost lease writes nothing more.
                if let Err(lost @ JobError::LeaseLost) = context.check() {
                    return Err(lost);
                }
                let end = RoundEnd {
                    outcome: "cancelled",
                    numbers: None,
                    evidence: json!({"why": "the worker stops, or the move's state changed"}),
                    obstacle: found.status.obstacle.clone(),
                    bearing: Bearing::Neutral,
                };
                let status = self.end_round(found, round, &end, context).await?;
                context.check()?;
                // Neither the job nor its worker is to stop: the move's state is another.
                let stops = context.cancel.is_cancelled() || context.draining.is_cancelled();
                return Ok(if stops { self.snooze_after(&end, &status) } else { Turn::Again });
            }
            MirrorError::Transient { .. }
            | MirrorError::Permanent { .. }
            | MirrorError::Journal(_)
            | MirrorError::Spill(_) => {}
        }
        let obstacle = obstacle_of(&error);
        let end = RoundEnd {
            outcome: "failed",
            numbers: None,
            evidence: json!({"code": obstacle.code, "message": obstacle.message, "permanent": obstacle.permanent}),
            obstacle: Some(obstacle),
            bearing: Bearing::Failed,
        };
        let status = self.end_round(found, round, &end, context).await?;
        narrator.round_failed(&end).await?;
        Ok(self.snooze_after(&end, &status))
    }

    fn snooze_after(&self, end: &RoundEnd, status: &moves::Status) -> Turn {
        let blocked = end.obstacle.as_ref().is_some_and(|obstacle| obstacle.permanent);
        snooze(policy::wait_after_round(self.interval(), end.bearing, blocked, status.failures))
    }

    async fn end_round(
        &self,
        found: &Move,
        round: Round,
        end: &RoundEnd,
        context: &JobContext,
    ) -> Result<moves::Status, JobError> {
        crate::failpoint::hit("move.before_end", found.host.as_str()).await;
        let mut conn = self.connection().await?;
        let status = told(context, moves::end_round(&mut conn, context.lease(), found.id, round, end).await)?;
        stands(conn, status).await
    }

    /// Somebody must act: says so in the status, and looks again later.
    async fn blocked(
        &self,
        found: &Move,
        context: &JobContext,
        code: &'static str,
        message: String,
    ) -> Result<Turn, JobError> {
        self.note(found, context, Obstacle::lasting(code, message)).await?;
        Ok(snooze(policy::wait_while_blocked(self.interval())))
    }

    async fn note(&self, found: &Move, context: &JobContext, obstacle: Obstacle) -> Result<(), JobError> {
        let is_new = found.status.obstacle.as_ref().is_none_or(|old| old.code != obstacle.code);
        if is_new {
            tracing::warn!(
                host = %found.host,
                move.id = %found.id,
                code = obstacle.code,
                permanent = obstacle.permanent,
                "move is held up: {}",
                obstacle.message
            );
        }
        let mut conn = self.connection().await?;
        told(context, moves::note_obstacle(&mut conn, context.lease(), found.id, obstacle).await)?;
        stands(conn, ()).await
    }

    /// Waits until rounds may no longer run. What cannot be read is looked at again: the pass has its own errors.
    async fn no_longer_mirrors(&self, id: MoveId) {
        loop {
            tokio::time::sleep(STATE_LOOK).await;
            let Ok(mut conn) = db::session(&self.pool).await else { continue };
            let Ok(found) = moves::get(&mut conn, id).await else { continue };
            let state = found.filter(|found| found.finished_at.is_none()).and_then(|found| found.state.known());
            if !state.is_some_and(MoveState::mirrors) {
                return;
            }
        }
    }

    /// What is left to do of a move that is over: its route, if the record is elsewhere now, and its journal of copies.
    async fn tidy(&self, found: &Move, context: &JobContext) -> Result<Turn, JobError> {
        let mut conn = self.connection().await?;
        let retired = moves::retire_route(&mut conn, context.lease(), &found.host, self.node.id()).await;
        stands(conn, told(context, retired)?).await?;
        let mut more = true;
        while more {
            context.check()?;
            let mut conn = self.connection().await?;
            let whose = Copies::OfRounds;
            let left = moves::forget_some_keys(&mut conn, context.lease(), found.id, whose, FORGET_AT_ONCE).await;
            more = stands(conn, told(context, left)?).await?;
        }
        Ok(Turn::End(Done::Complete(json!({"outcome": found.outcome, "rounds": found.round}))))
    }

    fn interval(&self) -> Duration {
        self.node.config().round_interval
    }

    async fn connection(&self) -> Result<Session, JobError> {
        Ok(db::session(&self.pool).await.map_err(anyhow::Error::new)?)
    }
}

/// What was written stands before anybody acts on it.
async fn stands<T>(conn: Session, value: T) -> Result<T, JobError> {
    Ok(conn.done(value).await.map_err(anyhow::Error::new)?)
}

#[async_trait]
impl Job for InstanceMove {
    type Args = MoveArgs;

    fn spec() -> KindSpec {
        move_spec()
    }

    async fn run(&self, args: MoveArgs, context: JobContext) -> Result<Done, JobError> {
        for _ in 0..MAX_DECISIONS {
            context.check()?;
            match self.turn(args.move_id, &context).await? {
                Turn::End(done) => return Ok(done),
                Turn::Again => {}
            }
        }
        Ok(Done::Snooze { after: self.interval() })
    }
}

fn snooze(after: Duration) -> Turn {
    Turn::End(Done::Snooze { after })
}

/// Tells the runner of a refused write, and what the handler must do about any other failure.
pub(super) fn told<T>(context: &JobContext, written: Result<T, instances::Error>) -> Result<T, JobError> {
    match written {
        Ok(value) => Ok(value),
        Err(instances::Error::LeaseLost(_)) => {
            context.refused(Operation::Domain);
            Err(JobError::LeaseLost)
        }
        // The move ended between our reading and our writing: the next run finds it over.
        Err(instances::Error::Refused(Refusal::NotFound)) => {
            Err(JobError::Retry { after: Some(Duration::from_secs(1)), source: anyhow::anyhow!("the move is over") })
        }
        Err(error) => Err(anyhow::Error::new(error).into()),
    }
}
