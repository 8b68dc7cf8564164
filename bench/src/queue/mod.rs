//! Drains and enqueues, ours and the bare limit's; wake-ups, and whole situations.

mod counted;
pub mod course;
pub mod limit;
pub mod ours;
mod peer;
mod progress;
pub mod situations;
pub mod wakeup;
