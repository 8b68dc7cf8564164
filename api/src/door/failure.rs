//! Refusals and failures, as problem details.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use wire::{Code, FieldError, Problem};

/// When a caller should ask again while the database is away.
const DATABASE_RETRY_SECONDS: u32 = 2;

/// Why a request was not done. The caller sees the problem; the log sees the source too.
#[derive(Debug, Clone)]
pub struct Failure {
    inner: Box<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    problem: Problem,
    code: Code,
    retry_after_seconds: Option<u32>,
    /// The chain of causes, for the log only.
    cause: Option<String>,
    /// The transaction lost a deadlock or a serialization race: the same one may succeed.
    race: bool,
}

impl Failure {
    /// A refusal with a sentence that says what to do.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let problem = Problem::new(code, detail);
        Self { inner: Box::new(Inner { problem, code, retry_after_seconds: None, cause: None, race: false }) }
    }

    /// A value of the body that is not allowed.
    #[must_use]
    pub fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::fields(vec![FieldError { pointer: Some(pointer.into()), parameter: None, detail: detail.into() }])
    }

    /// A value of the query that is not allowed.
    #[must_use]
    pub fn parameter(name: &str, detail: impl Into<String>) -> Self {
        Self::fields(vec![FieldError { pointer: None, parameter: Some(name.to_owned()), detail: detail.into() }])
    }

    /// Values that are not allowed.
    #[must_use]
    pub fn fields(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [one] => format!(
                "{} is not allowed: {}",
                one.pointer.as_deref().or(one.parameter.as_deref()).unwrap_or("a value"),
                one.detail
            ),
            many => format!("{} values are not allowed; `errors` names each with its rule.", many.len()),
        };
        let mut failure = Self::new(Code::ValidationFailed, detail);
        failure.inner.problem.errors = errors;
        failure
    }

    /// What does not exist, and what this caller may not see: the same words for both.
    #[must_use]
    pub fn not_found() -> Self {
        Self::new(
            Code::NotFound,
            "There is no such thing, or this key may not see it: check the address and the key's scopes.",
        )
    }

    /// Our own mistake; the cause goes to the log.
    #[must_use]
    pub fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(
            Code::Internal,
            "Something went wrong on our side; the log has the cause under this request's id. Nothing was changed.",
        )
        .caused_by(cause)
    }

    /// Adds the present state of the thing that conflicts.
    #[must_use]
    pub fn with_current(mut self, current: Option<serde_json::Value>) -> Self {
        self.inner.problem.current = current;
        self
    }

    /// Adds values that are not allowed.
    #[must_use]
    pub fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.inner.problem.errors = errors;
        self
    }

    /// Says when to ask again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.inner.retry_after_seconds = Some(seconds);
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = cause.to_string();
        let mut next = cause.source();
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        self.inner.cause = Some(text);
        self
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.inner.code
    }

    /// What the caller is told.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.inner.problem
    }

    /// The chain of causes, for the log only.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.inner.cause.as_deref()
    }

    /// Whether the same transaction may succeed when it is tried again.
    #[must_use]
    pub fn is_race(&self) -> bool {
        self.inner.race
    }

    /// The answer, with the request's id in it.
    #[must_use]
    pub fn respond(&self, request_id: Option<&str>) -> Response {
        let mut problem = self.inner.problem.clone();
        problem.request_id = request_id.map(str::to_owned);
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.inner.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.inner.code == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"leasehold\""));
        }
        response
    }
}

/// The body is written by the outermost layer, which knows the request's id; see [`super::observe`].
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.respond(None);
        response.extensions_mut().insert(self);
        response
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if domain::db::unavailable(&error) {
            return Self::new(
                Code::DatabaseUnavailable,
                "The database does not answer. Ask again; with an Idempotency-Key a repeated call acts once.",
            )
            .retry_after(DATABASE_RETRY_SECONDS)
            .caused_by(&error);
        }
        let mut failure = Self::internal(&error);
        failure.inner.race = domain::db::lost_a_race(&error);
        failure
    }
}

impl From<domain::queue::Error> for Failure {
    fn from(error: domain::queue::Error) -> Self {
        use domain::queue::Error;
        match error {
            Error::PayloadTooLarge { .. } => Self::new(Code::PayloadTooLarge, sentence(&error)),
            Error::Invalid { field, rule } => Self::field(format!("/{}", wire_name(field)), rule),
            Error::NotFound(_) => Self::not_found(),
            Error::Conflict { .. } | Error::KeyTaken { .. } => Self::new(Code::JobConflict, sentence(&error)),
            Error::Stale { .. } | Error::StaleLimits { .. } => Self::new(Code::StaleRevision, sentence(&error)),
            Error::LeaseLost(_) | Error::SettledBefore(_) => Self::internal(&error),
            Error::Store(source) => source.into(),
        }
    }
}

