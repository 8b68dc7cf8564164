//! What a store answered, as far as a caller would treat it differently.

use std::time::Duration;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use super::Op;
use crate::chain::chain;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a request to the store has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store asks for fewer requests (`SlowDown`, 429, 503).
    #[error("{op}: the store asks to slow down ({code})")]
    Throttled {
        /// What was asked.
        op: Op,
        /// The store's code, or the HTTP status.
        code: String,
    },
    /// No connection, or one that broke.
    #[error("{op}: reach the store")]
    Unreachable {
        /// What was asked.
        op: Op,
        /// What the connection said.
        #[source]
        source: Source,
    },
    /// No answer in time. The request may still take effect.
    #[error("{op}: no answer within {limit:?}")]
    TimedOut {
        /// What was asked.
        op: Op,
        /// The time allowed for one attempt.
        limit: Duration,
    },
    /// The store failed: 5xx, or a 200 whose body is an error or no answer at all.
    #[error("{op}: the store failed ({code})")]
    Failed {
        /// What was asked.
        op: Op,
        /// The store's code, or what was wrong with the answer.
        code: String,
    },
    /// Missing right, wrong or revoked key (401, 403).
    #[error("{op}: the store forbids it ({code})")]
    Forbidden {
        /// What was asked.
        op: Op,
        /// The store's code, or the HTTP status.
        code: String,
    },
    /// The bucket does not exist.
    #[error("{op}: no such bucket")]
    NoSuchBucket {
        /// What was asked.
        op: Op,
    },
    /// The source object is gone.
    #[error("{op}: the object is gone")]
    Vanished {
        /// What was asked.
        op: Op,
    },
    /// The source object has another `ETag` than the listed one.
    #[error("{op}: the object changed")]
    Changed {
        /// What was asked.
        op: Op,
    },
    /// The listing says that there is more, and not where.
    #[error("list: truncated without a token")]
    ListingTruncated,
    /// The listing contradicts itself, so it proves nothing.
    #[error("list: {0}")]
    ListingInvalid(&'static str),
    /// Any other refusal: asking again the same way would get the same answer.
    #[error("{op}: the store refuses ({code})")]
    Refused {
        /// What was asked.
        op: Op,
        /// The store's code, or the HTTP status.
        code: String,
    },
}

