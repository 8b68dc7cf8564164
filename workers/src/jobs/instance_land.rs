//! `instance.land`: a capable box of the region takes a record that is newly in scope.
//!
//! # Consistency
//! The first act is to insert the route, which only one box can; from then on the job is that box's own. What is restored is
//! decided in one place ([`domain::instances::source`]), from complete listings. The record serves by one write under the
//! lease, after everything was restored and checked.
//!
//! # Retries
//! What holds a landing up stands on the route by a stable code, and the run snoozes: nothing is ever served that was not
//! proven, and nothing to restore is never a fresh database.
//!
//! # Crash consistency
//! Each run looks anew at the store and the disk. A staging is deleted only after the record serves.

use std::time::Duration;

use async_trait::async_trait;
use domain::db::{self, Session};
use domain::ids::{Host, InstanceId};
use domain::instances;
use domain::instances::jobs::{LandArgs, land_spec};
use domain::instances::landing::{self, Landfall, Landing};
use domain::instances::moves::Obstacle;
use domain::instances::source::{Missing, Seen, Source, source};
use domain::queue::KindSpec;
use serde_json::json;
use sqlx::PgPool;

use super::halt::obstacle_of_box;
use super::instance_move::told;
use super::{Done, Environment, Job, JobContext, JobError};
use crate::activator;
use crate::chain::chain;
use crate::mirror::{Pair, Place};
use crate::node::NodeContext;

mod config;
mod restore;
mod staging;

/// The wait before another try where the store did not answer.
const RETRY: Duration = Duration::from_secs(5);
/// The wait while somebody must help.
const HELD: Duration = Duration::from_secs(60);

/// Lands instances on one box.
#[derive(Debug, Clone)]
pub struct InstanceLand {
    pool: PgPool,
    node: NodeContext,
}

/// A landing under way.
struct Arrival<'a> {
    id: InstanceId,
    fall: &'a Landfall,
    context: &'a JobContext,
}

impl InstanceLand {
    /// The job of this environment's box; `None` without one.
    #[must_use]
    pub fn of(environment: &Environment) -> Option<Self> {
        Some(Self { pool: environment.pool.clone(), node: environment.node.clone()? })
    }

    /// Restores what there is to restore, and serves it.
    async fn arrive(&self, arrival: &Arrival<'_>) -> Result<Done, JobError> {
        let pair = Pair::of_instance(arrival.fall.host.as_str()).map_err(anyhow::Error::new)?;
        let own = self.node.own().await;
        let (has_own, has_staged) = match self.look(&own, &pair).await {
            Ok(seen) => seen,
            Err(error) => {
                let message = format!("the store cannot be listed: {}", chain(&error));
                let permanent = !error.is_worth_a_retry();
                let obstacle = Obstacle { permanent, ..Obstacle::passing("store_unreadable", message) };
                return self.hold(arrival, obstacle).await;
            }
        };
        let activator = self.node.activator();
        // What still runs here is of an earlier term: the box was cut off when its record went elsewhere and came back.
        if let Some(activator) = activator
            && let Err(error) = activator.stop(&arrival.fall.host).await
        {
            return self.hold(arrival, obstacle_of_box("child_hangs", &error)).await;
        }
        // Before anything is emptied, copied or restored: what does not open here would land without its child (M-120).
        if let Err(unopened) = self.opens(arrival) {
            return self.hand_on(arrival, &unopened).await;
        }
        let local = activator.map_or(Ok(false), |activator| activator.has_database(&arrival.fall.host));
        let local = local.map_err(anyhow::Error::new)?;
        let seen = Seen {
            pending: arrival.fall.pending.as_ref().map(|(_, tail)| tail),
            local,
            own: has_own,
            staged: has_staged,
            served_before: arrival.fall.served_before,
        };
        match source(seen) {
            Source::Beginning => self.serve(arrival).await,
            Source::Foreign => {
                let message = format!(
                    "no box ever served this record, and {} or {} of bucket {}, or this box's disk, holds data of its host: \
                     another instance's; look whose it is, and remove it",
                    pair.source_prefix(),
                    pair.staging_prefix(),
                    own.bucket
                );
                self.hold(arrival, Obstacle::lasting("prefix_occupied", message)).await
            }
            Source::Missing(Missing::Staging) => {
                let message = format!(
                    "nothing is staged in {} of bucket {}, which the cut had proven: the source keeps its replica; point the \
                     record back to its region, or restore the staging from there",
                    pair.staging_prefix(),
                    own.bucket
                );
                self.hold(arrival, Obstacle::lasting("staging_missing", message)).await
            }
            Source::Missing(Missing::Anything) => {
                let message = format!(
                    "neither this box nor {} or {} of bucket {} holds a copy of an instance that was served before: it is \
                     not begun anew by itself",
                    pair.source_prefix(),
                    pair.staging_prefix(),
                    own.bucket
                );
                self.hold(arrival, Obstacle::lasting("nothing_to_restore", message)).await
            }
            wanted @ (Source::Pending(_) | Source::Local | Source::Own | Source::Staging) => {
                let Some(activator) = activator else {
                    let message = "this box cannot restore: it has no litestream (set node.litestream)".to_owned();
                    return self.hold(arrival, Obstacle::lasting("cannot_restore", message)).await;
                };
                match wanted {
                    Source::Pending(tail) => self.land_pending(arrival, activator, tail).await,
                    Source::Local => self.land_local(arrival, activator, has_own).await,
                    Source::Own => self.land_newest(arrival, activator, false).await,
                    Source::Staging | Source::Beginning | Source::Foreign | Source::Missing(_) => {
                        self.land_newest(arrival, activator, true).await
                    }
                }
            }
        }
    }

