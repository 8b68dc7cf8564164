//! Whether a database is whole.

use std::io;
use std::path::PathBuf;

use domain::ids::Host;
use rusqlite::{Connection, OpenFlags};

use super::{Activator, Error};

/// What a database that is not whole says of itself: its first complaint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage(pub String);

impl Activator {
    /// Reads the whole database of a host that does not run, and says what is wrong with it (M-096).
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Runs`]; [`Error::Database`] for a file that SQLite does not open.
    pub async fn check(&self, host: &Host) -> Result<Result<(), Damage>, Error> {
        let _mutex = self.lock(host).await;
        self.refuse_child(host)?;
        if !self.has_database(host)? {
            return Err(Error::Absent { host: host.clone() });
        }
        let (database, name) = (self.files(host).database(), host.clone());
        let checked = tokio::task::spawn_blocking({
            let database = database.clone();
            move || integrity(database).map_err(|source| Error::Database { host: name, source })
        });
        checked.await.map_err(|error| Error::File { path: database, source: io::Error::other(error) })?
    }
}

fn integrity(database: PathBuf) -> Result<Result<(), Damage>, rusqlite::Error> {
    // To be written, although nothing is: what stands in the log is read through the index of it, which may have to be made.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(database, flags)?;
    let answer: String = conn.query_row("pragma integrity_check(1)", [], |row| row.get(0))?;
    Ok(if answer == "ok" { Ok(()) } else { Err(Damage(answer)) })
}
