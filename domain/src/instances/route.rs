//! How far the route of a host is on the box that has it.

use serde::{Deserialize, Serialize};

/// How far a route is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum RouteStatus {
    /// The box has taken the record, and does not serve it yet.
    Landing,
    /// The box serves it.
    Serving,
    /// A cut has closed it: nobody is served by it any more.
    Moving,
}

impl RouteStatus {
    /// Each.
    pub const ALL: [Self; 3] = [Self::Landing, Self::Serving, Self::Moving];

    /// As it stands in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Landing => "landing",
            Self::Serving => "serving",
            Self::Moving => "moving",
        }
    }
}
