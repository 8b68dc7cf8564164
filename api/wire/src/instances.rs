//! Instances, their moves, regions and what the edges serve.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Obstacle;

/// An instance's record: fixed fields in this order, `move` only while one is in flight, then whatever else the record
/// carries, in the order of the names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its host: the name under which it is reached.
    pub host: String,
    /// Its application.
    pub app: String,
    /// What it is, e.g. `instance`.
    pub kind: String,
    /// What runs it, e.g. `exec`.
    pub backing: String,
    /// `original` or `replica`.
    pub role: String,
    /// Where it is placed apart from its region, e.g. a fleet.
    pub placement: Option<String>,
    /// Its pool; empty for none.
    pub pool: String,
    /// Whether it sleeps when nobody asks for it.
    pub hibernate: bool,
    /// Whether it is not to run until somebody wakes it.
    #[serde(default)]
    pub parked: bool,
    /// Its region: where its data is written.
    pub region: String,
    /// Where the box stands that has it: that serves it, lands it, or served it until its cut; null while none has it. It
    /// differs from `region` only around a cut: `GET …/why` says so.
    pub observed_region: Option<String>,
    /// Regions that keep copies.
    pub replica_regions: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Counts every change; also the `ETag`.
    pub revision: i64,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// What holds its landing up, or its start; or that nothing of what it writes is replicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Obstacle>,
    /// The move in flight.
    #[serde(rename = "move", default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Move>,
    /// What else the record carries.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub extra: BTreeMap<String, Value>,
}

/// A move in flight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The target region.
    pub to: String,
    /// `preparing`, `ready`, `cutting` or `aborting`.
    pub state: String,
    /// When it was asked for.
    pub requested_at: DateTime<Utc>,
    /// When the staged copy first equalled the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<DateTime<Utc>>,
}

/// Asks for a move.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The target region's code.
    #[schema(example = "uk")]
    pub region: String,
    /// `auto`: the platform cuts by itself as soon as the move is ready, for tenants that cannot freeze their own writes.
    /// `manual`, or absent: the move waits for its cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// The longest freeze, in whole seconds, that the cut may be predicted to take: over it a cut is refused unless it is
    /// forced, and a move with `"cut": "auto"` waits. Absent: any. Where no cut between the two regions predicts
    /// anything yet, it refuses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400, example = 10)]
    pub freeze_budget: Option<u32>,
    /// Begins nothing, and tells what the move would meet: every gate of the door, the predicted freeze, the boxes that could
    /// land it, and, once the source's box has looked, what is to be copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Asks for a cut; an empty body is one without force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CutRequest {
    /// Also where the predicted freeze is over the move's `freeze_budget`.
    #[serde(default)]
    pub force: bool,
}

/// Points an instance to a region by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PointRequest {
    /// The region's code.
    #[schema(example = "eu")]
    pub region: String,
    /// The instance's host, typed once more.
    pub host: String,
    /// Why; it stands in the audit trail.
    pub reason: String,
}

/// What pointing an instance by hand came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pointed {
    /// Where it was.
    pub from: String,
    /// Where it is.
    pub to: String,
    /// The landing that was given up, if one was pending.
    pub given_up: Option<GivenUp>,
}

/// A landing that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GivenUp {
    /// Its move.
    pub move_id: Uuid,
    /// The newest transaction that its cut had proven, 16 hexadecimal digits. The region that the record is pointed to
    /// restores what it has, which is at most this if it is where the move began.
    pub txid: String,
}

/// Takes back a cut that hangs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnstickRequest {
    /// The instance's host, typed once more.
    pub host: String,
    /// Why; it stands in the audit trail.
    pub reason: String,
}

/// Who lets a move be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The tenant, by the verb `cut`.
    Manual,
    /// The platform, as soon as it is ready.
    Auto,
}