    /// Whether the host's own prefix, and its staging, hold anything: complete answers or an error.
    async fn look(&self, own: &Place, pair: &Pair) -> Result<(bool, bool), crate::objects::Error> {
        let has = async |prefix: &str| Ok(own.list(prefix).next_page().await?.is_some());
        Ok((has(pair.source_prefix()).await?, has(pair.staging_prefix()).await?))
    }

    async fn serve(&self, arrival: &Arrival<'_>) -> Result<Done, JobError> {
        let Arrival { id, fall, context } = *arrival;
        let landed = fall.pending.as_ref().map(|(landed, _)| *landed);
        let window = self.node.config().undo_window;
        crate::failpoint::hit("land.before_serve", fall.host.as_str()).await;
        let mut conn = self.connection().await?;
        let served = landing::serve(&mut conn, context.lease(), id, self.node.id(), landed, window).await;
        let served = told(context, served)?;
        conn.done(()).await.map_err(anyhow::Error::new)?;
        crate::failpoint::hit("land.after_serve", fall.host.as_str()).await;
        if !served {
            // The record went elsewhere while we restored: the next look says where.
            return Ok(Done::Snooze { after: RETRY });
        }
        tracing::info!(host = %fall.host, node.id = %self.node.id(), region = %self.node.region(), "landed: it serves");
        self.start(arrival).await;
        if landed.is_some() {
            return self.delete_staging(arrival).await;
        }
        Ok(Done::Complete(json!({"landed": true, "host": fall.host})))
    }

    /// Starts the child at once: the box's own loop would within a second. That it does not start fails no landing.
    async fn start(&self, arrival: &Arrival<'_>) {
        let fall = arrival.fall;
        let Some(activator) = self.node.activator().filter(|_| !fall.parked) else { return };
        let launch = activator::Launch { env: &fall.env, restarts: fall.restarts };
        let started = activator.start(&fall.host, launch, self.may_start(&fall.host)).await;
        match started {
            Ok(started) => {
                let told = self.publish(&fall.host, &started.address.to_string()).await;
                if let Err(error) = told {
                    tracing::warn!(host = %fall.host, error = %chain(&*error), "where it answers is not told yet");
                }
            }
            Err(activator::Error::NoProgram { .. }) => {}
            Err(error) => tracing::warn!(host = %fall.host, error = %chain(&error), "landed, and does not start yet"),
        }
    }

    async fn may_start(&self, host: &Host) -> anyhow::Result<bool> {
        let mut conn = db::session(&self.pool).await?;
        let may = instances::may_start(&mut conn, self.node.id(), host).await?;
        Ok(conn.done(may).await?)
    }

    async fn publish(&self, host: &Host, address: &str) -> anyhow::Result<()> {
        let mut conn = db::session(&self.pool).await?;
        instances::publish_address(&mut conn, self.node.id(), host, Some(address)).await?;
        Ok(conn.done(()).await?)
    }

    /// Says on the route what holds the landing up, and looks again later.
    async fn hold(&self, arrival: &Arrival<'_>, obstacle: Obstacle) -> Result<Done, JobError> {
        let Arrival { fall, context, .. } = *arrival;
        let Obstacle { code, message, permanent } = &obstacle;
        if fall.held.as_ref().is_none_or(|held| held.code != *code) {
            tracing::warn!(host = %fall.host, code, permanent, "landing is held up: {message}");
        }
        let mut conn = self.connection().await?;
        let held = landing::hold(&mut conn, context.lease(), &fall.host, self.node.id(), Some(&obstacle)).await;
        told(context, held)?;
        conn.done(()).await.map_err(anyhow::Error::new)?;
        Ok(Done::Snooze { after: if *permanent { HELD } else { RETRY } })
    }

    async fn connection(&self) -> Result<Session, JobError> {
        Ok(db::session(&self.pool).await.map_err(anyhow::Error::new)?)
    }
}

#[async_trait]
impl Job for InstanceLand {
    type Args = LandArgs;

    fn spec() -> KindSpec {
        land_spec()
    }

    async fn run(&self, args: LandArgs, context: JobContext) -> Result<Done, JobError> {
        context.check()?;
        let landing = {
            let mut conn = self.connection().await?;
            let landing = landing::land(&mut conn, context.lease(), args.instance_id, self.node.id()).await;
            let landing = told(&context, landing)?;
            conn.done(landing).await.map_err(anyhow::Error::new)?
        };
        // Whatever is left undone here, another region's or a later sweep's landing does.
        let result = match landing {
            Landing::Begun(fall) => {
                crate::failpoint::hit("land.after_mint", fall.host.as_str()).await;
                return self.arrive(&Arrival { id: args.instance_id, fall: &fall, context: &context }).await;
            }
            Landing::Serving { host, staged } => return self.clean(&host, &staged, &context).await,
            Landing::Elsewhere { node } => json!({"landed": false, "why": "served_elsewhere", "node_id": node}),
            Landing::OutOfScope { region } => json!({"landed": false, "why": "out_of_scope", "region": region}),
            // The other one's queue has it: not done, and at once.
            Landing::Left { .. } => return Ok(Done::Snooze { after: Duration::ZERO }),
            Landing::Purging => return Ok(Done::Snooze { after: RETRY }),
            Landing::Moving => json!({"landed": false, "why": "move_in_flight"}),
            Landing::Gone => json!({"landed": false, "why": "gone"}),
        };
        Ok(Done::Complete(result))
    }
}
