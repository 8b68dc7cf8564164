//! Regions, and the machines in them that host instances.
//!
//! # Consistency
//! A region's bucket is named first by an operator or by a box; a box that publishes another is refused, so that two
//! boxes of one region never keep replicas in two places. An operator corrects it while nothing uses the region. Whoever
//! begins to use a region raises its serial after that, in the same transaction, as does every change that boxes and
//! edges must notice: so a correction and a first use wait for each other at the region's row, and one sees the other.
//!
//! # Table order
//! Nodes before regions; a transaction that also touches instances and moves raises serials after those.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Timestamp;
use crate::ids::{NodeId, QueueName, RegionCode};

pub mod enrolment;
pub mod proof;
pub mod records;
pub mod reports;
mod store;

pub use store::{bump_serial, get, list, put_region, put_region_if, region, regions, register, seen};

/// A box that was not heard for so long hosts nothing new: six missed beats of ten seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(60);

/// Longest name of a region or a bucket, in characters.
pub const MAX_NAME_CHARS: usize = 200;

/// Where replicas stand: what the copy of an object must name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The bucket's name.
    pub name: String,
    /// The region that requests for it are signed for.
    pub region: String,
}

/// A region as an operator declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionSpec {
    /// Its code.
    pub code: RegionCode,
    /// Its name for people.
    pub name: String,
    /// Whether instances may be placed here.
    pub armed: bool,
    /// Whether it is hidden from pickers, although armed.
    pub dormant: bool,
    /// Whether it is marked as the region of the control plane itself; decides nothing.
    pub home: bool,
    /// Whether it is marked as the one to offer first; decides nothing, an instance names its region.
    pub is_default: bool,
    /// Its bucket, which can be another than before while nothing uses the region; `None` leaves what is known, and the
    /// first box to publish one decides.
    pub data: Option<Bucket>,
}

impl RegionSpec {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let data = self.data.as_ref();
        let names = [
            ("name", Some(&self.name)),
            ("data_bucket", data.map(|bucket| &bucket.name)),
            ("data_bucket_region", data.map(|bucket| &bucket.region)),
        ];
        let bad = |name: &&String| {
            !(1..=MAX_NAME_CHARS).contains(&name.chars().count()) || name.chars().any(char::is_control)
        };
        match names.into_iter().find(|(_, name)| name.as_ref().is_some_and(bad)) {
            Some((field, _)) => {
                Err(Error::Invalid { field, rule: "must have 1 to 200 characters, none of them a control character" })
            }
            None => Ok(()),
        }
    }
}

/// A region as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Its code.
    pub code: RegionCode,
    /// Its name for people.
    pub name: String,
    /// Whether instances may be placed here.
    pub armed: bool,
    /// Whether it is hidden from pickers, although armed.
    pub dormant: bool,
    /// Whether it is marked as the region of the control plane itself; decides nothing.
    pub home: bool,
    /// Whether it is marked as the one to offer first; decides nothing, an instance names its region.
    pub is_default: bool,
    /// Its bucket, once known.
    pub data: Option<Bucket>,
    /// Rises with every change that boxes and edges must notice.
    pub serial: i64,
    /// Whether some box that lives can host an instance (M-115).
    pub can_host: bool,
    /// To whom sealed values are sealed that those boxes open, sorted; empty where none of them holds a key (M-115).
    pub config_key: Vec<String>,
}

/// What a box can do, in its own words; what this version does not know is kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// It hosts instances that are backed by a child process.
    #[serde(default)]
    pub exec: bool,
    /// It opens sealed values: to whom they are sealed (`age1…`). Empty where it holds no key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_key: Vec<String>,
    /// The rest.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl Capabilities {
    /// All of them by name, in the words of the edges document.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, Value> {
        serde_json::from_value(serde_json::json!(self)).unwrap_or_default()
    }
}

/// A box as it presents itself at the start of its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// Who it is; the same after every restart.
    pub identity: String,
    /// Where it stands.
    pub region: RegionCode,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Where it keeps replicas (M-050).
    pub data: Option<Bucket>,
}

