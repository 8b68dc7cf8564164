//! The API over real HTTP and a real PostgreSQL.

mod access;
mod bodies;
mod description;
mod events;
mod fleet;
mod instances;
mod jobs;
mod keys;
mod logs;
mod moves;
mod operate;
mod outage;
mod repeat;
