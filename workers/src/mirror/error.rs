//! Why a pass ended without a verdict.

use std::io;

use super::RecordError;
use crate::objects;

/// Why a pass ended without a verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// Heals by itself: another pass may succeed.
    #[error("the mirror is held up, since {} ({about})", reason.words())]
    Transient {
        /// The stable code for the move's status.
        reason: Reason,
        /// Which bucket, prefix or key, and which rule it breaks: what an operator must look at.
        about: String,
        /// What the store said, when it said something.
        #[source]
        source: Option<objects::Error>,
    },
    /// Somebody must act: the same pass would fail again.
    #[error("the mirror is blocked, since {} ({about})", reason.words())]
    Permanent {
        /// The stable code for the move's status.
        reason: Reason,
        /// Which bucket, prefix or key, and which rule it breaks: what an operator must look at.
        about: String,
        /// What the store said, when it said something.
        #[source]
        source: Option<objects::Error>,
    },
    /// A newer fence exists. Stop; write nothing, delete nothing.
    #[error("the lease is lost")]
    LeaseLost,
    /// The caller asked to stop.
    #[error("the pass was cancelled")]
    Cancelled,
    /// The journal could not be read or written.
    #[error("use the journal of copies")]
    Journal(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The temporary files of difference sets could not be written or read.
    #[error("spill differences to a temporary file")]
    Spill(#[source] io::Error),
}

/// What holds a pass up; `as_str` is the stable code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No connection to the source's store, or no answer in time.
    SourceUnreachable,
    /// The source's store asks to slow down.
    SourceThrottled,
    /// The source's store fails.
    SourceFailing,
    /// The source's listing did not end properly.
    SourceListingIncomplete,
    /// The source holds data in a layout that the mirror does not know, or two layouts.
    SourceFormat,
    /// The source's store lists no `ETag`s: nothing could be proven.
    SourceWithoutEtags,
    /// No connection to the target's store, or no answer in time.
    TargetUnreachable,
    /// The target's store asks to slow down.
    TargetThrottled,
    /// The target's store fails.
    TargetFailing,
    /// Our key may not list the target.
    TargetForbidden,
    /// The target bucket does not exist.
    TargetNoBucket,
    /// The target's store refuses a request for another reason.
    TargetRefused,
    /// The target's listing did not end properly.
    TargetListingIncomplete,
    /// The staging holds data in a layout that the mirror does not know.
    TargetFormat,
    /// Our key may not read the source or may not write the target.
    CopyForbidden,
    /// Our key may not delete at the target.
    DeleteForbidden,
    /// The target did not delete some keys of a batch.
    DeleteFailing,
}

impl Reason {
    /// The stable code, as the move's status shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SourceUnreachable => "source_unreachable",
            Self::SourceThrottled => "source_throttled",
            Self::SourceFailing => "source_failing",
            Self::SourceListingIncomplete => "source_listing_incomplete",
            Self::SourceFormat => "source_format",
            Self::SourceWithoutEtags => "source_without_etags",
            Self::TargetUnreachable => "target_unreachable",
            Self::TargetThrottled => "target_throttled",
            Self::TargetFailing => "target_failing",
            Self::TargetForbidden => "target_forbidden",
            Self::TargetNoBucket => "target_no_bucket",
            Self::TargetRefused => "target_refused",
            Self::TargetListingIncomplete => "target_listing_incomplete",
            Self::TargetFormat => "target_format",
            Self::CopyForbidden => "copy_forbidden",
            Self::DeleteForbidden => "delete_forbidden",
            Self::DeleteFailing => "delete_failing",
        }
    }

    /// What is wrong, as the end of a sentence.
    const fn words(self) -> &'static str {
        match self {
            Self::SourceUnreachable => "the source's store cannot be reached",
            Self::SourceThrottled => "the source's store asks to slow down",
            Self::SourceFailing => "the source's store fails",
            Self::SourceListingIncomplete => "the source's listing did not end properly",
            Self::SourceFormat => "the source holds a key whose layout is not known",
            Self::SourceWithoutEtags => "the source's store lists no ETags, without which no copy can be proven",
            Self::TargetUnreachable => "the target's store cannot be reached",
            Self::TargetThrottled => "the target's store asks to slow down",
            Self::TargetFailing => "the target's store fails",
            Self::TargetForbidden => "the box's credentials may not list the target",
            Self::TargetNoBucket => "the target's bucket does not exist",
            Self::TargetRefused => "the target's store refuses a request",
            Self::TargetListingIncomplete => "the target's listing did not end properly",
            Self::TargetFormat => "the staging holds a key whose layout is not known",
            Self::CopyForbidden => "the box's credentials may not read the source or not write the target",
            Self::DeleteForbidden => "the box's credentials may not delete at the target",
            Self::DeleteFailing => "the target did not delete some keys",
        }
    }
}

impl MirrorError {
    pub(super) fn permanent(reason: Reason, about: String) -> Self {
        Self::Permanent { reason, about, source: None }
    }

    /// A failed listing of the source. `Err` carries what makes the source unreadable until somebody acts (M-055).
    pub(super) fn of_source(error: objects::Error, about: impl FnOnce() -> String) -> Result<Self, objects::Error> {
        use objects::Error as E;
        let reason = match &error {
            E::Throttled { .. } => Reason::SourceThrottled,
            E::Unreachable { .. } | E::TimedOut { .. } => Reason::SourceUnreachable,
            E::Failed { .. } => Reason::SourceFailing,
            E::ListingTruncated | E::ListingInvalid(_) => Reason::SourceListingIncomplete,
            E::Forbidden { .. }
            | E::NoSuchBucket { .. }
            | E::Vanished { .. }
            | E::Changed { .. }
            | E::Refused { .. } => {
                return Err(error);
            }
        };
        Ok(Self::Transient { reason, about: about(), source: Some(error) })
    }

    /// A failed request to the target; `forbidden` says which right it lacks. A copy is such a request, too: the
    /// source was listed a moment ago, and the target's store does the copying.
    pub(super) fn of_target(error: objects::Error, forbidden: Reason, about: String) -> Self {
        use objects::Error as E;
        let reason = match &error {
            E::Throttled { .. } => Reason::TargetThrottled,
            E::Unreachable { .. } | E::TimedOut { .. } => Reason::TargetUnreachable,
            E::Failed { .. } => Reason::TargetFailing,
            E::ListingTruncated | E::ListingInvalid(_) => Reason::TargetListingIncomplete,
            E::Forbidden { .. } => forbidden,
            E::NoSuchBucket { .. } => Reason::TargetNoBucket,
            E::Vanished { .. } | E::Changed { .. } | E::Refused { .. } => Reason::TargetRefused,
        };
        if error.is_transient() {
            Self::Transient { reason, about, source: Some(error) }
        } else {
            Self::Permanent { reason, about, source: Some(error) }
        }
    }

    /// The stable code for the move's status.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Transient { reason, .. } | Self::Permanent { reason, .. } => reason.as_str(),
            Self::LeaseLost => "lease_lost",
            Self::Cancelled => "cancelled",
            Self::Journal(_) => "journal",
            Self::Spill(_) => "spill",
        }
    }

    /// Whether somebody must act before another pass can succeed.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::Permanent { .. })
    }
}

impl From<RecordError> for MirrorError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::LeaseLost => Self::LeaseLost,
            RecordError::Store(source) => Self::Journal(source),
        }
    }
}
