//! The fence: what makes a late write harmless.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::JobId;

/// A lease's number: global, rising, never used twice.
///
/// It is kept on the job's row after the lease ended and is overwritten only by the next lease, so there is no moment
/// at which two holders could both match. It also serves downstream, as a version or an annotation.
///
/// Source: Kleppmann, "How to do distributed locking" (fencing tokens).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(transparent)]
#[sqlx(transparent)]
pub struct Fence(pub i64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to write for one job: valid exactly while the row carries this fence and is `running`.
///
/// Expiry alone refuses nothing; it only permits a rescue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The leased job.
    pub job: JobId,
    /// The number of this lease.
    pub fence: Fence,
}

/// A newer fence exists, or the job is no longer running under this one. Stop; write nothing, delete nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("lease on job {} is lost (held fence {})", .lease.job, .lease.fence)]
pub struct LeaseLost {
    /// The lease that no longer holds.
    pub lease: Lease,
}
