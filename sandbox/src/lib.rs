//! Everything outside our own code that Leasehold needs on one machine, for `dev`, `demo` and
//! tests: a private PostgreSQL, an S3 server in process with fault hooks, SeaweedFS and litestream.
//!
//! Nothing here is for production: every server listens on loopback only, passwords are absent or
//! printed, and all of it dies with the process that started it, also on SIGKILL of that process
//! (see [`exec`]). Start-up waits on readiness, never on time.
//!
//! Deliberately absent: any knowledge of Leasehold's own tables, jobs or wire. This crate imports
//! nothing of ours.

mod environment;
pub mod exec;
mod identity;
pub mod litestream;
pub mod ports;
pub mod postgres;
pub mod s3;
pub mod seaweed;
pub mod tools;

pub use identity::Identity;
