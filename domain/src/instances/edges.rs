//! What an edge and another region's box read of a region (M-049, M-050).

use serde::{Deserialize, Serialize};

use crate::ids::{Host, NodeId, RegionCode};
use crate::nodes::{Bucket, Capabilities};

/// Most routes, and most unserved hosts, that one document carries.
pub const MAX_HOSTS: usize = 100_000;

/// A region's edges document. Fields are only ever added: a document of an older version parses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgesDocument {
    /// The region.
    pub region: RegionCode,
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
    /// Hosts with a record here and no serving route: an edge answers 503 with Retry-After for them, 404 for others.
    #[serde(default)]
    pub unserved: Vec<Host>,
    /// Whether a list was cut at its limit: then a host that is missing here is not known to be absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl EdgesDocument {
    /// Where a move into this region stages (M-049); `None` while no box has published it.
    #[must_use]
    pub fn coordinates(&self) -> Option<Bucket> {
        Some(Bucket { name: self.data_bucket.clone()?, region: self.data_bucket_region.clone()? })
    }
}

/// A box of a region, as it published itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeBox {
    /// Its id.
    pub id: NodeId,
    /// Who it is.
    pub identity: String,
    /// Whether it was heard lately.
    #[serde(default)]
    pub live: bool,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Where it keeps replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket: Option<String>,
    /// The region that requests for that bucket are signed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bucket_region: Option<String>,
}

/// A host and the box that serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRoute {
    /// The host.
    pub host: Host,
    /// The box.
    pub node: NodeId,
    /// Where the instance answers, `host:port`; absent while its child does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}
