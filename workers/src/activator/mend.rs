//! litestream's own files of a database, damaged or gone: it is made to forget them, and begins with the whole database. What it
//! had not uploaded of them stands in the database itself.
//!
//! # Deliberately absent
//! litestream's `auto-recover`: it forgets its files while it goes on, counts transactions from the first again, and takes
//! those that the replica had before for uploaded (0.5.17). One that begins anew asks the replica first.

use domain::ids::Host;

use super::process::{self, Life};
use super::{Activator, Error, durable};

/// What a daemon logs first.
const BEGINS: &str = "msg=litestream ";

/// Whether litestream complains of a file of its own on this box, by the names of its errors and of the system's. What passes by
/// itself, as where too many files are open, is no complaint.
fn complains(said: &str) -> bool {
    const OWN: [&str; 2] = ["ltx file", ".app.db-litestream"];
    const LOST: [&str; 6] = [
        "ltx file corrupted",
        "ltx file missing",
        "no such file",
        "not a directory",
        "is a directory",
        "unexpected EOF",
    ];
    said.lines().any(|line| OWN.iter().any(|own| line.contains(own)) && LOST.iter().any(|lost| line.contains(lost)))
}

impl Error {
    /// Whether this is litestream's complaint of a file of its own on this box.
    pub(super) fn is_of_own_files(&self) -> bool {
        matches!(self, Self::Litestream { said, .. } if complains(said))
    }
}

impl Activator {
    /// Whether the litestream of a host complains in its log, since it began, of a file of its own.
    pub(super) fn complains(&self, host: &Host) -> bool {
        let log = process::tail(&self.files(host).litestream_log());
        complains(log.rsplit(BEGINS).next().unwrap_or_default())
    }

    /// Mends the files of the litestream that runs for a host. A child that runs goes on. Where somebody is at work on the host,
    /// or none runs, nothing is done.
    pub(super) async fn mend(&self, host: &Host) -> Result<(), Error> {
        let Some(_mutex) = self.try_lock(host) else { return Ok(()) };
        let files = self.files(host);
        let litestream = self.litestream(host, &files);
        if !matches!(litestream.look()?, Life::Lives(_)) {
            return Ok(());
        }
        self.forget(host).await?;
        // What it uploaded before it complained may restore to nothing: what is read from now on begins with the whole database.
        let uploaded = self.snapshot(host, &litestream, "litestream's own files were damaged or gone").await;
        litestream.end().await?;
        litestream.replicate().await?;
        uploaded
    }

    /// Ends litestream and removes its own files of a database; for who holds the mutex.
    pub(super) async fn forget(&self, host: &Host) -> Result<(), Error> {
        let files = self.files(host);
        self.litestream(host, &files).end().await?;
        let own = files.of_litestream();
        durable::remove(&own).map_err(Error::file(&own))?;
        tracing::warn!(host = %host, "litestream's own files are damaged or gone: it begins anew with the whole database");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_its_own_is_complained_of() {
        assert!(complains("level=ERROR error=\"verify ltx file /x/ltx/0/1-1.ltx: ltx file corrupted: close reader\""));
        assert!(complains(
            "a\nmsg=\"monitor error\" error=\"open ltx file /x: open /x: no such file or directory\"\nb"
        ));
        for other in [
            "dial tcp: connection refused",
            "open ltx file /x: permission denied",
            "open /x/.app.db-litestream/ltx/0/1-1.ltx: too many open files",
            "no such file or directory",
            "",
        ] {
            assert!(!complains(other), "{other}");
        }
    }
}
