//! What acts on the world: the runner of jobs, and the jobs themselves.

pub mod failpoint;
pub mod mirror;
pub mod objects;
pub mod jobs;
pub mod runner;
pub mod seam;
