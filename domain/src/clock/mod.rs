//! Time. Only the database's clock decides; it is read in SQL as `(select lh_now())`.
//!
//! Rust code that must know the time asks the database ([`now`]) or is handed the time. Local, monotonic measures
//! (how long a request took) use `std::time::Instant` where the act happens.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// A moment on the database's clock.
pub type Timestamp = DateTime<Utc>;

/// Whether a moment named from outside can be kept, compared and shown: the years 2000 to 9999.
///
/// PostgreSQL's own range ends at 4713 BC; before that it answers with an error of its own.
#[must_use]
pub fn is_plausible(moment: Timestamp) -> bool {
    // PostgreSQL knows no leap second: it is the next one.
    let seconds = moment.timestamp() + i64::from(moment.timestamp_subsec_nanos() >= 1_000_000_000);
    // 2000-01-01T00:00:00Z and 9999-12-31T23:59:59Z, in seconds since 1970.
    (946_684_800..=253_402_300_799).contains(&seconds)
}

/// The database's present moment.
///
/// # Errors
/// Only the database's.
pub async fn now(conn: &mut PgConnection) -> Result<Timestamp, sqlx::Error> {
    store::now(conn).await
}

/// A duration in whole milliseconds, as statements take it.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

mod store;
