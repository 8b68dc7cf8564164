//! Drains and enqueues, ours and the bare limit's, and wake-ups.

mod counted;
pub mod course;
pub mod limit;
pub mod ours;
mod progress;
pub mod wakeup;
