//! The command line as its users have it: the built program, started as a process.

mod demo;
mod dev;
mod doctor;
mod instances;
mod keys;
mod moves;
mod node_reports;
mod nodes;
mod pinned;
mod prune;
mod queues;
mod roles;
mod settings;
mod support;
mod verbs;
