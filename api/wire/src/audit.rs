//! The audit trail.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// Who did what, to what, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEvent {
    /// Rises with time.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// Who; null for the system itself.
    pub identity_id: Option<Uuid>,
    /// The identity's name.
    pub identity: Option<String>,
    /// Through which key.
    pub key_id: Option<Uuid>,
    /// What, e.g. `job.cancel`.
    pub action: String,
    /// To what kind of thing.
    pub subject_kind: String,
    /// To which one.
    pub subject: String,
    /// Why, in the actor's words.
    pub reason: Option<String>,
    /// What else is worth knowing.
    #[schema(value_type = Object)]
    pub detail: Value,
}
