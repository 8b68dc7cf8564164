//! The mirror engine and its S3 client, on the sandbox's S3 and on SeaweedFS.

mod copies;
mod races;
mod restore;
mod rig;
mod rounds;
mod seaweed;
mod status;
