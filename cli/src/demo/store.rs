//! The tenant's own database: a SQLite file with numbered rows.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};

/// How long a statement waits for the other writer of the file: litestream's checkpoints.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// The rows of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// How many.
    pub(super) count: u64,
    /// The lowest number.
    pub(super) first: u64,
    /// The highest number.
    pub(super) last: u64,
}

impl Rows {
    /// Whether the rows are 1…n without a hole. Numbers are unique, so three figures tell.
    pub(super) fn are_whole(self) -> bool {
        self.count > 0 && self.first == 1 && self.last == self.count
    }
}

/// Opens the tenant's database for writing, created if it is not there, as litestream wants it: in
/// WAL mode, and without checkpoints of our own, which would take the log away under it.
pub(super) fn create(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_LIMIT)?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "normal")?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.execute("create table if not exists ledger (n integer primary key, note blob not null)", [])?;
    Ok(conn)
}

/// Writes rows `first..=last` in one transaction, each with a note of its own. When it returns, they are committed.
pub(super) fn write(conn: &mut Connection, first: u64, last: u64, note: impl Fn() -> Vec<u8>) -> rusqlite::Result<()> {
    let transaction = conn.transaction()?;
    {
        let mut insert = transaction.prepare_cached("insert into ledger (n, note) values (?1, ?2)")?;
        for n in first..=last {
            insert.execute(params![n, note()])?;
        }
    }
    transaction.commit()
}

/// Opens a database that is only read.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// What SQLite says of the file's integrity: `ok`, or what is broken.
pub(super) fn integrity(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("pragma integrity_check", [], |row| row.get(0))
}

/// Counts the rows.
pub(super) fn rows(conn: &Connection) -> rusqlite::Result<Rows> {
    conn.query_row("select count(*), coalesce(min(n), 0), coalesce(max(n), 0) from ledger", [], |row| {
        Ok(Rows { count: row.get(0)?, first: row.get(1)?, last: row.get(2)? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_a_late_start_and_no_rows_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let mut conn = create(&folder.path().join("db")).unwrap();
        assert!(!rows(&conn).unwrap().are_whole(), "no rows prove nothing");
        write(&mut conn, 1, 3, Vec::new).unwrap();
        assert!(rows(&conn).unwrap().are_whole());
        write(&mut conn, 5, 5, Vec::new).unwrap();
        assert!(!rows(&conn).unwrap().are_whole(), "4 is missing");
        conn.execute("delete from ledger where n < 4", []).unwrap();
        assert!(!rows(&conn).unwrap().are_whole(), "only 5 is there");
        assert_eq!(integrity(&conn).unwrap(), "ok");
    }
}
