//! The queue's SQL.

pub mod evidence;
pub mod figures;
mod finish;
pub mod hints;
pub mod lease;
pub mod limits;
pub mod maintenance;
pub mod marks;
pub mod operate;
pub mod operate_again;
pub mod prune;
mod prune_batch;
mod prune_days;
mod prune_rest;
pub mod read;
pub mod read_parts;
pub mod renew;
pub mod rescue;
pub mod settle;
pub mod settle_in;
pub mod steer;
pub mod strays;
pub mod submit;
pub mod under_lease;
pub mod why;
pub mod workers;
