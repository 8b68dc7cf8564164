//! The box: who it is, where its replicas stand, and the stores that it reaches.
//!
//! # Consistency
//! A box publishes its region's bucket when it registers; one that publishes another is refused before it does any
//! work (M-050). It acts only on records of its own region whose route is its own (M-037, M-038); that is decided under
//! a lease, in the database.
//!
//! # Crash consistency
//! The same identity is the same box after every restart. What a box forgot, its sweeps find again: moves without a
//! job, records without a route.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::db;
use domain::ids::{NodeId, QueueName, RegionCode};
use domain::instances::sealed::Keys;
use domain::nodes::{self, Bucket, Capabilities, Node, NodeSpec};
use sqlx::PgPool;
use tokio::sync::Mutex;

use crate::activator::{self, Activator};
use crate::mirror::{self, Place};
use crate::objects::{CopyLimits, Endpoint, LimitSettings, ObjectStore, Tuning};

mod config_key;
pub mod enrolment;
mod keeper;
pub mod rebuild;

pub use config_key::{ConfigKeyError, read_config_key};
pub use keeper::{Kept, beat, keep, sweep};

/// The place that a URL may carry for stores with an address for each region, e.g. `https://s3.{region}.example.com`.
const REGION_MARK: &str = "{region}";

/// How a box is set up.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Who it is; the same after every restart.
    pub identity: String,
    /// Where it stands.
    pub region: RegionCode,
    /// The bucket of its replicas: its region's.
    pub data_bucket: String,
    /// The region that requests for that bucket are signed for.
    pub data_bucket_region: String,
    /// The store of that bucket, and who the box is to it. A URL may carry `{region}`, which stands for the bucket's
    /// region; the stores of other regions are reached by the same URL with theirs, and with the same key.
    pub s3: Endpoint,
    /// The folder of everything that the box keeps; difference sets spill below it.
    pub data_dir: PathBuf,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The wait between two rounds of a move.
    pub round_interval: Duration,
    /// Bounds of one round.
    pub mirror: mirror::Settings,
    /// Bounds of every request to a store.
    pub tuning: Tuning,
    /// Copies at once, of all moves together.
    pub limits: LimitSettings,
    /// How long the replica that a move left behind is kept after its landing serves; zero purges it right away.
    pub undo_window: Duration,
    /// How the box runs its instances; `None` where it only moves data.
    pub activator: Option<activator::Settings>,
}

impl NodeConfig {
    /// A box that hosts children, with every bound at its default.
    #[must_use]
    pub fn new(identity: impl Into<String>, region: RegionCode, data: Bucket, s3: Endpoint, data_dir: PathBuf) -> Self {
        Self {
            identity: identity.into(),
            region,
            data_bucket: data.name,
            data_bucket_region: data.region,
            s3,
            data_dir,
            capabilities: Capabilities { exec: true, ..Capabilities::default() },
            round_interval: domain::instances::moves::policy::ROUND_INTERVAL,
            mirror: mirror::Settings::default(),
            tuning: Tuning::default(),
            limits: LimitSettings::default(),
            undo_window: domain::instances::moves::policy::UNDO_WINDOW,
            activator: None,
        }
    }
}

/// Why a box could not begin.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The database refused it, or did not answer.
    #[error("register the node")]
    Register(#[from] nodes::Error),
    /// Its folder cannot be made.
    #[error("make the node's folder {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What runs its instances cannot begin.
    #[error("open the node's activator")]
    Activator(#[from] activator::Error),
}

impl NodeError {
    /// Whether the same start may succeed later without anybody's doing: the database did not answer.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Register(nodes::Error::Store(error)) => domain::db::unavailable(error),
            Self::Register(
                nodes::Error::RegionUnknown(_)
                | nodes::Error::RegionDiffers { .. }
                | nodes::Error::BucketDiffers { .. }
                | nodes::Error::InUse(_)
                | nodes::Error::DefaultTaken
                | nodes::Error::Stale { .. }
                | nodes::Error::Invalid { .. },
            )
            | Self::Folder { .. }
            | Self::Activator(_) => false,
        }
    }
}

