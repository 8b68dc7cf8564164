//! Deleting everything below a prefix, and being sure of it.

use domain::instances::moves::Obstacle;
use serde_json::{Value, json};

use super::{JobContext, JobError};
use crate::mirror::Place;
use crate::objects;

/// Keys that an obstacle names.
const NAMED: usize = 5;

/// What one sweep of a staging did.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Keys that were deleted.
    pub(crate) deleted: u64,
    /// Keys that the store refused to delete, with its code; some of them.
    pub(crate) refused: Vec<objects::KeyError>,
    /// Keys that the store refused to delete, in all.
    pub(crate) refusals: u64,
    /// Whether a fresh listing afterwards was complete and empty.
    pub(crate) empty: bool,
}

impl Sweep {
    pub(crate) fn evidence(&self) -> Value {
        json!({"deleted": self.deleted, "refused": self.refusals, "empty": self.empty})
    }

    /// What holds the deletion up, if something does.
    pub(crate) fn obstacle(&self, at: &str) -> Option<Obstacle> {
        if self.refusals > 0 {
            let named = self.refused.iter().map(|one| format!("{:?} ({})", one.key, one.code));
            let named = named.collect::<Vec<_>>().join(", ");
            let message = format!("the store refuses to delete {} keys of {at}, such as {named}", self.refusals);
            return Some(Obstacle::lasting("delete_refused", message));
        }
        (!self.empty).then(|| {
            let message = format!("{at} is not empty after everything in it was deleted: somebody writes there");
            Obstacle::passing("staging_not_empty", message)
        })
    }
}

/// Deletes every key below a prefix, page by page, and lists once more. A page is deleted before the next one is listed, so
/// memory is that of one page.
///
/// # Errors
/// The store's: what was deleted until then is gone, and nothing is known of the rest.
pub(crate) async fn sweep(place: &Place, prefix: &str, context: &JobContext) -> Result<Sweep, SweepError> {
    let mut done = Sweep::default();
    let mut listing = place.store.list(&place.bucket, prefix);
    while let Some(page) = listing.next_page().await? {
        // Between requests: whoever has the lease now deletes what is left.
        context.check().map_err(SweepError::Stop)?;
        let keys: Vec<String> = page.into_iter().map(|listed| listed.key).collect();
        let refused = place.store.delete_many(&place.bucket, &keys).await?;
        let refusals = refused.len();
        done.deleted += u64::try_from(keys.len() - refusals).unwrap_or(u64::MAX);
        done.refusals += u64::try_from(refusals).unwrap_or(u64::MAX);
        let room = NAMED.saturating_sub(done.refused.len());
        done.refused.extend(refused.into_iter().take(room));
    }
    done.empty = place.store.list(&place.bucket, prefix).next_page().await?.is_none();
    Ok(done)
}

/// Why a sweep ended early.
pub(crate) enum SweepError {
    /// The job should stop.
    Stop(JobError),
    /// The store's.
    Store(objects::Error),
}

impl From<objects::Error> for SweepError {
    fn from(error: objects::Error) -> Self {
        Self::Store(error)
    }
}
