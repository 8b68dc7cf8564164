//! `instance.land`: a capable box of the region takes a record that is newly in scope.
//!
//! Its whole act is to mint the route: one write under the lease, so a landing that is repeated changes nothing.

use async_trait::async_trait;
use domain::db;
use domain::instances::jobs::{LandArgs, land_spec};
use domain::instances::{self, Landing};
use domain::queue::{KindSpec, Operation};
use serde_json::json;
use sqlx::PgPool;

use super::{Done, Environment, Job, JobContext, JobError};
use crate::node::NodeContext;

/// Mints routes on one box.
#[derive(Debug, Clone)]
pub struct InstanceLand {
    pool: PgPool,
    node: NodeContext,
}

impl InstanceLand {
    /// The job of this environment's box; `None` without one.
    #[must_use]
    pub fn of(environment: &Environment) -> Option<Self> {
        Some(Self { pool: environment.pool.clone(), node: environment.node.clone()? })
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
        let mut conn = db::session(&self.pool).await.map_err(anyhow::Error::new)?;
        let landing = match instances::land(&mut conn, context.lease(), args.instance_id, self.node.id()).await {
            Ok(landing) => conn.done(landing).await.map_err(anyhow::Error::new)?,
            Err(instances::Error::LeaseLost(_)) => {
                context.refused(Operation::Domain);
                return Err(JobError::LeaseLost);
            }
            Err(error) => return Err(anyhow::Error::new(error).into()),
        };
        // Whatever is left undone here, another region's or a later sweep's landing does.
        let result = match landing {
            Landing::Minted { host } => {
                tracing::info!(%host, node.id = %self.node.id(), region = %self.node.region(), "route minted");
                json!({"landed": true, "host": host})
            }
            Landing::Already { host } => json!({"landed": true, "host": host}),
            Landing::Elsewhere { node } => json!({"landed": false, "why": "served_elsewhere", "node_id": node}),
            Landing::OutOfScope { region } => json!({"landed": false, "why": "out_of_scope", "region": region}),
            Landing::Moving => json!({"landed": false, "why": "move_in_flight"}),
            Landing::Gone => json!({"landed": false, "why": "gone"}),
        };
        Ok(Done::Complete(result))
    }
}
