//! The shape of every message between a caller and the API, and a typed client.
//!
//! Requests refuse unknown fields; answers may grow, so readers ignore what they do not know. Field names are
//! snake_case, times RFC 3339 in UTC, durations end in `_ms` or `_seconds`, sizes in `_bytes`.

mod audit;
mod client;
mod health;
mod instances;
mod jobs;
mod keys;
mod limits;
mod moves;
mod nodes;
mod problem;
mod queues;
mod rehearsal;
mod reports;
mod standing;
mod why;

pub use audit::AuditEvent;
pub use client::{Answer, Client, Error, Fingerprint, JobFilter, MoveFilter};
pub use health::{Check, Readiness};
pub use instances::{
    Cut, CutRequest, EdgeBox, EdgeRoute, Edges, Environment, GivenUp, Instance, Move, MoveRequest, NewInstance,
    PointRequest, Pointed, Region, RegionRequest, UnstickRequest,
};
pub use jobs::{
    Attempt, Batch, BatchItem, Batched, Job, JobState, Lease, LogLine, MAX_BATCH_JOBS, NewJob, Progress, Reason, Step,
};
pub use keys::{IdentityKind, Key, KeyScopes, MadeKey, NewIdentity, NewKey};
pub use limits::{KindPause, Limits, LimitsRequest, Pause, QueueLimits, Rate, Resumed};
pub use moves::{MoveReceipt, MoveStep, MoveView, Obstacle, OldReplica, RoundNumbers, Tail};
pub use nodes::{
    ControlPlane, Enrolled, Enrolment, EnrolmentToken, EnrolmentTokenRequest, NewNode, Node, NodeNonce, NodeSession,
    NodeSessionRequest, RevokedToken,
};
pub use problem::{Code, FieldError, Problem};
pub use queues::{FencedWrite, Kind, Queue, ThroughputPoint, Worker};
pub use rehearsal::{
    FirstRound, FreezePart, LandingBox, LookAmount, LookReport, MoveGate, MoveLook, MoveRehearsal, PredictedFreeze,
};
pub use reports::{NewNodeReport, NodeRebuild, NodeReport, OwnedItem, ReportOutcome, TakenNodeReport};
pub use standing::{InstanceReason, InstanceWhy, Seat};
pub use why::{Why, WhyHolder, WhyReason};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Items of a list where the caller names no limit.
pub const DEFAULT_LIMIT: u16 = 50;
/// Most items of one page of a list.
pub const MAX_LIMIT: u16 = 200;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Pass it as `cursor` for the next page; null at the end.
    pub next_cursor: Option<String>,
}
