//! What acts on the world: the runner of jobs, and the jobs themselves.

pub mod failpoint;
pub mod mirror;
pub mod objects;
