//! How a command ends.

use std::process::ExitCode;

/// The exit codes, as `leasehold --help` documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Failed; nothing more special below fits.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The API refused the key, or the key lacks the permission.
    Denied = 3,
    /// What was named does not exist, or may not be seen.
    NotFound = 4,
    /// The present state forbids it, or it changed meanwhile.
    Conflict = 5,
    /// The API or the database did not answer: nothing is known about the call's effect.
    Unavailable = 6,
    /// The doctor found something wrong, or could not look at it.
    Findings = 7,
    /// Ended before its work was done, because somebody asked: 128 and SIGINT's number, as shells have it.
    Interrupted = 130,
}

/// What `--help` says about them.
pub(crate) const HELP: &str = "Exit codes:
  0  done
  1  failed
  2  the command line, the configuration or a value in them is wrong
  3  the key is missing, wrong or revoked, or lacks the permission
  4  what was named does not exist, or may not be seen with this key
  5  the present state forbids it, or it changed meanwhile
  6  the API or the database did not answer, or has no room now
  7  `leasehold doctor` found something wrong, or could not look
  130  interrupted by Ctrl-C or SIGTERM before the work was done";

impl Exit {
    /// Stable, for programs, where no problem of the API has a code of its own.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Denied => "denied",
            Self::NotFound => "absent",
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::Findings => "findings",
            Self::Interrupted => "interrupted",
        }
    }

    /// The same few words for the same code.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Ok => "Done",
            Self::Failed => "It failed",
            Self::Usage => "The command line or the configuration is wrong",
            Self::Denied => "A valid key with the permission is needed",
            Self::NotFound => "Not found",
            Self::Conflict => "The present state forbids it",
            Self::Unavailable => "No answer",
            Self::Findings => "Something is wrong",
            Self::Interrupted => "Interrupted",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error whose exit code is known where it is made.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The code.
    pub(crate) exit: Exit,
    /// The sentence.
    pub(crate) message: String,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Ending {}

/// The exit code that fits `error`, by the first cause that says one.
pub(crate) fn code_of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(code_of_cause).unwrap_or(Exit::Failed)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(ending) = cause.downcast_ref::<Ending>() {
        return Some(ending.exit);
    }
    if cause.is::<crate::settings::Error>() {
        return Some(Exit::Usage);
    }
    if let Some(error) = cause.downcast_ref::<wire::Error>() {
        return Some(code_of_answer(error));
    }
    if let Some(domain::authority::Error::AdministratorExists) = cause.downcast_ref() {
        return Some(Exit::Conflict);
    }
    match cause.downcast_ref::<domain::db::Error>()? {
        domain::db::Error::Url(_) => Some(Exit::Usage),
        domain::db::Error::Connect(_) => Some(Exit::Unavailable),
        domain::db::Error::Migrate(_)
        | domain::db::Error::SchemaOld { .. }
        | domain::db::Error::SchemaNew { .. }
        | domain::db::Error::Schema(_) => Some(Exit::Failed),
    }
}

/// Every code of the API has its exit code here.
fn code_of_problem(code: wire::Code) -> Exit {
    use wire::Code;
    match code {
        Code::MalformedRequest
        | Code::WrongContentType
        | Code::InvalidQuery
        | Code::BodyTooLarge
        | Code::PayloadTooLarge
        | Code::ValidationFailed
        | Code::KindNotPublic => Exit::Usage,
        Code::Unauthenticated
        | Code::EnrolmentRefused
        | Code::SessionRefused
        | Code::PermissionDenied
        | Code::FormTokenMismatch => Exit::Denied,
        Code::NotFound | Code::RegionUnknown | Code::UnknownKind => Exit::NotFound,
        Code::RegionUnarmed
        | Code::RegionCannotHost
        | Code::SameRegion
        | Code::KindNotMovable
        | Code::BackingNotMovable
        | Code::Replica
        | Code::FleetNotMovable
        | Code::PoolNotMovable
        | Code::HibernateRequired
        | Code::JobConflict
        | Code::MoveInFlight
        | Code::NoMove
        | Code::MoveNotReady
        | Code::FreezeOverBudget
        | Code::MoveNotCutting
        | Code::MovePastRecall
        | Code::InstanceServed
        | Code::RegionPurging
        | Code::NotPlaced
        | Code::HostTaken
        | Code::RegionInUse
        | Code::NodeDecommissioned
        | Code::StaleReport
        | Code::NameTaken
        | Code::StaleRevision
        | Code::IdempotencyKeyReused => Exit::Conflict,
        Code::RateLimited | Code::DatabaseUnavailable | Code::RequestTimeout | Code::TooManyListeners => {
            Exit::Unavailable
        }
        Code::MethodNotAllowed | Code::Internal => Exit::Failed,
    }
}

/// The exit code of a verb that is refused with this code.
pub(crate) fn code_of_refusal(code: &str) -> Exit {
    wire::Code::parse(code).map_or(Exit::Conflict, code_of_problem)
}

fn code_of_answer(error: &wire::Error) -> Exit {
    match error {
        wire::Error::Problem(problem) => match wire::Code::parse(&problem.code) {
            Some(code) => code_of_problem(code),
            None => code_of_status(problem.status),
        },
        wire::Error::Unreachable { .. } => Exit::Unavailable,
        wire::Error::Address(_) | wire::Error::NoCertificate(_) => Exit::Usage,
        wire::Error::Unexpected { .. } | wire::Error::Prepare(_) | wire::Error::Tls(_) => Exit::Failed,
    }
}

/// For a code of a newer API.
fn code_of_status(status: u16) -> Exit {
    match status {
        401 | 403 => Exit::Denied,
        404 => Exit::NotFound,
        409 | 412 => Exit::Conflict,
        502..=504 => Exit::Unavailable,
        _ => Exit::Failed,
    }
}
