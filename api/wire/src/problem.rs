//! Errors as RFC 9457 problem details, with a stable code each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// Every code that the API answers with. A code keeps its meaning for ever; each has a help page.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As it stands in a problem.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// HTTP's status for it.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The same few words each time.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    /// The body or a header has the wrong shape.
    MalformedRequest = "malformed_request", 400, "The request is malformed";
    /// The body is not announced as JSON.
    WrongContentType = "wrong_content_type", 400, "The content type is wrong";
    /// A query parameter is unknown, doubled or unreadable.
    InvalidQuery = "invalid_query", 400, "The query is invalid";
    /// No such region.
    RegionUnknown = "region_unknown", 400, "The region is unknown";
    /// No instance may be placed in the region.
    RegionUnarmed = "region_unarmed", 400, "The region is not armed";
    /// No box of the region can host the instance.
    RegionCannotHost = "region_cannot_host", 400, "No box there can host it";
    /// The instance is in this region already.
    SameRegion = "same_region", 400, "The instance is there already";
    /// Records of this kind have no data that could follow.
    KindNotMovable = "kind_not_movable", 400, "This kind does not move";
    /// What runs the instance has no child and database of its own.
    BackingNotMovable = "backing_not_movable", 400, "This backing does not move";
    /// Replicas do not move.
    Replica = "replica", 400, "A replica does not move";
    /// Instances placed in a fleet do not move.
    FleetNotMovable = "fleet_not_movable", 400, "An instance of a fleet does not move";
    /// Instances of a pool do not move.
    PoolNotMovable = "pool_not_movable", 400, "An instance of a pool does not move";
    /// Instances that never hibernate do not move.
    HibernateRequired = "hibernate_required", 400, "The instance must be able to hibernate";
    /// No key, or none that is accepted.
    Unauthenticated = "unauthenticated", 401, "A valid key is needed";
    /// The secret enrols nobody; the same answer whatever the reason.
    EnrolmentRefused = "enrolment_refused", 401, "The machine was not enrolled";
    /// The signature proves no node; the same answer whatever the reason.
    SessionRefused = "session_refused", 401, "The node was not proven";
    /// The key lacks the permission.
    PermissionDenied = "permission_denied", 403, "The key lacks a permission";
    /// It does not exist, or this key may not see it.
    NotFound = "not_found", 404, "Not found";
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, "The method is not allowed";
    /// The job's state does not allow this.
    JobConflict = "job_conflict", 409, "The job's state does not allow this";
    /// A move of this instance is in flight.
    MoveInFlight = "move_in_flight", 409, "A move is in flight";
    /// No move of this instance is in flight.
    NoMove = "no_move", 409, "No move is in flight";
    /// The move cannot be cut yet.
    MoveNotReady = "move_not_ready", 409, "The move is not ready";
    /// The cut would freeze the instance for longer than the move may.
    FreezeOverBudget = "freeze_over_budget", 409, "The predicted freeze is over the budget";
    /// Only a move that is being cut can be taken back so.
    MoveNotCutting = "move_not_cutting", 409, "The move is not being cut";
    /// The source's database may be gone: forward only.
    MovePastRecall = "move_past_recall", 409, "The move goes forward only";
    /// A box that lives serves the instance.
    InstanceServed = "instance_served", 409, "A box serves the instance";
    /// What an earlier move left in the region is being purged.
    RegionPurging = "region_purging", 409, "The region's old copy is being purged";
    /// No box serves the instance yet.
    NotPlaced = "not_placed", 409, "No box serves the instance yet";
    /// A record of the host exists already.
    HostTaken = "host_taken", 409, "The host is taken";
    /// The region's bucket cannot change while something uses it.
    RegionInUse = "region_in_use", 409, "The region is in use";
    /// The node was taken out of service for good.
    NodeDecommissioned = "node_decommissioned", 409, "The node was decommissioned";
    /// A later report of the node is known, or another machine is the node now.
    StaleReport = "stale_report", 409, "A later report is known";
    /// The name is taken.
    NameTaken = "name_taken", 409, "The name is taken";
    /// It changed since it was read.
    StaleRevision = "stale_revision", 412, "It changed since it was read";
    /// The body is larger than this route takes.
    BodyTooLarge = "body_too_large", 413, "The body is too large";
    /// The arguments are larger than a job may carry.
    PayloadTooLarge = "payload_too_large", 413, "The arguments are too large";
    /// A value is out of its bounds.
    ValidationFailed = "validation_failed", 422, "A value is not allowed";
    /// No such kind of job.
    UnknownKind = "unknown_kind", 422, "The kind is unknown";
    /// The kind's jobs are enqueued by the system alone.
    KindNotPublic = "kind_not_public", 422, "The kind is not open to callers";
    /// The idempotency key was used for another request.
    IdempotencyKeyReused = "idempotency_key_reused", 422, "The idempotency key was used for another request";
    /// Too many requests with this key.
    RateLimited = "rate_limited", 429, "Too many requests";
    /// Our own mistake.
    Internal = "internal", 500, "Something went wrong on our side";
    /// The database does not answer.
    DatabaseUnavailable = "database_unavailable", 503, "The database is not available";
    /// The request took longer than it may.
    RequestTimeout = "request_timeout", 503, "The request took too long";
    /// As many connections of this kind are open as may be.
    TooManyListeners = "too_many_listeners", 503, "Too many listeners";
    /// A form of the dashboard does not carry its session's token.
    FormTokenMismatch = "form_token_mismatch", 403, "The form is not of this session";
}

impl Code {
    /// Reads a code; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// What went wrong, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Where the code's help page is: `/docs/errors/<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same few words for the same code.
    pub title: String,
    /// HTTP's status.
    pub status: u16,
    /// Stable, for programs.
    pub code: String,
    /// What happened and what to do, for people.
    pub detail: String,
    /// Which values are not allowed, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The present state of the thing, where a conflict or a stale revision was the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<serde_json::Value>,
    /// The request's id, to be found in the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One value that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the request's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The query parameter or header, where it is none of the body's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The rule that it breaks.
    pub detail: String,
}

impl Problem {
    /// A problem of this code.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/docs/errors/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code: code.as_str().to_owned(),
            detail: detail.into(),
            errors: Vec::new(),
            current: None,
            request_id: None,
        }
    }

    /// Whether it is of this code.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)?;
        for error in &self.errors {
            let place = error.pointer.as_deref().or(error.parameter.as_deref()).unwrap_or_default();
            write!(f, "\n  {place}: {}", error.detail)?;
        }
        Ok(())
    }
}
