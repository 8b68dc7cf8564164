//! Drains and enqueues: ours, and the bare limit's.

pub mod limit;
pub mod ours;
pub mod wakeup;
