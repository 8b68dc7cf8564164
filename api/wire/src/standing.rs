//! Why an instance is where it is.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{MoveStep, MoveView, Progress};

/// Why an instance is where it is, and what holds its move, its cut or its landing up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceWhy {
    /// Its application.
    pub app: String,
    /// Its host.
    pub host: String,
    /// The moment of the answer, on the database's clock.
    pub now: DateTime<Utc>,
    /// `unplaced`, `serving`, `preparing`, `ready`, `cutting`, `aborting` or `landing`.
    pub phase: String,
    /// Its region: where its data is written.
    pub region: String,
    /// Where the box stands that has it: that serves it, lands it, or served it until its cut.
    pub observed_region: Option<String>,
    /// The box that has it.
    #[serde(rename = "box")]
    pub seat: Option<Seat>,
    /// Whether it is not to run until somebody wakes it.
    pub parked: bool,
    /// Its newest move, in flight or over.
    #[serde(rename = "move")]
    pub moving: Option<MoveView>,
    /// The newest rows of that move's journal, newest first: 20 at most.
    pub steps: Vec<MoveStep>,
    /// The live job that carries out its move or its landing.
    pub job_id: Option<Uuid>,
    /// How far the job is that runs for it.
    pub progress: Option<Progress>,
    /// Since when nobody serves it because of its move.
    pub frozen_since: Option<DateTime<Utc>>,
    /// How long the newest cuts between these regions took from the verb until the target served, the median,
    /// milliseconds; null where there were none.
    pub predicted_freeze_ms: Option<i64>,
    /// At least one; the one to act on first stands first.
    #[schema(min_items = 1)]
    pub reasons: Vec<InstanceReason>,
}

/// The box that has an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Seat {
    /// Its id.
    pub node_id: Uuid,
    /// Who it is.
    pub identity: String,
    /// Where it stands.
    pub region: String,
    /// Whether it was heard lately.
    pub live: bool,
    /// When it was heard last.
    pub seen_at: DateTime<Utc>,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceReason {
    /// Stable, e.g. `busy`, `child_hangs`, `staging_missing` or `box_silent`; docs/runbooks/moves.md explains each. More may
    /// come.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to do about it; null where there is nothing to do.
    pub todo: Option<String>,
    /// Whether somebody must act before it goes on.
    pub permanent: bool,
    /// Since when.
    pub since: Option<DateTime<Utc>>,
    /// When it is looked at again by itself.
    pub until: Option<DateTime<Utc>>,
    /// The job that it is about.
    pub job_id: Option<Uuid>,
}