/// A box as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Who it is.
    pub identity: String,
    /// Where it stands.
    pub region: RegionCode,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Where it keeps replicas.
    pub data: Option<Bucket>,
    /// When it was last heard.
    pub seen_at: Timestamp,
    /// Whether it was heard within [`SILENT_AFTER`].
    pub live: bool,
    /// Routes that it serves.
    pub routes: i64,
}

impl Node {
    /// Whether it could land an instance, with sealed values or without (M-115): what makes a region able to host, of one box.
    #[must_use]
    pub const fn could_land(&self, sealed: bool) -> bool {
        self.live && self.capabilities.exec && (!sealed || !self.capabilities.config_key.is_empty())
    }

    /// The queues of its worker: its own, and its region's where it can host (M-115).
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        let mut queues = vec![QueueName::of_node(self.id)];
        if self.capabilities.exec {
            queues.push(QueueName::of_region(&self.region));
        }
        queues
    }
}

/// What uses a region. Each count stops at 1,000.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users {
    /// Boxes that stand there, heard or not.
    pub nodes: i64,
    /// One of them.
    pub node: Option<String>,
    /// Instances that are placed there, land there, or have a replica there.
    pub instances: i64,
    /// One of them, by its host.
    pub instance: Option<String>,
    /// Moves in flight from or to it.
    pub moves: i64,
}

impl Users {
    /// Whether nothing does.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes == 0 && self.instances == 0 && self.moves == 0
    }
}

impl std::fmt::Display for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |count: i64, one: &str, many: &str, name: Option<&str>| {
            let noun = if count == 1 { one } else { many };
            let name = name.map(|name| format!(" (e.g. {name})")).unwrap_or_default();
            (count > 0).then(|| format!("{count} {noun}{name}"))
        };
        let parts = [
            part(self.nodes, "node", "nodes", self.node.as_deref()),
            part(self.instances, "instance", "instances", self.instance.as_deref()),
            part(self.moves, "move in flight", "moves in flight", None),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Another bucket was declared for a region that is in use: its replicas would be split.
#[derive(Debug, thiserror::Error)]
#[error(
    "region {region} keeps its replicas in bucket {} ({}) and is in use, by {users}: its bucket changes only while \
     nothing uses it, so declare a region of another code for {} ({})",
    expected.name, expected.region, asked.name, asked.region
)]
pub struct InUse {
    /// The region.
    pub region: RegionCode,
    /// The region's bucket.
    pub expected: Bucket,
    /// What was asked for.
    pub asked: Bucket,
    /// What uses it.
    pub users: Users,
}

/// Why a region or a box was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such region.
    #[error("region {0} does not exist: an operator must declare it first")]
    RegionUnknown(RegionCode),
    /// The box is known in another region.
    #[error(
        "node {identity} stands in region {registered}, not {asked}: give the box in {asked} an identity of its own"
    )]
    RegionDiffers {
        /// The box.
        identity: String,
        /// Where it is known.
        registered: RegionCode,
        /// Where it says it is.
        asked: RegionCode,
    },
    /// A box published another bucket than the region's.
    #[error(
        "region {region} keeps its replicas in bucket {} ({}), not in {} ({}): correct the configuration of whoever differs",
        expected.name, expected.region, published.name, published.region
    )]
    BucketDiffers {
        /// The region.
        region: RegionCode,
        /// The region's bucket.
        expected: Bucket,
        /// What was published.
        published: Bucket,
    },
    /// Another bucket was declared for a region that is in use.
    #[error(transparent)]
    InUse(Box<InUse>),
    /// Another region is the default.
    #[error("another region is the default: take it from that one first")]
    DefaultTaken,
    /// The region changed since the caller read it.
    #[error("region {code} is not at serial {expected}: read it again")]
    Stale {
        /// The region.
        code: RegionCode,
        /// The serial that the caller expected.
        expected: i64,
    },
    /// A field is out of its bounds.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The rule in words.
        rule: &'static str,
    },
    /// The database's.
    #[error("use the tables of nodes and regions")]
    Store(#[from] sqlx::Error),
}
