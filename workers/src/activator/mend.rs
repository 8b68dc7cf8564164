//! litestream's own files of a database, damaged or gone: it is made to forget them, and begins with the whole database as one
//! more object. What it had not uploaded of them stands in the database itself.
//!
//! # Deliberately absent
//! litestream's `auto-recover`: it forgets its files while it goes on, counts transactions from the first again, and takes
//! those that the replica had before for uploaded (0.5.17). One that begins anew asks the replica first.

use domain::ids::Host;

use super::process::{self, Life};
use super::{Activator, Error, durable};

/// What a daemon logs first.
const BEGINS: &str = "msg=litestream ";

/// Whether litestream complains of a file of its own on this box, by the names of its errors.
fn complains(said: &str) -> bool {
    let gone = |line: &str| line.contains("open ltx file") && line.contains("no such file");
    said.contains("ltx file corrupted") || said.contains("ltx file missing") || said.lines().any(gone)
}

impl Error {
    /// Whether this is litestream's complaint of a file of its own on this box.
    pub(super) fn is_of_own_files(&self) -> bool {
        matches!(self, Self::Litestream { said, .. } if complains(said))
    }
}

impl Activator {
    /// Mends the files of the litestream that runs for a host, where its log complains of them since it began. Returns whether
    /// it does. A child that runs goes on.
    pub(super) async fn mend(&self, host: &Host) -> Result<bool, Error> {
        let _mutex = self.lock(host).await;
        let files = self.files(host);
        let litestream = self.litestream(host, &files);
        let log = process::tail(&files.litestream_log());
        let since = log.rsplit(BEGINS).next().unwrap_or_default();
        if !matches!(litestream.look()?, Life::Lives(_)) || !complains(since) {
            return Ok(false);
        }
        self.forget(host).await?;
        litestream.replicate().await?;
        Ok(true)
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
        for other in
            ["dial tcp: connection refused", "open ltx file /x: permission denied", "no such file or directory", ""]
        {
            assert!(!complains(other), "{other}");
        }
    }
}
