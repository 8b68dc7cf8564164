//! What a mirror round must copy, in which order, and what its result means. Pure: no IO, no clock.
//!
//! # Order
//! A staging must be restorable at every instant, also when a round is cut anywhere (M-046). litestream restores the
//! newest snapshot and then, over all levels, the file that reaches furthest without a hole; a file that begins beyond
//! a hole fails the restore. So copies go by `KeyPlace::rank` downwards (snapshots first), with a barrier between
//! ranks. Inside a rank a key whose transactions are already covered by what is staged (`Spans::is_free`) may be copied at
//! any time, since a restore skips it; every other key extends the chain and waits for its predecessor. When such a key
//! vanishes before its turn, the round copies nothing after it and lists again.
//!
//! # Equality
//! Two objects are equal when we can prove that we copied the one into the other: the journal remembers the source's
//! `ETag` and size and the `ETag` that the copy was answered with. An `ETag` is a name, never an MD5.

mod difference;
mod key;
mod order;
mod verdict;

pub use difference::{Advance, Decision, Entry, Journalled, KeyVerdict, decide};
pub use key::{KeyPlace, KeyRule, Level, ReplicaKey, Txid};
pub use order::Spans;
pub use verdict::{Bars, Differences, LastCopy, RoundVerdict, judge};
