//! Instances: records, routes, edges and moves between regions.

pub mod plan;
