//! What stands around a box in dev, demo and tests: edges that send requests to it, and an application that it runs.

mod ledger;
mod rig;
