//! What the integration tests share: a database each, a clock to move, conditions to wait for.

pub mod activator;
pub mod api;
pub mod db;
pub mod enrolment;
pub mod fleet;
pub mod gate;
pub mod keys;
pub mod pgbouncer;
pub mod proxy;
pub mod reports;
pub mod server;
pub mod trials;
pub mod wait;