/// An instance to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    /// Its host.
    #[schema(example = "ledger.acme.example")]
    pub host: String,
    /// Its region's code.
    #[schema(example = "eu")]
    pub region: String,
    /// What it is; `instance` where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What runs it; `exec` where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
    /// `original` where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// A fleet's placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Whether it sleeps when nobody asks for it; true where not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate: Option<bool>,
    /// Regions that keep copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replica_regions: Vec<String>,
    /// Its environment. A value that begins with `age:` is sealed: only the box opens it, for the child alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// The environment of an instance's child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// All of it. A value that begins with `age:` is sealed: only the box opens it, for the child alone.
    pub env: BTreeMap<String, String>,
}

impl NewInstance {
    /// An instance of the ordinary kind, with nothing said that has a default.
    #[must_use]
    pub fn new(host: impl Into<String>, region: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            region: region.into(),
            kind: None,
            backing: None,
            role: None,
            placement: None,
            pool: None,
            hibernate: None,
            replica_regions: Vec::new(),
            env: BTreeMap::new(),
        }
    }
}

/// A region. What only operators see is absent for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Region {
    /// Its code.
    pub code: String,
    /// Its name for people.
    pub name: String,
    /// Whether instances may be created in it and moved to it.
    pub armed: bool,
    /// Whether a box there can host instances now.
    pub can_host: bool,
    /// To whom values of `env` are sealed that such a box opens now (age recipients, `age1…`); empty where none holds a key.
    /// Seal to all of a region's, and to those of the region that the instance is to move to.
    #[serde(default)]
    pub config_key: Vec<String>,
    /// Whether it is marked as the region of the control plane itself; decides nothing.
    pub home: bool,
    /// Whether it is marked as the one to offer first; decides nothing, an instance names its region.
    pub default: bool,
    /// Armed, but hidden from pickers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dormant: Option<bool>,
    /// The bucket of its instances' data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket: Option<String>,
    /// The bucket's own region, as S3 names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket_region: Option<String>,
    /// Rises with every change that boxes and edges must notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<i64>,
}

/// Defines a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionRequest {
    /// Its name for people.
    pub name: String,
    /// Whether instances may be created in it and moved to it.
    pub armed: bool,
    /// Armed, but hidden from pickers.
    #[serde(default)]
    pub dormant: bool,
    /// Whether it is marked as the region of the control plane itself; decides nothing.
    #[serde(default)]
    pub home: bool,
    /// Whether it is marked as the one to offer first; decides nothing, an instance names its region.
    #[serde(default)]
    pub default: bool,
    /// The bucket of its instances' data.
    pub data_bucket: String,
    /// The bucket's own region, as S3 names it.
    pub data_bucket_region: String,
}

/// What the edges of a region serve, and where its boxes keep replicas. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Edges {
    /// The region.
    pub region: String,
    /// Rises with every change.
    pub serial: i64,
    /// Where its boxes keep replicas; absent until one of them published it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket: Option<String>,
    /// The region that requests for that bucket are signed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket_region: Option<String>,
    /// Its boxes, by identity.
    #[serde(default)]
    pub boxes: Vec<EdgeBox>,
    /// Hosts that are served, by host.
    #[serde(default)]
    pub routes: Vec<EdgeRoute>,
    /// Hosts with a record here and no serving route: answer 503 with Retry-After for them, 404 for others.
    #[serde(default)]
    pub unserved: Vec<String>,
    /// Whether a list was cut at its limit: then a host that is missing here is not known to be absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// A box of a region, as it published itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EdgeBox {
    /// Its id.
    pub id: Uuid,
    /// Who it is.
    pub identity: String,
    /// Whether it was heard lately.
    #[serde(default)]
    pub live: bool,
    /// What it can do, in its own words.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub capabilities: BTreeMap<String, Value>,
    /// Where it keeps replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket: Option<String>,
    /// The region that requests for that bucket are signed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket_region: Option<String>,
}

/// A host and the box that serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EdgeRoute {
    /// The host.
    pub host: String,
    /// The box.
    pub node: Uuid,
    /// Where the instance answers, `host:port`; absent while its child does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}
