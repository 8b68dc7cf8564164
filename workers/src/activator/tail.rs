//! The proof that a replica carries the last transaction of its database.
//!
//! None of litestream's exit codes is believed. What is: its two positions are equal after it was made to upload; then,
//! with no litestream running, one more upload; then the local position is the highest one in a listing of our own, and
//! the listed objects lead there from the first transaction without a hole; then SQLite itself has nothing left in its
//! log. Any one of these failing means: purge nothing (M-066, M-067, M-068, M-128).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use domain::ids::Host;
use domain::instances::moves::Tail;
use domain::instances::plan::{KeyPlace, KeyRule, ReplicaKey, Txid};
use rusqlite::{Connection, OpenFlags};
use sha2::{Digest as _, Sha256};

use super::{Activator, Error, durable};

/// How much of a file is read at once.
const CHUNK: usize = 1 << 20;

impl Activator {
    /// Proves that the replica of a host carries its database up to the last transaction. The child must be down; no
    /// litestream runs afterwards. Makes no database where there is none.
    ///
    /// # Errors
    /// [`Error::Absent`] without a database; [`Error::Runs`]; everything else means that the tail is not proven.
    pub async fn prove_tail(&self, host: &Host) -> Result<Tail, Error> {
        let _mutex = self.lock(host).await;
        self.refuse_child(host)?;
        if !self.has_database(host)? {
            return Err(Error::Absent { host: host.clone() });
        }
        let files = self.files(host);
        let litestream = self.litestream(host, &files);
        litestream.replicate().await?;
        crate::failpoint::hit("activator.before_sync", host.as_str()).await;
        let mut synced = match litestream.sync().await {
            Err(error) if error.is_of_own_files() => {
                self.forget(host).await?;
                litestream.replicate().await?;
                litestream.sync().await?
            }
            synced => synced?,
        };
        if synced.txid < synced.replica_txid {
            // It began anew by itself, and counts from the first: one that begins asks the replica where that ends.
            litestream.end().await?;
            litestream.replicate().await?;
            synced = litestream.sync().await?;
        }
        if synced.txid != synced.replica_txid || synced.txid == 0 {
            let (here, there) = (Txid(synced.txid), Txid(synced.replica_txid));
            return Err(self.behind(host, format!("litestream is at {here} here and at {there} there")));
        }
        litestream.end().await?;
        crate::failpoint::hit("activator.before_once", host.as_str()).await;
        litestream.once().await?;
        let txid = litestream.local_txid().await?;
        crate::failpoint::hit("activator.before_listing", host.as_str()).await;
        let keys = self.replica_of(host).await?;
        let local = Txid::parse(&txid);
        let local = local.ok_or_else(|| self.behind(host, format!("the local position {txid:?} is no transaction")))?;
        leads_to(&keys, local).map_err(|astray| astray.of(host))?;
        crate::failpoint::hit("activator.before_checkpoint", host.as_str()).await;
        let (database, name) = (files.database(), host.clone());
        let measured = tokio::task::spawn_blocking(move || {
            checkpoint(&database, &name)?;
            digest(&database).map_err(Error::file(&database))
        });
        let (sha256, size) = measured
            .await
            .map_err(|error| Error::File { path: files.database(), source: io::Error::other(error) })??;
        Ok(Tail { txid, sha256, size })
    }

    pub(super) fn behind(&self, host: &Host, why: String) -> Error {
        Error::Tail { host: host.clone(), why }
    }

    /// Proves that the replica of a host without a database here can be restored, and what of: the newest transaction that a
    /// listing of our own names, restored beside its place, checked, measured and removed. The child of a parked instance is
    /// not woken for it.
    ///
    /// # Errors
    /// [`Error::Hole`]; [`Error::Tail`] for a replica without an object; [`Error::Listing`], [`Error::Litestream`].
    pub async fn prove_replica(&self, host: &Host) -> Result<Tail, Error> {
        let prefix = format!("instances/{host}");
        let txid = self.newest(host, &prefix).await?;
        let restored = self.restore(host, &prefix, &txid).await?;
        durable::remove(&restored.path).map_err(Error::file(&restored.path))?;
        Ok(Tail { txid, sha256: restored.sha256, size: restored.size })
    }

    /// The newest transaction of the database on the box's disk, as litestream's own files tell it, 16 hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Litestream`] where nothing is known of it.
    pub async fn position(&self, host: &Host) -> Result<String, Error> {
        let _mutex = self.lock(host).await;
        if !self.has_database(host)? {
            return Err(Error::Absent { host: host.clone() });
        }
        let files = self.files(host);
        self.litestream(host, &files).local_txid().await
    }

    /// The newest transaction of a replica below `prefix`, 16 hexadecimal digits: what its listing leads to without a hole.
    ///
    /// # Errors
    /// [`Error::Hole`]; [`Error::Tail`] for a replica without an object; [`Error::Listing`].
    pub async fn newest(&self, host: &Host, prefix: &str) -> Result<String, Error> {
        let keys = self.replica_at(host, &format!("{prefix}/"), "").await?;
        let newest = keys.iter().map(|key| key.max).max();
        let newest = newest.ok_or_else(|| self.behind(host, format!("{prefix} holds no object")))?;
        leads_to(&keys, newest).map_err(|astray| astray.of(host))?;
        Ok(newest.to_string())
    }

