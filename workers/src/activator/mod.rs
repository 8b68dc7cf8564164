//! The activator: what runs for the instances of a box, and what happens to their databases.
//!
//! For each host a folder below `instances/`: the database, what says which processes run, their logs.
//!
//! # Consistency
//! One mutex a host, held by everything that starts, stops or touches a database. There is one way by which a child
//! starts ([`Activator::start`]), whoever asks; whether it may is decided inside that mutex. One activator a folder:
//! the worker holds a lock on its data folder.
//!
//! # Crash consistency
//! Children and their litestream outlive the worker. Each writes who it is (number, moment of its start, boot) before
//! it is the program, so the next worker knows what runs; nothing is kept in memory alone but exit statuses. Everything
//! may be repeated.
//!
//! # Deliberately absent
//! SIGKILL: a child that does not end is shown, with its number, and whoever waits for its end goes on waiting.
//! Object bytes: litestream reads and writes the replica, this program lists it.

mod check;
mod control;
mod data;
mod detach;
pub(crate) mod durable;
mod error;
mod files;
mod identity;
mod keep;
mod litestream;
mod mend;
mod process;
mod reconcile;
mod record;
mod rehearsal;
mod settings;
mod start;
mod tail;
mod watch;

pub use check::Damage;
pub use data::{Purged, Restored};
pub use detach::{SUBCOMMAND, internal_detach};
pub use error::{Error, Role};
pub use identity::Identity;
pub use keep::keep;
pub use reconcile::{Action, Backoff, Here, reconcile};
pub use record::{Ended, identity_in, started_below};
pub use rehearsal::{Rehearsed, Whole};
pub use settings::{Pace, ReplicaCredentials, Settings};
pub use start::{Launch, Started};

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use domain::ids::Host;
use domain::instances::sealed::Keys;
pub use domain::instances::sealed::Unopened;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;

use crate::chain::chain;
use crate::mirror::Place;
use files::Files;
use litestream::{Litestream, no_end};
use process::{Exits, Life};

/// The activator of one box. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Activator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// The program of the instances, found.
    exec: Option<PathBuf>,
    /// litestream, found.
    litestream: PathBuf,
    /// The box's bucket, for listings.
    own: Place,
    exits: Exits,
    hosts: Mutex<HashMap<Host, Arc<tokio::sync::Mutex<()>>>>,
}

/// How the end of a child was proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "child", rename_all = "snake_case")]
pub enum ChildEnd {
    /// None was ever started here.
    Absent,
    /// It has ended, with everything of its group and session.
    Ended(Ended),
}

impl Activator {
    /// Makes the folder and finds the programs. What runs is adopted as it is asked about: everything about it stands
    /// in the hosts' folders. `own` is the box's bucket.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::NoSuchProgram`].
    pub fn open(mut settings: Settings, own: Place) -> Result<Self, Error> {
        std::fs::create_dir_all(&settings.folder).map_err(Error::file(&settings.folder))?;
        settings.folder = std::fs::canonicalize(&settings.folder).map_err(Error::file(&settings.folder))?;
        let find =
            |program: PathBuf| process::resolve(&program, &settings.environment).ok_or(Error::NoSuchProgram(program));
        let exec = settings.exec.as_ref().and_then(|exec| exec.first()).map(|program| find(program.into()));
        let (exec, litestream) = (exec.transpose()?, find(settings.litestream.clone())?);
        let (exits, hosts) = (Exits::default(), Mutex::default());
        let activator = Self { inner: Arc::new(Inner { settings, exec, litestream, own, exits, hosts }) };
        for host in activator.hosts()? {
            // One that cannot be looked at holds up no other; the loop tells it.
            if let Ok(Life::Lives(record)) = activator.look(&host) {
                tracing::info!(host = %host, pid = record.identity.pid, "a child of an earlier worker is adopted");
            }
        }
        Ok(activator)
    }

    /// The hosts whose folders are here, sorted.
    ///
    /// # Errors
    /// [`Error::File`]: then nothing is known about what is here.
    pub fn hosts(&self) -> Result<Vec<Host>, Error> {
        let folder = &self.inner.settings.folder;
        let mut hosts = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(Error::file(folder))? {
            let entry = entry.map_err(Error::file(folder))?;
            if let Some(host) = entry.file_name().to_str().and_then(|name| Host::new(name).ok()) {
                hosts.push(host);
            }
        }
        hosts.sort();
        Ok(hosts)
    }

    /// Where the child of a host listens, if it runs.
    #[must_use]
    pub fn running(&self, host: &Host) -> Option<SocketAddr> {
        match self.look(host) {
            Ok(Life::Lives(record)) => record.note.parse().ok(),
            Ok(Life::Gone | Life::Lingers(..)) | Err(_) => None,
        }
    }

    /// Whether the box has a program for its instances.
    #[must_use]
    pub fn has_program(&self) -> bool {
        self.inner.exec.is_some()
    }

    /// What opens sealed values, where the box holds a key.
    #[must_use]
    pub fn config_key(&self) -> Option<&Keys> {
        self.inner.settings.config_key.as_ref()
    }

