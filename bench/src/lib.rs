//! Load programs. What they print is read by people; nothing is asserted about speed.

#![allow(clippy::print_stdout, reason = "what they measure is printed")]

pub mod measure;
pub mod queue;
pub mod report;
pub mod stand;