    /// Every object of the replica, by a complete listing of our own.
    async fn replica_of(&self, host: &Host) -> Result<Vec<ReplicaKey>, Error> {
        self.replica_at(host, &format!("instances/{host}/"), "").await
    }

    /// The objects of the replica at `prefix` whose keys go on with `beginning`.
    pub(super) async fn replica_at(
        &self,
        host: &Host,
        prefix: &str,
        beginning: &str,
    ) -> Result<Vec<ReplicaKey>, Error> {
        let own = &self.inner.own;
        let mut listing = own.store.list(&own.bucket, &format!("{prefix}{beginning}"));
        let mut keys = Vec::new();
        let unlisted = |source| Error::Listing { host: host.clone(), source };
        while let Some(page) = listing.next_page().await.map_err(unlisted)? {
            for object in page {
                match KeyRule::Litestream.place(&object.key[prefix.len()..]) {
                    KeyPlace::Mirrored { replica, .. } => keys.extend(replica),
                    KeyPlace::Ignored => {}
                    KeyPlace::Foreign { rule } => return Err(self.behind(host, format!("{}: {rule}", object.key))),
                }
            }
        }
        Ok(keys)
    }
}

/// Why objects do not lead to a transaction.
#[derive(Debug, PartialEq, Eq)]
enum Astray {
    /// They end with another.
    Ends(String),
    /// One in between is missing.
    Hole(String),
}

impl Astray {
    fn of(self, host: &Host) -> Error {
        let host = host.clone();
        match self {
            Self::Ends(why) => Error::Tail { host, why },
            Self::Hole(why) => Error::Hole { host, why },
        }
    }
}

/// Whether the objects end with `txid` and lead there from the first transaction, each beginning at the latest right
/// after the one before it.
fn leads_to(keys: &[ReplicaKey], txid: Txid) -> Result<(), Astray> {
    let highest = keys.iter().map(|key| key.max).max().unwrap_or_default();
    if highest != txid {
        return Err(Astray::Ends(format!("the database is at {txid}, the highest object ends with {highest}")));
    }
    let mut reached = Txid(0);
    while reached < txid {
        let next = keys.iter().filter(|key| key.min.0 <= reached.0 + 1).map(|key| key.max).max().unwrap_or_default();
        if next <= reached {
            let why = format!("no object continues after {reached}, although the last one ends with {highest}");
            return Err(Astray::Hole(why));
        }
        reached = next;
    }
    Ok(())
}

/// Moves everything of SQLite's log into the file and closes it. Makes no file.
pub(super) fn checkpoint(database: &Path, host: &Host) -> Result<(), Error> {
    let failed = |source| Error::Database { host: host.clone(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(database, flags).map_err(failed)?;
    let answer = conn
        .query_row("pragma wal_checkpoint(truncate)", [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .map_err(failed)?;
    conn.close().map_err(|(_, source)| failed(source))?;
    if answer == (0, 0, 0) { Ok(()) } else { Err(Error::InUse { host: host.clone(), answer }) }
}

/// SHA-256 of a file, hexadecimal, and its length in bytes.
pub(super) fn digest(path: &Path) -> io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok((hex::encode(hasher.finalize()), size));
        }
        hasher.update(&chunk[..read]);
        size += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(level: u8, min: u64, max: u64) -> ReplicaKey {
        ReplicaKey::parse(&format!("{level:04x}/{min:016x}-{max:016x}.ltx")).unwrap()
    }

    #[test]
    fn a_replica_leads_to_its_last_transaction_without_a_hole_or_not_at_all() {
        let whole = [key(9, 1, 10), key(1, 8, 12), key(0, 13, 13), key(0, 14, 14)];
        assert_eq!(leads_to(&whole, Txid(14)), Ok(()));
        let ends = |keys: &[ReplicaKey], txid| matches!(leads_to(keys, txid), Err(Astray::Ends(_)));
        assert!(ends(&whole, Txid(15)), "the tail is missing");
        assert!(ends(&whole, Txid(13)), "the replica is another's, or the database went back");
        for lost in 0..whole.len() {
            let mut keys = whole.to_vec();
            keys.remove(lost);
            let found = leads_to(&keys, Txid(14));
            let last = lost == whole.len() - 1;
            assert_eq!(matches!(found, Err(Astray::Hole(_))), !last, "without {:?}: {found:?}", whole[lost]);
            assert!(found.is_err(), "without {:?}", whole[lost]);
        }
        assert!(ends(&[], Txid(1)));
    }

    #[test]
    fn what_a_higher_level_covers_may_be_gone() {
        assert_eq!(leads_to(&[key(9, 1, 3), key(9, 1, 9), key(0, 10, 10)], Txid(10)), Ok(()));
        assert_eq!(leads_to(&[key(0, 1, 1), key(0, 2, 2)], Txid(2)), Ok(()), "a young database has no snapshot yet");
    }
}
