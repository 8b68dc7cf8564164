//! A configuration that this box cannot open: nothing is restored here, and another box may.

use std::time::Duration;

use domain::instances::config_key;
use domain::instances::moves::Obstacle;

use super::{Arrival, HELD, InstanceLand, RETRY};
use crate::activator::Unopened;
use crate::jobs::instance_move::told;
use crate::jobs::{Done, JobError};

impl InstanceLand {
    /// Whether the sealed values of the record open here. A box that runs no instances holds no key.
    pub(super) fn opens(&self, arrival: &Arrival<'_>) -> Result<(), Unopened> {
        let keys = self.node.activator().and_then(|activator| activator.config_key());
        domain::instances::sealed::open(&arrival.fall.env, keys).map(drop)
    }

    /// Says on the route what does not open, and leaves the landing to the next box of the region that holds a key. Where
    /// there is none, this one looks again: its key, or another's, may have come by then.
    pub(super) async fn hand_on(&self, arrival: &Arrival<'_>, unopened: &Unopened) -> Result<Done, JobError> {
        let Arrival { id, fall, context } = *arrival;
        let message = format!("box {} lands nothing: {unopened}", self.node.identity());
        let again = fall.held.as_ref().is_some_and(|held| held.code == config_key::CODE);
        if !again {
            tracing::warn!(host = %fall.host, code = config_key::CODE, permanent = true, "landing is held up: {message}");
        }
        let obstacle = Obstacle::lasting(config_key::CODE, message);
        let mut conn = self.connection().await?;
        let next = config_key::hand_on(&mut conn, context.lease(), (id, &fall.host), self.node.id(), &obstacle).await;
        let next = told(context, next)?;
        conn.done(()).await.map_err(anyhow::Error::new)?;
        Ok(Done::Snooze {
            after: match next {
                // The first round goes without a pause: the instance is frozen all the while.
                Some(next) if !next.tried => Duration::ZERO,
                Some(_) => RETRY,
                None => HELD,
            },
        })
    }
}
