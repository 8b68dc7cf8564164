//! What Leasehold decides and records.
//!
//! Two kinds of code live here and nowhere else: pure decisions (`<noun>/state.rs`, `<noun>/policy.rs`) and SQL
//! (`<noun>/store.rs`). Nothing in this crate speaks HTTP, touches S3, sleeps or spawns.

pub mod audit;
pub mod authority;
pub mod clock;
pub mod db;
pub mod digest;
pub mod doctor;
pub mod entropy;
pub mod idempotency;
pub mod ids;
pub mod instances;
pub mod lease;
pub mod nodes;
pub mod queue;
pub mod sessions;