impl Error {
    /// Whether the same request may succeed later without anybody's doing.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Throttled { .. }
            | Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Failed { .. }
            | Self::ListingTruncated
            | Self::ListingInvalid(_) => true,
            Self::Forbidden { .. }
            | Self::NoSuchBucket { .. }
            | Self::Vanished { .. }
            | Self::Changed { .. }
            | Self::Refused { .. } => false,
        }
    }

    /// Whether one call should try again by itself. A listing that contradicts itself ends its round instead: pages
    /// are not atomic, so there is nothing to resume.
    pub(crate) const fn is_worth_a_retry(&self) -> bool {
        self.is_transient() && !matches!(self, Self::ListingTruncated | Self::ListingInvalid(_))
    }

    /// The `outcome` label of the request metric.
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::Throttled { .. } => "throttled",
            Self::Unreachable { .. } => "unreachable",
            Self::TimedOut { .. } => "timed_out",
            Self::Failed { .. } => "failed",
            Self::Forbidden { .. } => "forbidden",
            Self::NoSuchBucket { .. } => "no_bucket",
            Self::Vanished { .. } => "vanished",
            Self::Changed { .. } => "changed",
            Self::ListingTruncated | Self::ListingInvalid(_) => "invalid",
            Self::Refused { .. } => "refused",
        }
    }

    /// Reads the SDK's error.
    pub(super) fn from_sdk<E>(op: Op, error: SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let status = error.raw_response().map(|response| response.status().as_u16());
        let code = error.code().map(str::to_owned);
        match (error, status) {
            (SdkError::ServiceError(_), Some(status)) => Self::from_answer(op, status, code),
            // An answer that is no S3 answer, for example a proxy's page. With an error status the status decides.
            (SdkError::ResponseError(_), Some(status)) if status >= 300 => Self::from_answer(op, status, code),
            (SdkError::ResponseError(_), _) => Self::Failed { op, code: "unreadable answer".to_owned() },
            (error @ SdkError::ConstructionFailure(_), _) => {
                Self::Refused { op, code: format!("request not built: {}", chain(&error)) }
            }
            (error, _) => Self::Unreachable { op, source: Box::new(error) },
        }
    }

    /// Judges an error answer by its code first: a 200 can carry any of them, and a store that is not AWS may choose
    /// another status.
    pub(super) fn from_answer(op: Op, status: u16, code: Option<String>) -> Self {
        let known = code.as_deref().unwrap_or_default();
        let named = || code.clone().unwrap_or_else(|| format!("HTTP {status}"));
        match (known, status) {
            ("SlowDown" | "RequestLimitExceeded" | "Throttling" | "ThrottlingException" | "TooManyRequests", _)
            | (_, 429 | 503) => Self::Throttled { op, code: named() },
            ("NoSuchBucket", _) => Self::NoSuchBucket { op },
            // The answer to a CompleteMultipartUpload whose first answer was lost.
            ("NoSuchUpload", _) => Self::Failed { op, code: named() },
            ("PreconditionFailed", _) | (_, 412) => Self::Changed { op },
            ("ExpiredToken" | "RequestTimeout" | "OperationAborted" | "ConditionalRequestConflict", _)
            | (_, 408 | 409) => Self::Failed { op, code: named() },
            ("AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AllAccessDisabled", _)
            | (_, 401 | 403) => Self::Forbidden { op, code: named() },
            ("NoSuchKey", _) => Self::Vanished { op },
            (_, 404) => match op {
                Op::Copy | Op::CopyPart | Op::Head | Op::Get => Self::Vanished { op },
                Op::List | Op::Versions | Op::Delete | Op::CreateUpload | Op::CompleteUpload | Op::AbortUpload => {
                    Self::NoSuchBucket { op }
                }
            },
            (_, 200..=299 | 500..=599) => Self::Failed { op, code: named() },
            _ => Self::Refused { op, code: named() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(op: Op, status: u16, code: &str) -> &'static str {
        Error::from_answer(op, status, (!code.is_empty()).then(|| code.to_owned())).outcome()
    }

    #[test]
    fn answers_are_classed_by_code_then_status() {
        for (op, status, code, expected) in [
            (Op::List, 503, "SlowDown", "throttled"),
            (Op::Copy, 200, "SlowDown", "throttled"),
            (Op::Copy, 200, "InternalError", "failed"),
            (Op::List, 503, "", "throttled"),
            (Op::List, 500, "", "failed"),
            (Op::List, 404, "NoSuchBucket", "no_bucket"),
            (Op::Copy, 404, "NoSuchBucket", "no_bucket"),
            (Op::Copy, 404, "NoSuchKey", "vanished"),
            (Op::Head, 404, "", "vanished"),
            (Op::CompleteUpload, 404, "NoSuchUpload", "failed"),
            (Op::Copy, 412, "PreconditionFailed", "changed"),
            (Op::Head, 412, "", "changed"),
            (Op::List, 403, "AccessDenied", "forbidden"),
            (Op::List, 403, "", "forbidden"),
            (Op::Copy, 409, "OperationAborted", "failed"),
            (Op::Copy, 400, "InvalidRequest", "refused"),
            (Op::Copy, 301, "PermanentRedirect", "refused"),
            (Op::List, 400, "ExpiredToken", "failed"),
        ] {
            assert_eq!(class(op, status, code), expected, "{op} {status} {code}");
        }
    }

    #[test]
    fn only_what_can_heal_by_itself_is_transient() {
        for (status, code, transient) in [
            (503, "SlowDown", true),
            (500, "InternalError", true),
            (403, "AccessDenied", false),
            (404, "NoSuchBucket", false),
            (404, "NoSuchKey", false),
            (412, "PreconditionFailed", false),
            (400, "InvalidArgument", false),
        ] {
            assert_eq!(Error::from_answer(Op::Copy, status, Some(code.to_owned())).is_transient(), transient, "{code}");
        }
    }

    #[test]
    fn a_listing_that_contradicts_itself_is_not_resumed() {
        assert!(!Error::ListingTruncated.is_worth_a_retry());
        assert!(Error::ListingTruncated.is_transient());
    }
}
