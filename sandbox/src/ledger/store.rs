//! The ledger's rows in SQLite, kept as litestream wants it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use serde::Serialize;

/// How long a statement waits for the other writer of the file: litestream's checkpoints.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// Why the ledger did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its own freeze.
    #[error("the ledger is frozen")]
    Frozen,
    /// The database.
    #[error("use the ledger's database")]
    Database(#[from] rusqlite::Error),
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its number: the first is 1, and each is one more than the one before.
    pub n: u64,
    /// What its writer said.
    pub note: String,
    /// The region that wrote it.
    pub region: String,
}

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct State {
    /// How many rows.
    pub rows: u64,
    /// The last number; 0 where there is none.
    pub last: u64,
    /// Whether writes are refused.
    pub frozen: bool,
}

/// The open database. One caller at a time: a freeze that was answered is behind every write that was.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    conn: Connection,
    frozen: bool,
}

impl Store {
    /// Opens the database, created if it is not there.
    ///
    /// In WAL mode and durable at each commit. Checkpoints are litestream's alone, the one that SQLite makes when the last
    /// connection closes included: they would take the log away under it.
    ///
    /// # Errors
    /// SQLite's.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let conn = Connection::open(path)?;
        conn.busy_timeout(BUSY_LIMIT)?;
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", "full")?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Looked for first: a start that changes nothing writes nothing.
        if !conn.table_exists(None, "ledger")? {
            conn.execute(
                "create table if not exists ledger (
                     n integer primary key check (n > 0), note text not null, region text not null)",
                [],
            )?;
        }
        Ok(Self { inner: Mutex::new(Inner { conn, frozen: false }) })
    }

    /// Writes the next row. When it returns, the row is committed.
    ///
    /// # Errors
    /// [`Error::Frozen`], or SQLite's.
    pub fn write(&self, note: &str, region: &str) -> Result<u64, Error> {
        let inner = self.inner();
        if inner.frozen {
            return Err(Error::Frozen);
        }
        let mut insert = inner.conn.prepare_cached(
            "insert into ledger (n, note, region) select coalesce(max(n), 0) + 1, ?1, ?2 from ledger returning n",
        )?;
        // Read to its end: the statement commits when it is done, not at its first row.
        let numbers = insert.query_map(params![note, region], |row| row.get(0))?.collect::<Result<Vec<u64>, _>>()?;
        numbers.first().copied().ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Up to `limit` rows whose numbers are above `after`, by number.
    ///
    /// # Errors
    /// SQLite's.
    pub fn rows(&self, after: u64, limit: u16) -> Result<Vec<Row>, Error> {
        let inner = self.inner();
        let mut select =
            inner.conn.prepare_cached("select n, note, region from ledger where n > ?1 order by n limit ?2")?;
        let rows = select.query_map(params![after, limit], |row| {
            Ok(Row { n: row.get(0)?, note: row.get(1)?, region: row.get(2)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What there is.
    ///
    /// # Errors
    /// SQLite's.
    pub fn state(&self) -> Result<State, Error> {
        let inner = self.inner();
        Ok(inner.state()?)
    }

    /// Refuses writes from here on, or takes them again. When it returns, no write is under way.
    ///
    /// # Errors
    /// SQLite's.
    pub fn freeze(&self, frozen: bool) -> Result<State, Error> {
        let mut inner = self.inner();
        inner.frozen = frozen;
        Ok(inner.state()?)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn state(&self) -> rusqlite::Result<State> {
        self.conn.query_row("select count(*), coalesce(max(n), 0) from ledger", [], |row| {
            Ok(State { rows: row.get(0)?, last: row.get(1)?, frozen: self.frozen })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_without_a_hole_from_one_start_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        for start in 0..3 {
            let store = Store::open(&path).unwrap();
            assert_eq!(store.write("a", "eu").unwrap(), 2 * start + 1);
            assert_eq!(store.write("b", "eu").unwrap(), 2 * start + 2);
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(store.state().unwrap(), State { rows: 6, last: 6, frozen: false });
        let rows = store.rows(4, 1).unwrap();
        assert_eq!(rows, [Row { n: 5, note: "a".to_owned(), region: "eu".to_owned() }]);
    }

    #[test]
    fn a_frozen_ledger_takes_no_write_until_it_is_thawed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("app.db")).unwrap();
        store.write("a", "eu").unwrap();
        assert!(store.freeze(true).unwrap().frozen);
        assert!(matches!(store.write("b", "eu"), Err(Error::Frozen)));
        assert_eq!(store.rows(0, 10).unwrap().len(), 1, "reads go on");
        store.freeze(false).unwrap();
        assert_eq!(store.write("c", "eu").unwrap(), 2);
    }

    /// litestream reads the log; a checkpoint of ours, above all the one at the end, would take it away under it.
    #[test]
    fn the_log_is_left_to_litestream_and_a_start_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (path, log) = (folder.path().join("app.db"), folder.path().join("app.db-wal"));
        let store = Store::open(&path).unwrap();
        let before = std::fs::read(&path).unwrap();
        for _ in 0..1_500 {
            store.write("a row of its own transaction", "eu").unwrap();
        }
        let written = std::fs::metadata(&log).unwrap().len();
        assert!(before == std::fs::read(&path).unwrap(), "no checkpoint in 1,500 pages and more");
        drop(store);
        assert_eq!(std::fs::metadata(&log).unwrap().len(), written, "nor at the end");
        let (file, wal) = (std::fs::read(&path).unwrap(), std::fs::read(&log).unwrap());
        drop(Store::open(&path).unwrap());
        assert!(file == std::fs::read(&path).unwrap() && wal == std::fs::read(&log).unwrap());
    }
}
