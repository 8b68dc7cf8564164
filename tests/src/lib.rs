//! What the integration tests share: a database each, a clock to move, conditions to wait for.

pub mod api;
pub mod db;
pub mod pgbouncer;
pub mod server;
pub mod wait;
