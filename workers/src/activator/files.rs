//! Where the things of one host are.

use std::path::{Path, PathBuf};

use domain::ids::Host;

use super::{Error, durable};

/// What belongs to the database, in the order in which it is removed: what is left after a cut never looks like a
/// database that lost its log.
const DATABASE: [&str; 6] = ["app.db", "app.db-wal", "app.db-shm", "app.db-journal", LITESTREAM_STATE, WHOLE];
/// What litestream knows of the database.
const LITESTREAM_STATE: &str = ".app.db-litestream";
/// From where on its replica is whole.
const WHOLE: &str = "app.db-whole.json";

/// The folder of one host. A host is a name without slashes, so no folder lies in another.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
}

impl Files {
    pub(super) fn of(instances: &Path, host: &Host) -> Self {
        Self { folder: instances.join(host.as_str()) }
    }

    pub(super) fn make(&self) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))
    }

    pub(super) fn database(&self) -> PathBuf {
        self.folder.join("app.db")
    }

    pub(super) fn of_database(&self) -> [PathBuf; 6] {
        DATABASE.map(|name| self.folder.join(name))
    }

    /// SQLite's log of what is not in the database's file yet.
    pub(super) fn log_of_sqlite(&self) -> PathBuf {
        self.folder.join("app.db-wal")
    }

    /// All that litestream knows of the database.
    pub(super) fn of_litestream(&self) -> PathBuf {
        self.folder.join(LITESTREAM_STATE)
    }

    /// litestream's own copy of a raw object.
    pub(super) fn raw(&self, name: &str) -> PathBuf {
        self.of_litestream().join("ltx/0").join(name)
    }

    /// From where on the replica is whole, where it was renewed.
    pub(super) fn whole(&self) -> PathBuf {
        self.folder.join(WHOLE)
    }

    pub(super) fn child(&self) -> PathBuf {
        self.folder.join("child.json")
    }

    /// How often a new start had been asked for when the child was started.
    pub(super) fn restarts(&self) -> PathBuf {
        self.folder.join("child.restarts")
    }

    pub(super) fn child_log(&self) -> PathBuf {
        self.folder.join("child.log")
    }

    pub(super) fn litestream(&self) -> PathBuf {
        self.folder.join("litestream.json")
    }

    pub(super) fn litestream_log(&self) -> PathBuf {
        self.folder.join("litestream.log")
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("litestream.yml")
    }

    pub(super) fn restore_config(&self) -> PathBuf {
        self.folder.join("restore.yml")
    }

    /// AWS's configuration file for litestream, where a command gives the keys.
    pub(super) fn aws_config(&self) -> PathBuf {
        self.folder.join("aws.ini")
    }

    /// Where a database is restored to before anybody takes it.
    pub(super) fn restored(&self) -> PathBuf {
        self.folder.join("restored.db")
    }

    pub(super) fn quarantine(&self) -> PathBuf {
        self.folder.join("quarantine")
    }

    /// 0 where no worker that counts ever started a child here, and where that cannot be read: then one is started anew, and
    /// written down.
    pub(super) fn read_restarts(&self) -> i64 {
        std::fs::read_to_string(self.restarts()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    }

    pub(super) fn write_restarts(&self, restarts: i64) -> Result<(), Error> {
        let path = self.restarts();
        durable::write(&path, restarts.to_string().as_bytes()).map_err(Error::file(&path))
    }
}
