//! The rules of the house that a compiler does not know, as tests that name the line.

mod crates;
mod docs;
mod files;
mod ids;
mod sources;
