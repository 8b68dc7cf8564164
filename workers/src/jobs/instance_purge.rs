//! `instance.purge`: a box of the old region deletes the replica that a move left behind, once its time has come.
//!
//! # Consistency
//! Whether it may is decided under the record's lock, and said there before anything is deleted: a landing that needs the
//! prefix waits for the purge, never beside it.
//!
//! # Crash consistency
//! Deletes are safe to repeat. S3 knows no fence, so the prefix is listed again when nothing of an earlier lease can be under
//! way any more, and only then does the purge end.

use std::time::Duration;

use async_trait::async_trait;
use domain::db::{self, Session};
use domain::instances::jobs::{PurgeArgs, purge_spec};
use domain::instances::moves::policy;
use domain::instances::residency::{self, Deleted, Purge, Remains};
use domain::queue::KindSpec;
use serde_json::json;
use sqlx::PgPool;

use super::instance_move::told;
use super::sweep::{SweepError, sweep};
use super::{Done, Environment, Job, JobContext, JobError};
use crate::chain::chain;
use crate::mirror::Pair;
use crate::node::NodeContext;
use crate::objects::Versioning;

/// The wait before another try where the store refused, or did not answer.
const RETRY: Duration = Duration::from_secs(60);
/// The wait while the replica is kept.
const KEPT: Duration = Duration::from_secs(3600);

/// Purges old replicas of one box's region.
#[derive(Debug, Clone)]
pub struct InstancePurge {
    pool: PgPool,
    node: NodeContext,
}

impl InstancePurge {
    /// The job of this environment's box; `None` without one.
    #[must_use]
    pub fn of(environment: &Environment) -> Option<Self> {
        Some(Self { pool: environment.pool.clone(), node: environment.node.clone()? })
    }

    async fn purge(
        &self,
        remains: &Remains,
        emptied: Option<Duration>,
        context: &JobContext,
    ) -> Result<Done, JobError> {
        let place = self.node.place(&remains.bucket).await;
        crate::failpoint::hit("purge.before_sweep", remains.host.as_str()).await;
        let swept = match sweep(&place, &remains.prefix, context).await {
            Ok(swept) => swept,
            Err(SweepError::Stop(stop)) => return Err(stop),
            Err(SweepError::Store(error)) => return Ok(self.again(remains, &chain(&error))),
        };
        let mut these = Deleted { keys: swept.deleted, versions: 0 };
        if let Some(obstacle) = swept.obstacle(&remains.prefix) {
            self.note(remains, these, false, context).await?;
            return Ok(self.again(remains, &obstacle.message));
        }
        let kept = match self.versions(remains, context).await? {
            Ok(versions) => {
                these.versions = versions.deleted;
                versions.kept
            }
            Err((deleted, message)) => {
                these.versions = deleted;
                self.note(remains, these, false, context).await?;
                return Ok(self.again(remains, &message));
            }
        };
        let all = self.note(remains, these, true, context).await?;
        let tuning = self.node.config().tuning;
        // What was staged may still be copied to; a replica's own box has stopped writing before it was left.
        let loose = Pair::of_instance(remains.host.as_str()).is_ok_and(|pair| remains.prefix == pair.staging_prefix());
        let settled =
            policy::second_sweep_after(purge_spec().lease, tuning.request_timeout, tuning.copy_timeout, loose);
        match emptied {
            None => Ok(Done::Snooze { after: settled }),
            Some(ago) if ago < settled => Ok(Done::Snooze { after: settled.saturating_sub(ago) }),
            Some(_) => {
                let receipt = json!({"bucket": remains.bucket.name, "prefix": remains.prefix, "deleted_keys": all.keys,
                                     "deleted_versions": all.versions, "versions": kept, "node_id": self.node.id()});
                let mut conn = self.connection().await?;
                told(context, residency::end(&mut conn, context.lease(), remains, &receipt).await)?;
                conn.done(()).await.map_err(anyhow::Error::new)?;
                tracing::info!(host = %remains.host, region = %remains.region, "what a move left behind is purged");
                Ok(Done::Complete(json!({"purged": true, "receipt": receipt})))
            }
        }
    }

    /// Notes what this run deleted; all that was deleted so far.
    async fn note(
        &self,
        remains: &Remains,
        these: Deleted,
        empty: bool,
        context: &JobContext,
    ) -> Result<Deleted, JobError> {
        let mut conn = self.connection().await?;
        let all = told(context, residency::note_swept(&mut conn, context.lease(), remains, these, empty).await)?;
        Ok(conn.done(all).await.map_err(anyhow::Error::new)?)
    }

    /// A versioned bucket keeps what was deleted: its versions go, too. What is not known is said. Where some stay: how many
    /// went all the same, and why.
    async fn versions(
        &self,
        remains: &Remains,
        context: &JobContext,
    ) -> Result<Result<Versions, (u64, String)>, JobError> {
        let place = self.node.place(&remains.bucket).await;
        let versioning = match place.store.versioning(&place.bucket).await {
            Ok(versioning) => versioning,
            Err(error) => return Ok(Err((0, chain(&error)))),
        };
        let (deleted, kept) = match versioning {
            Versioning::Never => (0, "never"),
            Versioning::Unknown => (0, "unknown: the box may not ask; look at the bucket's versions by hand"),
            Versioning::Kept => {
                context.check()?;
                match place.store.delete_versions(&place.bucket, &remains.prefix).await {
                    Ok(done) if done.refused.is_empty() => (done.deleted, "kept by the bucket, and deleted"),
                    Ok(done) => return Ok(Err((done.deleted, format!("versions are left: {:?}", done.refused)))),
                    Err(error) => return Ok(Err((0, chain(&error)))),
                }
            }
        };
        Ok(Ok(Versions { deleted, kept }))
    }

    fn again(&self, remains: &Remains, why: &str) -> Done {
        tracing::warn!(host = %remains.host, region = %remains.region, "what a move left behind cannot be purged yet: {why}");
        Done::Snooze { after: RETRY }
    }

    async fn connection(&self) -> Result<Session, JobError> {
        Ok(db::session(&self.pool).await.map_err(anyhow::Error::new)?)
    }
}

/// What became of the versions below a prefix.
struct Versions {
    deleted: u64,
    /// Whether the bucket keeps them.
    kept: &'static str,
}

#[async_trait]
impl Job for InstancePurge {
    type Args = PurgeArgs;

    fn spec() -> KindSpec {
        purge_spec()
    }

    async fn run(&self, args: PurgeArgs, context: JobContext) -> Result<Done, JobError> {
        context.check()?;
        let purge = {
            let mut conn = self.connection().await?;
            let purge = residency::begin(&mut conn, context.lease(), args.move_id, &args.region, self.node.id()).await;
            conn.done(told(&context, purge)?).await.map_err(anyhow::Error::new)?
        };
        match purge {
            Purge::Go { remains, emptied } => self.purge(&remains, emptied, &context).await,
            Purge::Keep(why) => {
                context.log(crate::runner::Level::Info, &format!("kept: {why}")).await?;
                Ok(Done::Snooze { after: KEPT })
            }
            Purge::Wait(left) => Ok(Done::Snooze { after: left }),
            Purge::Over => Ok(Done::Complete(json!({"purged": false, "why": "nothing to purge here"}))),
        }
    }
}
