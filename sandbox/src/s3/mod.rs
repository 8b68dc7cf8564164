//! An S3 server in this process, on loopback, with faults on demand.
//!
//! The protocol and the signatures are `s3s`'s; the objects are kept here, in memory or in a folder,
//! under a sorted index: a page of a listing costs what it carries, and a conditional write is
//! decided and done in one step. (The file-system backend that goes with `s3s` walks the whole
//! folder for every page, lists no ETags, lets `..` in a key escape its bucket, and lost a race of
//! conditional puts.)
//!
//! As S3, and tested: conditional puts, deletes and copies; copies that keep content type and
//! metadata, and change the ETag of an object uploaded in parts; ranges in part copies; size limits
//! of copies and parts (lowered by tests); `encoding-type=url`; checksums; 200 answers with an error
//! in the body. Stricter than S3: keys with an empty, `.` or `..` segment or control bytes are
//! refused with 400, also as a copy's source. Absent: versioning, tags, ACLs, encryption, presigned
//! forms.

mod body;
mod disk;
mod faults;
mod gate;
mod hold;
mod http;
mod keys;
mod listing;
mod objects;
mod ops;
mod service;
mod store;

pub use crate::identity::{Action, Identity};
pub use faults::{Call, Fault, Faults, Rule, RuleId};
pub use hold::{Gate, Hold};
pub use objects::{Objects, Stat};
pub use store::Attributes;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use s3s::service::S3ServiceBuilder;

use gate::{Auth, Identities};
use service::{Limits, Service};
use store::Store;

/// The largest object that S3 copies in one call.
pub const DEFAULT_COPY_LIMIT: u64 = 5 * 1024 * 1024 * 1024;
/// The smallest part of a multipart upload that is not its last.
pub const DEFAULT_MIN_PART: u64 = 5 * 1024 * 1024;

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The folder that keeps the objects between runs; absent, they are in memory and gone with the
    /// server.
    pub root: Option<PathBuf>,
    /// Buckets that exist from the start.
    pub buckets: Vec<String>,
    /// Key pairs. The first is what [`Server::access_key`] gives; when there is none, an
    /// administrator's pair is drawn.
    pub credentials: Vec<Identity>,
    /// The loopback port; any free one when absent.
    pub port: Option<u16>,
}

/// Why the server is not there.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be used, or another server uses it.
    #[error("open the S3 folder {path:?}")]
    Open {
        /// Which; none for memory.
        path: Option<PathBuf>,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The port cannot be had.
    #[error("listen for S3 on 127.0.0.1 (port {port:?})")]
    Listen {
        /// The port asked for.
        port: Option<u16>,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A running server. It ends, with every connection, when it is dropped.
pub struct Server {
    listening: http::Listening,
    service: Service,
    first: Identity,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the objects and listens. When it returns, requests are answered.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        let opening = |source| StartError::Open { path: options.root.clone(), source };
        let store = Store::open(options.root.as_deref()).map_err(opening)?;
        for bucket in &options.buckets {
            store.create_bucket(bucket).map_err(opening)?;
        }
        let mut credentials = options.credentials.clone();
        if credentials.is_empty() {
            let draw = || format!("{:032x}", fastrand::u128(..));
            credentials.push(Identity::admin(&format!("SANDBOX{}", &draw()[..13]), &draw()));
        }
        let first = credentials[0].clone();
        let identities = Arc::new(Identities::default());
        for identity in credentials {
            identities.add(identity);
        }
        let limits = Limits { copy: AtomicU64::new(DEFAULT_COPY_LIMIT), min_part: AtomicU64::new(DEFAULT_MIN_PART) };
        let service = Service {
            store: Arc::new(store),
            faults: Faults::default(),
            identities: Arc::clone(&identities),
            limits: Arc::new(limits),
        };
        let mut builder = S3ServiceBuilder::new(service.clone());
        builder.set_auth(Auth(identities));
        // Rights are decided at the gate, where they are decided for each key of a batch as well.
        builder.set_access(gate::Open);
        let listening = http::Listening::start(builder.build(), options.port)
            .map_err(|source| StartError::Listen { port: options.port, source })?;
        Ok(Self { listening, service, first })
    }

    /// The endpoint's URL; buckets are addressed by path.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.listening.address)
    }

    /// The loopback port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listening.address.port()
    }

    /// The first identity's access key.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.first.access_key
    }

    /// The first identity's secret key.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        &self.first.secret_key
    }

    /// Adds a key pair, or changes the rights of one.
    pub fn add_identity(&self, identity: Identity) {
        self.service.identities.add(identity);
    }

    /// Takes a key pair away: its next request is refused.
    pub fn revoke(&self, access_key: &str) {
        self.service.identities.revoke(access_key);
    }

    /// The faults, hooks and records.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.service.faults.clone()
    }

    /// The objects themselves, past the protocol: no call is recorded, no fault strikes.
    #[must_use]
    pub fn objects(&self) -> Objects {
        Objects::new(Arc::clone(&self.service.store))
    }

    /// Lowers (or raises) the largest size in bytes that one `CopyObject`, or one range of an
    /// `UploadPartCopy`, may take.
    pub fn set_copy_limit(&self, bytes: u64) {
        self.service.limits.copy.store(bytes, Ordering::Relaxed);
    }

    /// Lowers (or raises) the smallest size in bytes of a part that is not an upload's last.
    pub fn set_min_part(&self, bytes: u64) {
        self.service.limits.min_part.store(bytes, Ordering::Relaxed);
    }
}
