//! The conventions that every route keeps: shapes, limits, errors, preconditions, repeated calls.

pub mod access;
pub mod admission;
pub mod auth;
pub mod body;
pub mod failure;
pub(crate) mod known;
pub mod observe;
pub mod page;
pub mod precondition;
pub mod query;
pub mod rate;
pub mod repeat;
pub(crate) mod session;
mod shape;
pub mod threshold;
