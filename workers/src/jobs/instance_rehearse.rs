//! `instance.rehearse`: the box that serves an instance lists what a move of it would copy, and tells it. It writes nothing but
//! its own result.
//!
//! # Consistency
//! A look of one moment, without a lock: the move that follows lists for itself.
//!
//! # Cancellation
//! It only reads, so it may be dropped at any request; a worker that drains hands it back.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::db;
use domain::instances;
use domain::instances::jobs::{RehearseArgs, rehearse_spec};
use domain::instances::moves::Obstacle;
use domain::instances::moves::rehearsal::{self, Amount, FirstRound, Report};
use domain::queue::KindSpec;
use serde_json::json;
use sqlx::PgPool;

use super::halt::{obstacle_of, obstacle_of_unready};
use super::replica::pair_of;
use super::{Done, Environment, Job, JobContext, JobError};
use crate::mirror::{Foreseen, Hindrance, Mirror, MirrorError, Side};
use crate::node::NodeContext;

/// Looks at what moves away from one box would copy.
#[derive(Debug, Clone)]
pub struct InstanceRehearse {
    pool: PgPool,
    node: NodeContext,
}

impl InstanceRehearse {
    /// The job of this environment's box; `None` without one.
    #[must_use]
    pub fn of(environment: &Environment) -> Option<Self> {
        Some(Self { pool: environment.pool.clone(), node: environment.node.clone()? })
    }

    /// Where there is nothing to list.
    fn held(&self, obstacle: Obstacle) -> Report {
        Report {
            node: self.node.id(),
            identity: self.node.identity().to_owned(),
            source: None,
            newest_txid: None,
            staged: None,
            first_round: None,
            obstacle: Some(obstacle),
            requests: 0,
            elapsed_ms: 0,
        }
    }

    /// What the box sees; `None` where the worker stops.
    async fn look(&self, args: &RehearseArgs, context: &JobContext) -> Result<Option<Report>, JobError> {
        let (host, published) = {
            let mut conn = db::session(&self.pool).await.map_err(anyhow::Error::new)?;
            let host = rehearsal::host_on(&mut conn, args.instance_id, self.node.id()).await;
            let published = instances::coordinates(&mut conn, &args.to).await;
            (host.map_err(anyhow::Error::new)?, published.map_err(anyhow::Error::new)?)
        };
        let Some(host) = host else {
            let message = "another box serves the instance by now, or it is in no state to move: ask again";
            return Ok(Some(self.held(Obstacle::passing("out_of_scope", message))));
        };
        let pair = match pair_of(&self.node, &host).await {
            Ok(pair) => pair,
            Err(obstacle) => return Ok(Some(self.held(obstacle))),
        };
        let own = self.node.own().await;
        let Some(target) = published else {
            let message = format!("no box of region {} has published its bucket yet", args.to);
            return Ok(Some(self.held(Obstacle::passing("target_coordinates_missing", message))));
        };
        let mirror = Mirror {
            source: own,
            target: self.node.place(&target).await,
            pairs: vec![pair],
            settings: self.node.config().mirror.clone(),
        };
        let began = Instant::now();
        // Boxed: a look is a deep future, and the job that holds it need not be one.
        let look = Box::pin(mirror.foresee(&context.cancel));
        let seen = tokio::select! {
            biased;
            () = context.draining.cancelled() => return Ok(None),
            seen = look => seen,
        };
        match seen {
            Ok(seen) => Ok(Some(self.report(seen, began.elapsed()))),
            Err(MirrorError::Cancelled) => Ok(None),
            // A spilled set could not be read back: another try may.
            Err(error) => Err(anyhow::Error::new(error).into()),
        }
    }

    fn report(&self, seen: Foreseen, elapsed: Duration) -> Report {
        let obstacle = seen.hindrance.map(|hindrance| match hindrance {
            Hindrance::Error(error) => obstacle_of(&error),
            // A look does not copy, so it is outrun by nobody.
            Hindrance::NotReady(why) => obstacle_of_unready(&why, || "the instance writes".to_owned()),
        });
        Report {
            node: self.node.id(),
            identity: self.node.identity().to_owned(),
            source: seen.source.map(amount),
            newest_txid: seen.newest.map(|newest| newest.0),
            staged: seen.target.map(amount),
            first_round: seen.work.map(|work| FirstRound {
                copies: amount(work.copies),
                deletes: work.deletes,
                requests: work.requests,
            }),
            obstacle,
            requests: seen.requests.total(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

const fn amount(side: Side) -> Amount {
    Amount { keys: side.keys, bytes: side.bytes }
}

#[async_trait]
impl Job for InstanceRehearse {
    type Args = RehearseArgs;

    fn spec() -> KindSpec {
        rehearse_spec()
    }

    async fn run(&self, args: RehearseArgs, context: JobContext) -> Result<Done, JobError> {
        context.check()?;
        match self.look(&args, &context).await? {
            Some(report) => Ok(Done::Complete(json!(report))),
            None => {
                context.check()?;
                Ok(Done::Snooze { after: Duration::ZERO })
            }
        }
    }
}
