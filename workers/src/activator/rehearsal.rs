//! A rehearsal of what a cut leaves: the replica is restored while its database is still there, and renewed where it is not
//! that database.
//!
//! # Crash consistency
//! From which transaction on a replica is known to be whole stands in a file beside the database before the object is uploaded
//! that makes it so, and counts once that object is listed. It goes with the database.

use std::io;
use std::time::Duration;

use domain::ids::Host;
use domain::instances::moves::Tail;
use domain::instances::plan::{Level, ReplicaKey, Txid};
use serde::{Deserialize, Serialize};

use super::litestream::{Checks, Litestream};
use super::tail::{checkpoint, digest};
use super::{Activator, Error, durable};

/// How often a listing is asked whether a whole database is uploaded.
const SNAPSHOT_POLL: Duration = Duration::from_millis(250);

/// What a rehearsal proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsed {
    /// The database, and its replica.
    pub tail: Tail,
    /// How the replica differed before this rehearsal uploaded it anew; `None` where it was right.
    pub renewed: Option<String>,
    /// From where on it is whole, where it was ever uploaded anew on this box.
    pub whole: Option<Whole>,
}

/// A replica beside its database.
enum Compared {
    /// It is the database, and this is the proof.
    Same(Tail),
    /// How it differs.
    Differs(String),
}

/// From where on a replica is whole, and what was wrong before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// The first transaction whose object is, and of which the whole database was uploaded.
    pub from: u64,
    /// What was found wrong when it was renewed, by this rehearsal or an earlier one.
    pub why: String,
}

impl Activator {
    /// As [`Activator::prove_tail`], and then restores the replica at that transaction beside the database, which is checked
    /// whole, and compares: an object that was damaged long ago is found while the database is still here.
    ///
    /// A replica that has a hole, does not restore, or restores to another file is renewed and proven again. The last happens
    /// to replicas that are whole by their own measure: litestream takes no lock between reading SQLite's log and its
    /// checkpoint (<https://github.com/benbjohnson/litestream/pull/1337>).
    ///
    /// # Errors
    /// As [`Activator::prove_tail`]; [`Error::Broken`] for a database that is damaged, and a replica that is not its database
    /// also after it was renewed.
    pub async fn rehearse(&self, host: &Host) -> Result<Rehearsed, Error> {
        let differs = match self.compare(host).await? {
            Compared::Same(tail) => {
                let whole = self.whole(host).await?;
                return Ok(Rehearsed { tail, renewed: None, whole });
            }
            Compared::Differs(differs) => differs,
        };
        crate::failpoint::hit("activator.before_renewal", host.as_str()).await;
        self.renew(host, &differs).await?;
        match self.compare(host).await? {
            Compared::Same(tail) => {
                let whole = self.whole(host).await?;
                Ok(Rehearsed { tail, renewed: Some(differs), whole })
            }
            Compared::Differs(still) => {
                Err(self.broken(host, format!("{differs}; the whole database is uploaded anew, and {still}")))
            }
        }
    }

    async fn compare(&self, host: &Host) -> Result<Compared, Error> {
        let proven = match self.prove_tail(host).await {
            Err(hole @ Error::Hole { .. }) => Compared::Differs(hole.to_string()),
            proven => Compared::Same(proven?),
        };
        if let Err(damage) = self.check(host).await? {
            return Err(self.broken(host, format!("the database itself is damaged: {}", damage.0)));
        }
        let Compared::Same(tail) = proven else { return Ok(proven) };
        let differs = match self.differs(host, &tail).await? {
            None => self.newest_differs(host).await?,
            differs => differs,
        };
        Ok(differs.map_or(Compared::Same(tail), Compared::Differs))
    }

