//! Everything outside our own code that Leasehold needs on one machine, for `dev`, `demo` and
//! tests: a private PostgreSQL, an S3 server in process with fault hooks, SeaweedFS and litestream, and
//! what stands around a box: a tenant's application ([`ledger`]) and an edge ([`edge`]).
//!
//! Nothing here is for production: every server listens on loopback only, passwords are absent or
//! printed, and all of it dies with the process that started it, also on SIGKILL of that process
//! (see [`exec`]). Start-up waits on readiness, never on time.
//!
//! Deliberately absent: any knowledge of Leasehold's own tables, jobs or wire. This crate imports
//! nothing of ours.

pub mod edge;
mod environment;
pub mod exec;
mod hidden;
mod identity;
pub mod ledger;
pub mod litestream;
pub mod ports;
pub mod postgres;
pub mod s3;
pub mod seaweed;
pub mod tools;
mod web;

pub use hidden::hidden;
pub use identity::Identity;
