//! The two kinds of jobs that the records call for. Their handlers act; what they are called and how long they may
//! take is decided here, since records enqueue them in their own transactions (I2).

use serde::{Deserialize, Serialize};

use crate::ids::{InstanceId, MoveId, NodeId, QueueName, RegionCode};
use crate::queue::{Backoff, KindSpec, NewJob};

/// The kind that carries a move out, pass by pass, on the source box's own queue.
pub const MOVE_KIND: &str = "instance.move";
/// The kind by which a box takes an instance that is newly in scope, on its region's queue.
pub const LAND_KIND: &str = "instance.land";

/// The kind by which a box of the old region purges what a move left behind, once its time has come.
pub const PURGE_KIND: &str = "instance.purge";

/// Arguments of [`PURGE_KIND`].
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeArgs {
    /// The move that left it.
    pub move_id: MoveId,
    /// Where it left it.
    pub region: RegionCode,
}

/// The kind by which the box that serves an instance looks at what a move of it would meet in the stores; it changes nothing.
pub const REHEARSE_KIND: &str = "instance.rehearse";

/// Arguments of [`REHEARSE_KIND`].
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RehearseArgs {
    /// The record.
    pub instance_id: InstanceId,
    /// Where it would go.
    pub to: RegionCode,
}

/// Arguments of [`MOVE_KIND`].
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveArgs {
    /// The move.
    pub move_id: MoveId,
}

/// Arguments of [`LAND_KIND`].
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LandArgs {
    /// The record.
    pub instance_id: InstanceId,
}

/// What is known of [`MOVE_KIND`]: no deadline, since a first round may copy for hours; protected, since only the
/// move's own verbs end it.
#[must_use]
pub fn move_spec() -> KindSpec {
    KindSpec {
        deadline: None,
        protected: true,
        public: false,
        backoff: Backoff { cap: std::time::Duration::from_secs(300), ..Backoff::default() },
        ..KindSpec::new::<MoveArgs>(
            MOVE_KIND,
            "Moves an instance to another region: one run is one pass over its state.",
        )
    }
}

/// What is known of [`LAND_KIND`]: a landing restores what may be large, so it has no deadline either.
#[must_use]
pub fn land_spec() -> KindSpec {
    KindSpec {
        deadline: None,
        protected: true,
        public: false,
        backoff: Backoff { cap: std::time::Duration::from_secs(60), ..Backoff::default() },
        ..KindSpec::new::<LandArgs>(LAND_KIND, "Takes an instance that is newly in scope: mints its route on this box.")
    }
}

/// What is known of [`PURGE_KIND`].
#[must_use]
pub fn purge_spec() -> KindSpec {
    KindSpec {
        deadline: None,
        protected: true,
        public: false,
        backoff: Backoff { cap: std::time::Duration::from_secs(300), ..Backoff::default() },
        ..KindSpec::new::<PurgeArgs>(PURGE_KIND, "Purges the replica that a move left behind, with a receipt.")
    }
}

/// Failures after which a look into the stores is given up: somebody waits for it, and asks again.
const REHEARSALS: i32 = 3;

/// What is known of [`REHEARSE_KIND`].
#[must_use]
pub fn rehearse_spec() -> KindSpec {
    KindSpec {
        public: false,
        max_attempts: REHEARSALS,
        max_interruptions: REHEARSALS,
        ..KindSpec::new::<RehearseArgs>(
            REHEARSE_KIND,
            "Lists what a move of an instance would copy, and changes nothing: a dry run's look into the stores.",
        )
    }
}

/// The one look at a time for a move of a record to a region, on the box that serves it: who asks meanwhile shares it.
#[must_use]
pub fn rehearse_job(id: InstanceId, node: NodeId, to: &RegionCode) -> NewJob {
    NewJob::new(&rehearse_spec(), serde_json::json!(RehearseArgs { instance_id: id, to: to.clone() }))
        .on(QueueName::of_node(node))
        // The box is part of the key: a look that waits for one that died must not stand for the next one's.
        .unique(format!("{id}.{to}.{node}"))
}

/// The one purge of what a move left behind, for any capable box of its region.
#[must_use]
pub fn purge_job(id: MoveId, region: &RegionCode) -> NewJob {
    NewJob::new(&purge_spec(), serde_json::json!(PurgeArgs { move_id: id, region: region.clone() }))
        .on(QueueName::of_region(region))
        .unique(format!("{id}.{region}"))
}

/// The one job of a move.
#[must_use]
pub fn move_job(id: MoveId, node: NodeId) -> NewJob {
    NewJob::new(&move_spec(), serde_json::json!(MoveArgs { move_id: id }))
        .on(QueueName::of_node(node))
        .unique(id.to_string())
}

/// The one landing of a record at a time, for any capable box of the region.
#[must_use]
pub fn land_job(id: InstanceId, region: &RegionCode) -> NewJob {
    // The region is part of the key: a landing that waits in a region without boxes must not block one elsewhere.
    NewJob::new(&land_spec(), serde_json::json!(LandArgs { instance_id: id }))
        .on(QueueName::of_region(region))
        .unique(land_key(id, region))
}

/// What makes a landing unique.
#[must_use]
pub fn land_key(id: InstanceId, region: &RegionCode) -> String {
    format!("{id}.{region}")
}