    /// How the newest raw object differs from litestream's own copy of it. A restore may read a higher level in its place, and
    /// litestream reads it when it begins beside a restored database: damaged, it would never replicate there.
    async fn newest_differs(&self, host: &Host) -> Result<Option<String>, Error> {
        let (own, prefix) = (&self.inner.own, format!("instances/{host}/"));
        let raw = self.replica_at(host, &prefix, &Level::RAW.prefix()).await?;
        let Some(newest) = raw.into_iter().max_by_key(|key| key.max) else {
            return Ok(Some("it has no raw object, with which litestream begins elsewhere".to_owned()));
        };
        let key = format!("{prefix}{}{}", Level::RAW.prefix(), newest.name());
        let there = own.store.digest(&own.bucket, &key, self.inner.settings.restore_limit).await;
        let there = there.map_err(|source| Error::Listing { host: host.clone(), source })?;
        let path = self.files(host).raw(&newest.name());
        let read = path.clone();
        let here = tokio::task::spawn_blocking(move || digest(&read)).await;
        let here = match here.map_err(|error| Error::File { path: path.clone(), source: io::Error::other(error) })? {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(format!("{key} is not on this box")));
            }
            here => here.map_err(Error::file(&path))?,
        };
        Ok((here != there).then(|| format!("{key} is not what litestream has here of it")))
    }

    /// Has litestream upload the whole database, which nobody writes, as an object of its own: what is restored from now on
    /// reads no older one. No litestream runs afterwards.
    async fn renew(&self, host: &Host, why: &str) -> Result<(), Error> {
        let _mutex = self.lock(host).await;
        self.refuse_child(host)?;
        let files = self.files(host);
        let litestream = self.litestream(host, &files);
        litestream.end().await?;
        // Without a log of SQLite's, litestream begins with a transaction of its own, which no object of before can cover.
        let (database, name) = (files.database(), host.clone());
        let emptied = tokio::task::spawn_blocking(move || checkpoint(&database, &name)).await;
        emptied.map_err(|error| Error::File { path: files.database(), source: io::Error::other(error) })??;
        let uploaded = self.snapshot(host, &litestream, why).await;
        // What goes wrong leaves no daemon that uploads the database again and again.
        litestream.end().await?;
        uploaded
    }

    pub(super) async fn snapshot(&self, host: &Host, litestream: &Litestream<'_>, why: &str) -> Result<(), Error> {
        // The next transaction, with which the daemon begins: written while none runs, since it uploads at once.
        let last = litestream.local_txid().await.ok().and_then(|txid| Txid::parse(&txid)).unwrap_or_default();
        self.note_whole(host, Txid(last.0 + 1), why)?;
        litestream.replicate_whole().await?;
        crate::failpoint::hit("activator.before_snapshot", host.as_str()).await;
        let began = Txid(litestream.sync().await?.txid);
        // A replica that was further than this box: the daemon begins behind that.
        self.note_whole(host, began, why)?;
        let limit = self.inner.settings.restore_limit;
        let uploaded = async {
            while !self.snapshots_of(host).await?.iter().any(|key| key.max >= began) {
                tokio::time::sleep(SNAPSHOT_POLL).await;
            }
            Ok(())
        };
        let late = |_| self.behind(host, format!("the whole database is not uploaded within {limit:?}"));
        tokio::time::timeout(limit, uploaded).await.map_err(late)??;
        crate::failpoint::hit("activator.after_snapshot", host.as_str()).await;
        Ok(())
    }

    fn note_whole(&self, host: &Host, from: Txid, why: &str) -> Result<(), Error> {
        let whole = Whole { from: from.0, why: why.to_owned() };
        let (path, whole) =
            (self.files(host).whole(), serde_json::to_vec(&whole).expect("a number and a text are JSON"));
        durable::write(&path, &whole).map_err(Error::file(&path))
    }

    /// How the replica, restored at a transaction, differs from the database of this tail.
    async fn differs(&self, host: &Host, tail: &Tail) -> Result<Option<String>, Error> {
        let prefix = format!("instances/{host}");
        let restore = async || self.restore_with(host, &prefix, &tail.txid, Checks::None).await;
        let restored = match restore().await {
            // It may have been the store's moment, and an upload of the whole database costs more than another look.
            Err(Error::Litestream { .. }) => restore().await,
            restored => restored,
        };
        let restored = match restored {
            Err(Error::Litestream { said, .. }) => return Ok(Some(format!("it does not restore: {said}"))),
            restored => restored?,
        };
        durable::remove(&restored.path).map_err(Error::file(&restored.path))?;
        if (&restored.sha256, restored.size) == (&tail.sha256, tail.size) {
            return Ok(None);
        }
        let found = format!("{} bytes of SHA-256 {}", restored.size, restored.sha256);
        Ok(Some(format!("it restores to {found}, the database has {} bytes of {}", tail.size, tail.sha256)))
    }

    /// From which transaction on the replica of a host is known to be whole, where one before was found damaged: what ends
    /// before is read by no restore, and nobody should carry it on.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Listing`].
    pub async fn whole_from(&self, host: &Host) -> Result<Option<Txid>, Error> {
        Ok(self.whole(host).await?.map(|whole| Txid(whole.from)))
    }

    async fn whole(&self, host: &Host) -> Result<Option<Whole>, Error> {
        let path = self.files(host).whole();
        let whole: Whole = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other).map_err(Error::file(&path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file(&path)(error)),
        };
        let uploaded = self.snapshots_of(host).await?.iter().any(|key| key.max.0 >= whole.from);
        Ok(uploaded.then_some(whole))
    }

    /// The uploads of the whole database.
    async fn snapshots_of(&self, host: &Host) -> Result<Vec<ReplicaKey>, Error> {
        self.replica_at(host, &format!("instances/{host}/"), &Level::SNAPSHOT.prefix()).await
    }

    fn broken(&self, host: &Host, why: String) -> Error {
        Error::Broken { host: host.clone(), why }
    }
}
