//! What the API tells of its own state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the API can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// True while every check passes.
    pub ready: bool,
    /// Each check.
    pub checks: Vec<Check>,
}

/// One thing that must be well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// Its name: `database`, `schema`, or a loop's.
    pub name: String,
    /// Whether it is well.
    pub ok: bool,
    /// What is wrong, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
