//! Why a step of a cut or of a landing ends without its end, and the pass that such a step makes.

use domain::instances::moves::Obstacle;
use tokio_util::sync::CancellationToken;

use super::JobContext;
use crate::activator;
use crate::chain::chain;
use crate::mirror::{KeyJournal, Mirror, MirrorError, Observer, PassReport};

/// Why a step ends without its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// Something holds it up, and is told.
    Held(Obstacle),
    /// The worker stops: nothing is wrong, and the next run goes on at once.
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

    /// What the box could not do. What runs and does not end is somebody's to end; the rest may be the store's moment.
    pub(super) fn of_box(code: &str, error: &activator::Error) -> Self {
        if matches!(error, activator::Error::Hangs { .. } | activator::Error::Runs { .. }) {
            Self::lasting(code, chain(error))
        } else {
            Self::passing(code, chain(error))
        }
    }

    /// What a restore, or what was restored, was refused for: what litestream or SQLite refuses stays so until somebody looks.
    pub(super) fn of_restore(code: &str, error: &activator::Error) -> Self {
        if matches!(
            error,
            activator::Error::Litestream { .. } | activator::Error::Database { .. } | activator::Error::Tail { .. }
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
