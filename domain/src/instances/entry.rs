//! An instance as a line of the list of all.

use super::RouteStatus;
use super::moves::{Obstacle, StoredState};
use crate::ids::{AppName, Host, RegionCode};

/// Where an instance is and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its application.
    pub app: AppName,
    /// Its host.
    pub host: Host,
    /// Where it is placed.
    pub region: RegionCode,
    /// Whether it is not to run until somebody wakes it.
    pub parked: bool,
    /// How far its route is; `None` where no box has it.
    pub status: Option<RouteStatus>,
    /// What holds it up, or that it is not replicated.
    pub held: Option<Obstacle>,
    /// The box that has its route, and where that is.
    pub node: Option<(String, RegionCode)>,
    /// Whether that box was heard lately.
    pub live: bool,
    /// The state of its move, and where to.
    pub moving: Option<(StoredState, RegionCode)>,
}
