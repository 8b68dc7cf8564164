//! Calls that were accepted once: the stored answer of each, written in the transaction of its effect.
//!
//! # Consistency
//! [`begin`] inserts the key's row before the effect and [`finish`] fills in the answer, both in the effect's
//! transaction. A second call with the same key waits on that row: when the first commits, it reads the answer; when
//! the first is rolled back, it is the first itself. So a key's effect happens once, and a refused call leaves no trace.

use std::time::Duration;

use sqlx::PgConnection;

use crate::ids::IdentityId;

mod store;

/// How long an answer is kept.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest key, in characters.
pub const MAX_KEY_CHARS: usize = 128;

/// One call under a key.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Whose key it is: two callers may use the same word.
    pub identity: IdentityId,
    /// The method and path that it was used on.
    pub route: &'a str,
    /// The caller's word.
    pub key: &'a str,
    /// SHA-256 of the request's canonical body.
    pub request_hash: [u8; 32],
}

/// The answer that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP's status.
    pub status: u16,
    /// The body, byte by byte.
    pub body: String,
}

/// What is known of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: act, then [`finish`].
    First,
    /// It was answered: give the same answer.
    Answered(Answer),
    /// The key was used for another request.
    OtherRequest,
}

/// Whether a text is a key: 1 to [`MAX_KEY_CHARS`] visible ASCII characters. The table's constraint says the same.
#[must_use]
pub fn is_key(text: &str) -> bool {
    (1..=MAX_KEY_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Claims a key, or finds the answer that it was given before.
///
/// Waits while another transaction holds the same key.
///
/// # Errors
/// Only the database's.
pub async fn begin(conn: &mut PgConnection, call: &Call<'_>) -> Result<Begun, sqlx::Error> {
    store::begin(conn, call, KEPT).await
}

/// Stores the answer of a call that [`begin`] found to be the first, in the same transaction.
///
/// # Errors
/// Only the database's.
pub async fn finish(conn: &mut PgConnection, call: &Call<'_>, answer: &Answer) -> Result<(), sqlx::Error> {
    store::finish(conn, call, answer).await
}

/// Forgets at most `limit` keys whose time is over; returns how many. Any process may do it at any time.
///
/// # Errors
/// Only the database's.
pub async fn sweep(conn: &mut PgConnection, limit: u16) -> Result<u64, sqlx::Error> {
    store::sweep(conn, KEPT, limit).await
}