    /// What lives here, host by host. One that cannot be looked at is marked, and told in the log.
    ///
    /// # Errors
    /// Where the folder cannot be read: then nothing is known.
    pub fn here(&self) -> Result<BTreeMap<Host, Here>, Error> {
        let mut here = BTreeMap::new();
        for host in self.hosts()? {
            let now = self.here_of(&host).unwrap_or_else(|error| {
                tracing::warn!(host = %host, error = %chain(&error), "what runs for a host cannot be told: it is left alone");
                Here { unknown: true, ..Here::default() }
            });
            here.insert(host, now);
        }
        Ok(here)
    }

    fn here_of(&self, host: &Host) -> Result<Here, Error> {
        let files = self.files(host);
        let (address, child) = match self.look(host)? {
            Life::Lives(record) => (record.note.parse().ok(), true),
            Life::Lingers(_) => (None, true),
            Life::Gone => (None, false),
        };
        let litestream = self.litestream(host, &files).look()?;
        let replicated = matches!(litestream, Life::Lives(_));
        let lives = child || !matches!(litestream, Life::Gone);
        Ok(Here { address, replicated, lives, restarts: files.read_restarts(), unknown: false })
    }

    /// Whether there is a database.
    ///
    /// # Errors
    /// [`Error::File`]: then nothing is known.
    pub fn has_database(&self, host: &Host) -> Result<bool, Error> {
        let database = self.files(host).database();
        database.try_exists().map_err(Error::file(database))
    }

    /// Ends the child with SIGTERM to its process group and proves the end; litestream goes on. Asked again, the answer
    /// is the same.
    ///
    /// # Errors
    /// [`Error::Hangs`] where it lives on: nobody kills it.
    pub async fn stop_child(&self, host: &Host) -> Result<ChildEnd, Error> {
        let _mutex = self.lock(host).await;
        self.end_child(host).await
    }

    /// The park: ends the child, then litestream, which is first given its time to upload everything.
    ///
    /// # Errors
    /// [`Error::Hangs`] for either. An upload that failed is no error here: the database stays.
    pub async fn stop(&self, host: &Host) -> Result<ChildEnd, Error> {
        let _mutex = self.lock(host).await;
        let ended = self.end_child(host).await?;
        let files = self.files(host);
        let litestream = self.litestream(host, &files);
        if matches!(litestream.look()?, Life::Lives(_))
            && self.has_database(host)?
            && let Err(error) = litestream.sync().await
        {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(host = %host, error, "the replica of a stopped instance is behind its database");
        }
        litestream.end().await?;
        Ok(ended)
    }

    /// [`Activator::stop_child`], for who holds the mutex.
    async fn end_child(&self, host: &Host) -> Result<ChildEnd, Error> {
        crate::failpoint::hit("activator.before_stop", host.as_str()).await;
        let limit = self.inner.settings.stop_limit;
        let ended = process::end(&self.files(host).child(), limit, &self.inner.exits).await;
        let ended = ended.map_err(|error| no_end(error, host, Role::Child))?;
        crate::failpoint::hit("activator.after_stop", host.as_str()).await;
        Ok(ended.map_or(ChildEnd::Absent, ChildEnd::Ended))
    }

    /// Refuses where a child, or something that it started, lives.
    fn refuse_child(&self, host: &Host) -> Result<(), Error> {
        refuse(self.look(host)?, host, Role::Child)
    }

    /// Refuses where a child or litestream lives.
    fn refuse_any(&self, host: &Host) -> Result<(), Error> {
        self.refuse_child(host)?;
        let files = self.files(host);
        refuse(self.litestream(host, &files).look()?, host, Role::Litestream)
    }

    /// What is known of the child.
    fn look(&self, host: &Host) -> Result<Life, Error> {
        process::look(&self.files(host).child()).map_err(|source| Error::Processes { host: host.clone(), source })
    }

    async fn lock(&self, host: &Host) -> OwnedMutexGuard<()> {
        self.mutex(host).lock_owned().await
    }

    /// [`Activator::lock`], unless somebody has it.
    fn try_lock(&self, host: &Host) -> Option<OwnedMutexGuard<()>> {
        self.mutex(host).try_lock_owned().ok()
    }

    fn mutex(&self, host: &Host) -> Arc<tokio::sync::Mutex<()>> {
        let mut hosts = self.inner.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(hosts.entry(host.clone()).or_default())
    }

    fn files(&self, host: &Host) -> Files {
        Files::of(&self.inner.settings.folder, host)
    }

    fn litestream<'a>(&'a self, host: &'a Host, files: &'a Files) -> Litestream<'a> {
        let Inner { settings, litestream, exits, .. } = self.inner.as_ref();
        Litestream { settings, program: litestream, host, files, exits }
    }
}

fn refuse(life: Life, host: &Host, role: Role) -> Result<(), Error> {
    let pid = match life {
        Life::Gone => return Ok(()),
        Life::Lives(record) => record.identity.pid,
        Life::Lingers(pid) => pid,
    };
    Err(Error::Runs { host: host.clone(), role, pid })
}
