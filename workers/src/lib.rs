//! What acts on the world: the runner of jobs, and the jobs themselves.

pub mod activator;
mod chain;
pub mod failpoint;
pub mod jobs;
pub mod mirror;
pub mod node;
pub mod objects;
pub mod runner;
pub mod seam;
