//! What stands around a box in dev, demo and tests: edges that send requests to it, and an application that it runs.

mod answers;
mod api;
mod bodies;
mod ledger;
mod rig;
