//! S3, as far as the house needs it: list, copy on the server, delete.
//!
//! # Consistency
//! An unreachable store is not an empty one: a listing that did not end properly is an error, never a short answer.
//! A copy names the source's `ETag`, so what arrives is what was listed.
//!
//! # Retries
//! All ours: the SDK's are off. Bounded, exponential, with full jitter, for what can heal by itself (throttling, 5xx,
//! time-outs, lost connections, a 200 whose body is an error); see [`Error::is_transient`].
//!
//! # Cancellation
//! Every call may be dropped. S3 knows no fence: a request that is already on its way may still take effect.
//!
//! # Deliberately absent
//! No put, and no get but for a digest: object bytes never pass through a box from one bucket to another (M-040).

mod copy;
mod count;
mod delete;
mod digest;
mod error;
mod limit;
mod list;
mod multipart;
mod source;
mod store;
mod versions;

pub use copy::{Copied, CopySource};
pub use count::{Op, RequestCounts};
pub use delete::KeyError;
pub use error::Error;
pub use limit::{CopyLimits, LimitSettings};
pub use list::{Listed, Listing};
pub use store::{Credentials, Endpoint, ObjectStore, Tuning};
pub use versions::{Versioning, VersionsDeleted};
