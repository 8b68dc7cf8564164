//! The box's activator, with real processes, a real litestream and the sandbox's S3.

mod keeping;
mod landing;
mod processes;
mod replicas;
mod rig;
mod worker;
