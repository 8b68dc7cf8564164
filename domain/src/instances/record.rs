//! The instance record in its canonical form: one order of fields, whoever writes it (M-001…M-006).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::moves::StoredState;
use crate::clock::Timestamp;
use crate::ids::{AppName, Host, RegionCode};

/// What kind of thing a record describes; only [`InstanceKind::Instance`] can move (M-020, M-024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum InstanceKind {
    /// A child process with a database of its own.
    Instance,
    /// A unit of the box's service manager.
    Unit,
    /// A fixed address.
    Addr,
    /// Files.
    Static,
    /// Served on every box.
    Everywhere,
}

impl InstanceKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Instance, Self::Unit, Self::Addr, Self::Static, Self::Everywhere];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Unit => "unit",
            Self::Addr => "addr",
            Self::Static => "static",
            Self::Everywhere => "everywhere",
        }
    }
}

impl std::fmt::Display for InstanceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an instance is the one that is written, or follows another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum Role {
    /// It is written.
    Original,
    /// It follows another.
    Replica,
}

/// The record's `move`: present only while one is in flight (M-001), with exactly these fields (M-003).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RecordMove {
    /// Where it goes.
    pub to: RegionCode,
    /// How far it is. A word that this version does not know is kept, and nobody acts on it (M-004).
    #[schemars(with = "super::moves::MoveState")]
    pub state: StoredState,
    /// When it was asked for; fixed for the move (M-005).
    pub requested_at: Timestamp,
    /// When it first was ready; absent before, kept afterwards (M-006).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
}

/// What holds a landing up, or a start: present only while something does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RecordHeld {
    /// Stable, e.g. `staging_missing`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether somebody must act before it goes on.
    pub permanent: bool,
    /// Since when.
    pub since: Timestamp,
}

/// An instance record.
///
/// The fields are written in the order in which they stand here; what this version does not know comes last, sorted.
/// Fields beyond the first four are optional on the way in, and stay absent on the way out, so that a record of an
/// older version passes through unchanged (M-002, M-012). Whoever answers from the database fills all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its host name, which is its identity.
    pub host: Host,
    /// The application that it belongs to.
    pub app: AppName,
    /// What it is.
    pub kind: InstanceKind,
    /// What runs it: `exec` is a child process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
    /// Whether it is written, or follows another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// How its boxes are chosen: `null` by hand of the region, or `fleet`.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub placement: Option<Option<String>>,
    /// The pool of boxes that it is bound to; empty for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Whether it may be parked while nobody asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate: Option<bool>,
    /// Whether it is not to run until somebody wakes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<bool>,
    /// Where it may be written: the source until a cut completes (M-007).
    pub region: RegionCode,
    /// Where the box stands that has it: that serves it, lands it, or served it until its cut; `null` while none has it.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    pub observed_region: Option<Option<RegionCode>>,
    /// Regions that keep a readable copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_regions: Option<Vec<RegionCode>>,
    /// The tenant's own environment of the child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Counts every change of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// When it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// What holds its landing up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<RecordHeld>,
    /// The move in flight.
    #[serde(rename = "move", default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<RecordMove>,
    /// What this version does not know.
    #[serde(flatten, serialize_with = "sorted")]
    pub extra: BTreeMap<String, Value>,
}

/// Tells `null` from absent.
fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// Sorted to the bottom: the database keeps the inner fields in an order of its own.
fn sorted<S: Serializer>(extra: &BTreeMap<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(extra.iter().map(|(name, value)| (name, sort(value))))
}

fn sort(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> = fields.iter().map(|(name, inner)| (name, sort(inner))).collect();
            Value::Object(fields.into_iter().map(|(name, inner)| (name.clone(), inner)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sort).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
