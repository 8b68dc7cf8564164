//! Why a step of a cut or of a landing ends without its end, and the pass that such a step makes.

use domain::instances::moves::Obstacle;
use tokio_util::sync::CancellationToken;

use super::JobContext;
use crate::activator;
use crate::chain::chain;
use crate::mirror::{KeyJournal, Mirror, MirrorError, NotReady, Observer, PassReport};

/// Why a step ends without its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// Something holds it up, and is told.
    Held(Obstacle),
    /// The worker stops, or the job is to: nothing is wrong, and the next run goes on at once.
    Drained,
}

impl Halt {
    /// Something that may pass by itself.
    pub(super) fn passing(code: &str, message: impl Into<String>) -> Self {
        Self::Held(Obstacle::passing(code, message))
    }

    /// Something that somebody must act on.
    pub(super) fn lasting(code: &str, message: impl Into<String>) -> Self {
        Self::Held(Obstacle::lasting(code, message))
    }

    /// What the box could not do.
    pub(super) fn of_box(code: &str, error: &activator::Error) -> Self {
        Self::Held(obstacle_of_box(code, error))
    }

    /// What a restore, or what was restored, was refused for: what litestream or SQLite refuses stays so until somebody looks.
    pub(super) fn of_restore(code: &str, error: &activator::Error) -> Self {
        if matches!(
            error,
            activator::Error::Litestream { .. }
                | activator::Error::Database { .. }
                | activator::Error::Tail { .. }
                | activator::Error::Hole { .. }
        ) {
            Self::lasting(code, chain(error))
        } else {
            Self::of_box(code, error)
        }
    }
}

impl From<MirrorError> for Halt {
    fn from(error: MirrorError) -> Self {
        match error {
            MirrorError::Cancelled => Self::Drained,
            error @ (MirrorError::LeaseLost
            | MirrorError::Transient { .. }
            | MirrorError::Permanent { .. }
            | MirrorError::Journal(_)
            | MirrorError::Spill(_)) => Self::Held(obstacle_of(&error)),
        }
    }
}

/// What the box could not do. What runs and does not end is somebody's to end, and what is broken somebody's to mend; the
/// rest may be the store's moment.
pub(super) fn obstacle_of_box(code: &str, error: &activator::Error) -> Obstacle {
    use activator::Error::{Broken, Hangs, Hole, Runs};
    let permanent = matches!(error, Hangs { .. } | Runs { .. } | Broken { .. } | Hole { .. });
    Obstacle { permanent, ..Obstacle::passing(code, chain(error)) }
}

/// Why a pass that ended well did not bring both sides together: `busy` says what it means that one side still changed.
pub(super) fn obstacle_of_unready(why: &NotReady, busy: impl FnOnce() -> String) -> Obstacle {
    match why {
        NotReady::Busy => Obstacle::passing(why.code(), busy()),
        NotReady::SourceEmpty { prefix } => {
            Obstacle::passing(why.code(), format!("{prefix} holds no replica: does litestream run?"))
        }
        NotReady::SourceUnreadable { at, error } => {
            Obstacle::lasting(why.code(), format!("what is to be copied cannot be listed ({at}): {}", chain(error)))
        }
    }
}

/// What a pass that failed says of itself.
pub(super) fn obstacle_of(error: &MirrorError) -> Obstacle {
    Obstacle { permanent: error.is_permanent(), ..Obstacle::passing(error.code(), chain(error)) }
}

/// Makes one pass to its end, or until the job or its worker is to stop, or `enough` is over: then it stops between requests,
/// and records the copies under way.
///
/// # Errors
/// The pass's; [`MirrorError::Cancelled`] where it was stopped.
pub(super) async fn pass_until(
    mirror: &Mirror,
    journal: &dyn KeyJournal,
    observer: &dyn Observer,
    context: &JobContext,
    enough: impl Future<Output = ()>,
) -> Result<PassReport, MirrorError> {
    let stop = CancellationToken::new();
    // Boxed: a pass is a deep future, and the job that holds it need not be one.
    let mut pass = Box::pin(mirror.pass(journal, observer, &stop));
    tokio::select! {
        report = &mut pass => return report,
        () = context.cancel.cancelled() => {}
        () = context.draining.cancelled() => {}
        () = enough => {}
    }
    stop.cancel();
    pass.await
}
