//! The S3 server in this process, through the SDK that our own code uses.

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod listing;
mod objects;
mod rights;
