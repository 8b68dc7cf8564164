//! Who did what, to what, and why: append-only, written in the transaction of the act (I11).

use serde_json::Value;
use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{IdentityId, KeyId};

mod reason;
mod store;

pub use reason::{MAX_REASON_CHARS, TooLong, reason};

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// An identity through one of its keys.
    Key {
        /// The identity.
        identity: IdentityId,
        /// The key.
        key: KeyId,
    },
    /// The program itself: a job, a sweep, or whoever holds the database.
    System,
}

/// An act to record.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// Who.
    pub actor: Actor,
    /// What, e.g. `job.cancel`.
    pub action: &'static str,
    /// To what kind of thing, e.g. `job`.
    pub subject_kind: &'static str,
    /// To which one.
    pub subject: String,
    /// Why, in the actor's words.
    pub reason: Option<&'a str>,
    /// What else is worth knowing; never secrets.
    pub detail: Value,
}

/// A recorded act.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Rises with time; also the cursor.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who; `None` for the program itself.
    pub identity: Option<IdentityId>,
    /// The identity's name.
    pub identity_name: Option<String>,
    /// Through which key.
    pub key: Option<KeyId>,
    /// What.
    pub action: String,
    /// To what kind of thing.
    pub subject_kind: String,
    /// To which one.
    pub subject: String,
    /// Why.
    pub reason: Option<String>,
    /// What else is worth knowing.
    pub detail: Value,
}

/// Which acts to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only acts on this kind of thing.
    pub subject_kind: Option<String>,
    /// Only acts on this one.
    pub subject: Option<String>,
    /// Only acts with ids below this one: lists run from the newest to the oldest.
    pub before: Option<i64>,
}

/// Records an act on the caller's connection, so that it stands exactly when the act does.
///
/// # Errors
/// Only the database's.
pub async fn record(conn: &mut PgConnection, event: &Event<'_>) -> Result<(), sqlx::Error> {
    store::record(conn, event).await
}

/// Acts that match, newest first, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Vec<Recorded>, sqlx::Error> {
    store::list(conn, filter, limit).await
}
