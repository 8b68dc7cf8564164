//! Keeps a copy of a prefix in another bucket, by copies on the server, in passes.
//!
//! A *pass* lists both sides, copies what is new or changed, deletes what the source pruned, and lists again, until a
//! fresh listing shows zero differences or the pass has used its budget.
//!
//! # Consistency
//! Equal is what the journal of copies proves. Only a complete listing counts; after any loss, refusal or
//! unfinished listing nothing is deleted (M-047). At every instant what is staged can be restored (M-046): see
//! [`domain::instances::plan`] for the order of copies. Deletes come last.
//!
//! # Retries
//! Single requests are retried by [`crate::objects`]. A key that vanished or changed before its turn is never an
//! error and never "zero differences": the pass lists again. Everything else ends the pass with a
//! [`MirrorError`] that says whether another pass may help.
//!
//! # Cancellation
//! Stops between requests; copies under way get a short grace, so that they can be recorded.
//!
//! # Crash consistency
//! A copy that was not recorded is made again. A delete that was not recorded leaves a journal row that the next pass
//! forgets.
//!
//! # Memory
//! One page a side, one page of the journal, and difference sets that spill to one temporary file a level.
//!
//! # Deliberately absent
//! Pacing between passes, the move's state, leases: the job's. Object bytes never pass through here (M-040).

mod apply;
mod copies;
mod cursor;
mod error;
mod foresee;
mod journal;
mod observe;
mod pair;
mod pass;
mod spill;
mod survey;

pub use error::{MirrorError, Reason};
pub use foresee::{Foreseen, Hindrance, Side, Work};
pub use journal::{JournalKey, KeyJournal, MemoryJournal, RecordError};
pub use observe::{Observer, RoundProgress, Unobserved};
pub use pair::{HostError, Pair};
pub use pass::{Mirror, NotReady, Outcome, PassReport, Place, Settings};
