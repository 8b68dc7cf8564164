//! Instances and their moves: the record, the verb, the box's passes, on a real database and an S3 in this process.

mod abort;
mod acting;
mod actors;
mod config;
mod crash;
mod cut;
mod faults;
mod freeze;
mod history;
mod kills;
mod landing;
mod large;
mod live;
mod race;
mod record;
mod rehearsal;
mod remains;
mod replaced;
mod rounds;
mod scope;
mod standing;
mod support;
mod sweeps;
mod verb;
mod verbs;
