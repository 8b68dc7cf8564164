//! What the activator is told.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use domain::ids::RegionCode;
use domain::instances::sealed::Keys;

use super::process;
use crate::objects::Endpoint;

/// How an activator is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the instances: one folder a host.
    pub folder: PathBuf,
    /// The placement code of the box, which every child reads as `CARLOS_REGION`.
    pub region: RegionCode,
    /// The program of the instances and its arguments; without one, every instance of the box stays parked.
    pub exec: Option<Vec<OsString>>,
    /// The executable that carries [`super::SUBCOMMAND`].
    pub launcher: PathBuf,
    /// litestream 0.5 or later: a path, or a name looked up in `environment`'s PATH.
    pub litestream: PathBuf,
    /// What every process gets of the box's own environment: where programs are and where temporary files go. Nothing
    /// secret: the tenants' programs see it.
    pub environment: BTreeMap<OsString, OsString>,
    /// What opens the sealed values of instances' environments; `None` where the box holds no key.
    pub config_key: Option<Keys>,
    /// The store of the box's bucket, and who the box is to it.
    pub store: Endpoint,
    /// The box's bucket.
    pub bucket: String,
    /// Who replicates into it.
    pub credentials: ReplicaCredentials,
    /// How long a child may take to end after SIGTERM before it is reported as hanging.
    pub stop_limit: Duration,
    /// How long a started child may take to accept connections.
    pub start_limit: Duration,
    /// How long litestream may take to upload what is missing.
    pub sync_limit: Duration,
    /// How long a restore may take.
    pub restore_limit: Duration,
    /// How long litestream may have uploaded nothing of a child that runs before that is told.
    pub unreplicated_after: Duration,
    /// How fast litestream works.
    pub pace: Pace,
}

/// Who litestream is to the store.
#[derive(Debug, Clone)]
pub enum ReplicaCredentials {
    /// The box itself: the key pair of [`Settings::store`], or, where that is AWS's default chain, that chain by means
    /// of these variables.
    Own {
        /// The variables of the box's environment that the chain reads.
        chain: BTreeMap<OsString, OsString>,
    },
    /// Whatever a command gives that is called with the host as its last argument: a program of the form that AWS calls
    /// `credential_process`, which answers with a key limited to `instances/<host>/`. litestream runs it by itself,
    /// again when a key expires. A restore is the box's own.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// The variables for what the box does itself.
        chain: BTreeMap<OsString, OsString>,
    },
}

/// How fast litestream works; each is its own default where it is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// How often changes are uploaded.
    pub sync_interval: Option<Duration>,
    /// The first compaction's interval.
    pub compaction_interval: Option<Duration>,
    /// How long raw files stay after their compaction.
    pub l0_retention: Option<Duration>,
    /// How often snapshots are made.
    pub snapshot_interval: Option<Duration>,
    /// How long snapshots stay.
    pub snapshot_retention: Option<Duration>,
}

impl Settings {
    /// A box whose litestream uses the box's own key, with every bound at its default. It has no program to run.
    #[must_use]
    pub fn new(
        folder: PathBuf,
        region: RegionCode,
        store: Endpoint,
        bucket: impl Into<String>,
        launcher: PathBuf,
    ) -> Self {
        Self {
            folder,
            region,
            exec: None,
            launcher,
            litestream: "litestream".into(),
            environment: BTreeMap::new(),
            config_key: None,
            store,
            bucket: bucket.into(),
            credentials: ReplicaCredentials::Own { chain: BTreeMap::new() },
            stop_limit: Duration::from_secs(10),
            start_limit: Duration::from_secs(30),
            sync_limit: Duration::from_secs(20),
            restore_limit: Duration::from_secs(900),
            unreplicated_after: Duration::from_secs(60),
            pace: Pace::default(),
        }
    }

    /// Whether litestream is there.
    #[must_use]
    pub fn has_litestream(&self) -> bool {
        process::resolve(&self.litestream, &self.environment).is_some()
    }
}