/// A registered box. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: Node,
    config: NodeConfig,
    own: Bucket,
    limits: Arc<CopyLimits>,
    activator: Option<Activator>,
    /// One client for each region that requests are signed for.
    stores: Mutex<HashMap<String, ObjectStore>>,
}

impl NodeContext {
    /// Registers the box, which publishes its region, bucket and capabilities; sends nothing to a store.
    ///
    /// # Errors
    /// [`NodeError`]; [`NodeError::is_transient`] tells whether waiting helps.
    pub async fn register(pool: &PgPool, mut config: NodeConfig) -> Result<Self, NodeError> {
        let spill = config.data_dir.join("spill");
        tokio::fs::create_dir_all(&spill).await.map_err(|source| NodeError::Folder { path: spill.clone(), source })?;
        config.mirror.spill_folder.get_or_insert(spill);
        let own = Bucket { name: config.data_bucket.clone(), region: config.data_bucket_region.clone() };
        // What it holds, whatever was said: a box that promises a key without one would be handed landings in vain.
        let keys = config.activator.as_ref().and_then(|settings| settings.config_key.as_ref());
        config.capabilities.config_key = keys.map(Keys::recipients).unwrap_or_default();
        let spec = NodeSpec {
            identity: config.identity.clone(),
            region: config.region.clone(),
            capabilities: config.capabilities.clone(),
            data: Some(own.clone()),
        };
        let mut conn = db::session(pool).await.map_err(nodes::Error::Store)?;
        let node = nodes::register(&mut conn, &spec).await?;
        let node = conn.done(node).await.map_err(nodes::Error::Store)?;
        tracing::info!(
            node.id = %node.id,
            node.identity = node.identity,
            region = %node.region,
            data_bucket = own.name,
            "node registered"
        );
        let limits = CopyLimits::new(config.limits);
        let activator = match config.activator.clone() {
            Some(settings) => {
                let store = open_store(&config, &limits, &own.region).await;
                Some(Activator::open(settings, Place { store, bucket: own.name.clone() })?)
            }
            None => None,
        };
        Ok(Self { inner: Arc::new(Inner { node, config, own, limits, activator, stores: Mutex::default() }) })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.node.id
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.inner.node.identity
    }

    /// Where it stands.
    #[must_use]
    pub fn region(&self) -> &RegionCode {
        &self.inner.node.region
    }

    /// How it is set up.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.inner.config
    }

    /// What runs its instances, where the box is set up for that.
    #[must_use]
    pub fn activator(&self) -> Option<&Activator> {
        self.inner.activator.as_ref()
    }

    /// The queues that its worker serves: its own, and its region's where it can host.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        self.inner.node.queues()
    }

    /// Where its own replicas stand.
    pub async fn own(&self) -> Place {
        self.place(&self.inner.own).await
    }

    /// A bucket of any region, reached with the box's own key.
    pub async fn place(&self, bucket: &Bucket) -> Place {
        let mut stores = self.inner.stores.lock().await;
        if let Some(store) = stores.get(&bucket.region) {
            return Place { store: store.clone(), bucket: bucket.name.clone() };
        }
        let store = open_store(&self.inner.config, &self.inner.limits, &bucket.region).await;
        stores.insert(bucket.region.clone(), store.clone());
        Place { store, bucket: bucket.name.clone() }
    }
}

/// A client for the buckets of one of the store's regions, with the box's own key.
async fn open_store(config: &NodeConfig, limits: &Arc<CopyLimits>, region: &str) -> ObjectStore {
    ObjectStore::open(&endpoint_in(&config.s3, region), config.tuning, Arc::clone(limits)).await
}

/// The store as it is reached in one of its regions: its URL may carry `{region}`.
#[must_use]
pub fn endpoint_in(s3: &Endpoint, region: &str) -> Endpoint {
    let url = s3.url.as_ref().map(|url| url.replace(REGION_MARK, region));
    Endpoint { url, region: region.to_owned(), ..s3.clone() }
}