/// Where a field of the domain stands on the wire.
pub(super) fn wire_name(field: &str) -> &str {
    if field == "deadline" { "deadline_ms" } else { field }
}

impl From<domain::authority::Error> for Failure {
    fn from(error: domain::authority::Error) -> Self {
        use domain::authority::Error;
        match error {
            Error::Refused(refusal) => super::auth::refused(refusal),
            Error::Invalid { field, rule } => Self::field(format!("/{field}"), rule),
            Error::NameTaken(_) | Error::AdministratorExists => Self::new(Code::NameTaken, sentence(&error)),
            Error::Stale { .. } => Self::new(Code::StaleRevision, sentence(&error)),
            Error::Exceeds(_) => Self::new(Code::PermissionDenied, sentence(&error)),
            Error::KeyNotFound(_) | Error::IdentityNotFound(_) => Self::not_found(),
            Error::Store(source) => source.into(),
        }
    }
}

impl From<domain::instances::Error> for Failure {
    fn from(error: domain::instances::Error) -> Self {
        use domain::instances::Error;
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Invalid { field, rule } => Self::field(format!("/{field}"), rule),
            Error::LeaseLost(lost) => Self::internal(&lost),
            Error::Queue(_) => Self::internal(&error),
            Error::Store(source) => source.into(),
        }
    }
}

impl From<domain::instances::Refusal> for Failure {
    fn from(refusal: domain::instances::Refusal) -> Self {
        use domain::instances::Refusal;
        let code = match &refusal {
            Refusal::NotFound => return Self::not_found(),
            Refusal::Kind(_) => Code::KindNotMovable,
            Refusal::Backing(_) => Code::BackingNotMovable,
            Refusal::Replica => Code::Replica,
            Refusal::Placement(_) => Code::FleetNotMovable,
            Refusal::Pool(_) => Code::PoolNotMovable,
            Refusal::NeverHibernates => Code::HibernateRequired,
            Refusal::SameRegion(_) => Code::SameRegion,
            Refusal::RegionUnknown(_) => Code::RegionUnknown,
            Refusal::RegionUnarmed(_) => Code::RegionUnarmed,
            Refusal::RegionCannotHost(_) | Refusal::RegionHoldsNoKey(_) => Code::RegionCannotHost,
            Refusal::InFlight { .. } => Code::MoveInFlight,
            Refusal::NoMove => Code::NoMove,
            Refusal::NotReady { .. } => Code::MoveNotReady,
            Refusal::FreezeOverBudget { .. } => Code::FreezeOverBudget,
            Refusal::NotCutting(_) => Code::MoveNotCutting,
            Refusal::PastRecall => Code::MovePastRecall,
            Refusal::Serves(_) => Code::InstanceServed,
            Refusal::Purging(_) => Code::RegionPurging,
            Refusal::Stale { .. } => Code::StaleRevision,
            Refusal::NotPlaced => Code::NotPlaced,
            Refusal::HostTaken => Code::HostTaken,
        };
        Self::new(code, sentence(&refusal))
    }
}

impl From<domain::nodes::Error> for Failure {
    fn from(error: domain::nodes::Error) -> Self {
        use domain::nodes::Error;
        match error {
            Error::RegionUnknown(_) => Self::not_found(),
            Error::Invalid { field, rule } => Self::field(format!("/{field}"), rule),
            Error::InUse(_) => Self::new(Code::RegionInUse, sentence(&error)),
            Error::DefaultTaken => Self::field("/default", error.to_string()),
            Error::Stale { .. } => Self::new(Code::StaleRevision, sentence(&error)),
            Error::RegionDiffers { .. } | Error::BucketDiffers { .. } => Self::internal(&error),
            Error::Store(source) => source.into(),
        }
    }
}

impl From<domain::nodes::records::Error> for Failure {
    fn from(error: domain::nodes::records::Error) -> Self {
        use domain::nodes::records::Error;
        match error {
            Error::NotFound(_) => Self::not_found(),
            Error::Decommissioned { .. } => Self::new(Code::NodeDecommissioned, sentence(&error)),
            Error::IdentityTaken(_) => Self::new(Code::NameTaken, sentence(&error)),
            Error::RegionUnknown(_) => Self::new(Code::RegionUnknown, sentence(&error)),
            Error::Invalid { field, rule } => Self::field(format!("/{field}"), rule),
            Error::Store(source) => source.into(),
        }
    }
}

/// An error's text as a sentence.
fn sentence(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), chars.as_str()),
        None => text,
    }
}
