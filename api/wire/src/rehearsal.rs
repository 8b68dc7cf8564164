//! A move's dry run.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Obstacle;

/// What a move would meet; nothing of it was begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveRehearsal {
    /// The instance's application.
    pub app: String,
    /// The instance's host.
    pub host: String,
    /// Where the move would begin.
    pub from: String,
    /// Where it would go, as it was asked.
    pub to: String,
    /// Whether the door would take it now: no gate refuses.
    pub would_begin: bool,
    /// Every gate of the door, in the order in which a move asks them.
    pub gates: Vec<MoveGate>,
    /// How long its cut would freeze the instance; null where no cut between the two regions predicts it.
    pub predicted_freeze: Option<PredictedFreeze>,
    /// The budget that was asked for, whole seconds.
    pub freeze_budget: Option<u32>,
    /// Whether the predicted freeze is within it; null where one of the two is missing.
    pub within_budget: Option<bool>,
    /// The boxes of the target region, by identity.
    pub boxes: Vec<LandingBox>,
    /// The look of the source's box into the stores, which is on its way: `GET …/move/rehearsals/{job_id}` tells what it
    /// found. Null where no box serves the instance, or the region is not known.
    pub look: Option<MoveLook>,
}

/// A gate of a move's door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveGate {
    /// Stable, e.g. `region_armed`. More may come.
    pub gate: String,
    /// `passed`, `refused`, or `unasked` where another gate must open first.
    pub verdict: String,
    /// The code with which a move would be refused.
    pub code: Option<String>,
    /// Why, for people.
    pub message: Option<String>,
}

/// A predicted freeze, and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PredictedFreeze {
    /// The median of the newest cuts between the two regions, from the verb until the target served, milliseconds.
    pub freeze_ms: i64,
    /// How many cuts it is the median of: 20 at most.
    pub cuts: u32,
    /// The move whose cut it is.
    pub as_of: Uuid,
    /// What that cut was made of, in the order in which each part first ran; together they are the freeze.
    pub parts: Vec<FreezePart>,
}

/// A part of a freeze.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FreezePart {
    /// The step, as the move's journal names it; `between` is the time in which none ran.
    pub step: String,
    /// How long it took, all tries together, milliseconds.
    pub took_ms: i64,
}

/// A box of the target region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LandingBox {
    /// Its id.
    pub node_id: Uuid,
    /// Who it is.
    pub identity: String,
    /// Whether it could land the instance: it lives, hosts what is backed by a process, and opens sealed values (`config_key`)
    /// where the instance has some.
    pub could_land: bool,
    /// Whether it was heard lately.
    pub live: bool,
    /// When it was heard last.
    pub seen_at: DateTime<Utc>,
    /// What it can do, in its own words, as the edges document has it.
    #[schema(value_type = Object)]
    pub capabilities: BTreeMap<String, Value>,
}

/// A box's look at what a move would copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveLook {
    /// Its job, on the queue of the box that serves the instance.
    pub job_id: Uuid,
    /// The region for which it looks.
    pub to: String,
    /// `waiting` until the box has told, `told`, or `failed`.
    pub state: String,
    /// Why it failed.
    pub error: Option<String>,
    /// What it found.
    pub report: Option<LookReport>,
}

/// What a box found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LookReport {
    /// The box that looked.
    pub node_id: Uuid,
    /// Who it is.
    pub identity: String,
    /// What of the replica takes part in a move; null where it is not known, for what `obstacle` says.
    pub source: Option<LookAmount>,
    /// The newest transaction that its keys name.
    pub newest_txid: Option<u64>,
    /// What lies at the target's staging already; null where it is not known, for what `obstacle` says.
    pub staged: Option<LookAmount>,
    /// What the first round would do; null where something holds it up.
    pub first_round: Option<FirstRound>,
    /// What would hold the first round up, by the codes of `…/why`.
    pub obstacle: Option<Obstacle>,
    /// Requests that the look itself made.
    pub requests: u64,
    /// How long it took, milliseconds.
    pub elapsed_ms: u64,
}

/// Objects, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LookAmount {
    /// How many.
    pub keys: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// The first round of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FirstRound {
    /// What it would copy: the whole replica, since what is staged already proves nothing.
    pub copies: LookAmount,
    /// Objects of the staging that it would delete.
    pub deletes: u64,
    /// Requests to both stores, the listing that finds no difference included, none repeated.
    pub requests: u64,
}
