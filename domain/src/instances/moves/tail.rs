//! The proof of the tail: what a cut records of the database that it leaves, and a landing must find.

use serde::{Deserialize, Serialize};

/// The database at the cut. Restored at this transaction, it is this file (M-128).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// The newest transaction, 16 hexadecimal digits.
    pub txid: String,
    /// The SHA-256 of the database file, lower-case hexadecimal.
    pub sha256: String,
    /// The file's size, bytes.
    pub size: u64,
}
