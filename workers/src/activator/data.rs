//! The databases of hosts: restored, taken, removed, put aside.

use std::fs::File;
use std::path::PathBuf;

use domain::ids::Host;
use serde::{Deserialize, Serialize};

use super::litestream::Checks;
use super::{Activator, Error, durable, tail};

/// A database that was restored beside its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of it, hexadecimal.
    pub sha256: String,
    /// Its bytes.
    pub size: u64,
}

/// What a purge removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Names in the host's folder; empty where nothing was left.
    pub removed: Vec<String>,
}

impl Activator {
    /// Restores `prefix` of the box's bucket (`instances/<host>` or `moves/<host>`) up to and including `txid`, 16
    /// hexadecimal digits, with a full integrity check, into a file beside the database. What an earlier restore left
    /// there is replaced.
    ///
    /// # Errors
    /// [`Error::Litestream`] with litestream's words; there is no file then.
    pub async fn restore(&self, host: &Host, prefix: &str, txid: &str) -> Result<Restored, Error> {
        self.restore_with(host, prefix, txid, Checks::Full).await
    }

    pub(super) async fn restore_with(
        &self,
        host: &Host,
        prefix: &str,
        txid: &str,
        checks: Checks,
    ) -> Result<Restored, Error> {
        let _mutex = self.lock(host).await;
        let files = self.files(host);
        files.make()?;
        let path = files.restored();
        self.clear_restored(host)?;
        crate::failpoint::hit("activator.before_restore", host.as_str()).await;
        let restored = self.litestream(host, &files).restore(prefix, txid, checks, &path).await;
        if let Err(error) = restored {
            self.clear_restored(host)?;
            return Err(error);
        }
        crate::failpoint::hit("activator.after_restore", host.as_str()).await;
        let file = path.clone();
        let (sha256, size) = blocking(&path, move || tail::digest(&file)).await?;
        Ok(Restored { path, sha256, size })
    }

    /// Makes a restored file the host's database; whatever was there is gone. Nobody sees a database with another's log
    /// at any instant. Safe to repeat.
    ///
    /// # Errors
    /// [`Error::Runs`] while a child or litestream runs; [`Error::NotRestored`].
    pub async fn adopt(&self, host: &Host, restored: Restored) -> Result<(), Error> {
        let _mutex = self.lock(host).await;
        self.refuse_any(host)?;
        let files = self.files(host);
        let database = files.database();
        if !restored.path.try_exists().map_err(Error::file(&restored.path))? {
            let known = database.clone();
            let taken = self.has_database(host)? && {
                let (sha256, size) = blocking(&database, move || tail::digest(&known)).await?;
                sha256 == restored.sha256 && size == restored.size
            };
            let path = restored.path;
            return if taken { Ok(()) } else { Err(Error::NotRestored { host: host.clone(), path }) };
        }
        let path = restored.path.clone();
        blocking(&restored.path, move || File::open(path)?.sync_all()).await?;
        crate::failpoint::hit("activator.before_adopt", host.as_str()).await;
        // The old database first, then what belongs to it: a log that finds another database is applied to it.
        for path in files.of_database() {
            durable::remove(&path).map_err(Error::file(path))?;
        }
        durable::sync_folder_of(&database).map_err(Error::file(&database))?;
        crate::failpoint::hit("activator.before_rename", host.as_str()).await;
        durable::rename(&restored.path, &database).map_err(Error::file(&database))
    }

    /// Removes the database, its log and litestream's folder, and nothing else. Safe to repeat.
    ///
    /// # Errors
    /// [`Error::Runs`] while a child or litestream runs.
    pub async fn purge(&self, host: &Host) -> Result<Purged, Error> {
        let _mutex = self.lock(host).await;
        self.refuse_any(host)?;
        let files = self.files(host);
        let mut removed = Vec::new();
        for path in files.of_database().into_iter().chain(self.restored_files(host)) {
            crate::failpoint::hit("activator.before_remove", host.as_str()).await;
            if durable::remove(&path).map_err(Error::file(&path))? {
                removed.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
        }
        if !removed.is_empty() {
            let database = files.database();
            durable::sync_folder_of(&database).map_err(Error::file(&database))?;
        }
        Ok(Purged { removed })
    }

    /// Puts a restored file aside for people, out of the way of every later restore; gives where it is now. It is named by
    /// its content: a landing that comes to the same file at every try keeps it once.
    ///
    /// # Errors
    /// [`Error::File`].
    pub async fn quarantine(&self, host: &Host, restored: Restored) -> Result<PathBuf, Error> {
        let _mutex = self.lock(host).await;
        let folder = self.files(host).quarantine();
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let place = folder.join(format!("{}.db", restored.sha256));
        crate::failpoint::hit("activator.before_quarantine", host.as_str()).await;
        durable::rename(&restored.path, &place).map_err(Error::file(&restored.path))?;
        Ok(place)
    }

    fn clear_restored(&self, host: &Host) -> Result<(), Error> {
        for path in self.restored_files(host) {
            durable::remove(&path).map_err(Error::file(path))?;
        }
        Ok(())
    }

    /// The restored file, and what SQLite and litestream keep beside it while they make it.
    fn restored_files(&self, host: &Host) -> [PathBuf; 5] {
        let path = self.files(host).restored();
        ["", ".tmp", "-wal", "-shm", "-journal"].map(|ending| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending);
            name.into()
        })
    }
}

/// Work on a file that may be large, away from the runtime.
async fn blocking<T: Send + 'static>(
    path: &std::path::Path,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(std::io::Error::other).and_then(|result| result).map_err(Error::file(path))
}
