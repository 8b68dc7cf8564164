//! What a first pass would find and do, by listing alone.

use domain::instances::plan::Txid;
use tokio_util::sync::CancellationToken;

use super::apply::BATCH;
use super::cursor::SideCursor;
use super::survey::{Stop, Survey};
use super::{MemoryJournal, Mirror, MirrorError, NotReady, Place};
use crate::objects::{Op, RequestCounts};

/// Objects that take part in a pass, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Side {
    /// How many.
    pub keys: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What a first pass would find and do.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// The source; `None` where it could not be listed.
    pub source: Option<Side>,
    /// The newest transaction that the source's keys name; `None` also where the target could not be listed.
    pub newest: Option<Txid>,
    /// The target; `None` where it could not be listed.
    pub target: Option<Side>,
    /// What the pass would do; `None` where it would do nothing.
    pub work: Option<Work>,
    /// What would hold it up.
    pub hindrance: Option<Hindrance>,
    /// Requests that the look itself made.
    pub requests: RequestCounts,
}

/// What a first pass would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// What it would copy.
    pub copies: Side,
    /// Objects that it would delete at the target.
    pub deletes: u64,
    /// Requests to both stores, none of them repeated, until a fresh listing finds no difference.
    pub requests: u64,
}

/// What would hold a first pass up.
#[derive(Debug)]
pub enum Hindrance {
    /// It would end well, and make nothing ready.
    NotReady(NotReady),
    /// It would fail.
    Error(MirrorError),
}

impl Mirror {
    /// Lists both sides, and tells what a first pass would find and do: one without a journal, to which whatever lies at the
    /// target proves nothing. Copies and deletes nothing.
    ///
    /// # Errors
    /// [`MirrorError::Cancelled`], and [`MirrorError::Spill`] where what was found cannot be read back from the disk; what the
    /// stores refuse is told as a [`Hindrance`].
    pub async fn foresee(&self, cancel: &CancellationToken) -> Result<Foreseen, MirrorError> {
        let counted = |place: &Place| Place { store: place.store.counted(), bucket: place.bucket.clone() };
        let (source, target) = (counted(&self.source), counted(&self.target));
        let mut told = Foreseen::default();
        match self.survey_all((&source, &target), &MemoryJournal::default(), cancel).await {
            Ok(mut surveys) => {
                let sum = |of: fn(&Survey) -> u64| surveys.iter().map(of).sum();
                // Nothing is proven, so everything of the source is to be copied: what is found to copy is all that it holds.
                let copies = Side { keys: sum(|it| it.found.copies), bytes: sum(|it| it.found.copy_bytes) };
                let deletes = sum(|it| it.found.deletes);
                told.source = Some(copies);
                told.target = Some(Side { keys: sum(|it| it.staged_keys), bytes: sum(|it| it.staged_bytes) });
                told.newest = surveys.iter().filter_map(|it| it.spans.newest()).max();
                if let Some(prefix) = self.empty_source(&surveys) {
                    let prefix = prefix.to_owned();
                    told.hindrance = Some(Hindrance::NotReady(NotReady::SourceEmpty { prefix }));
                } else {
                    let lists = (source.store.requests().of(Op::List), target.store.requests().of(Op::List));
                    let calls = requests_of(&target, &mut surveys, lists)?;
                    told.work = Some(Work { copies, deletes, requests: calls });
                }
            }
            Err(Stop::Mirror(MirrorError::Cancelled)) => return Err(MirrorError::Cancelled),
            Err(Stop::Unreadable { at, error }) => {
                told.hindrance = Some(Hindrance::NotReady(NotReady::SourceUnreadable { at, error }));
            }
            Err(Stop::Mirror(error)) => {
                told.hindrance = Some(Hindrance::Error(error));
                let alone = cancel.run_until_cancelled(self.source_alone(&source)).await;
                told.source = alone.ok_or(MirrorError::Cancelled)?;
            }
        }
        told.requests = source.store.requests() + target.store.requests();
        Ok(told)
    }

    /// What the source holds, where the other side cannot be listed; `None` where that one cannot either.
    async fn source_alone(&self, source: &Place) -> Option<Side> {
        let mut side = Side::default();
        for pair in &self.pairs {
            let mut keys = SideCursor::of_source(source, pair);
            loop {
                keys.fill().await.ok()?;
                let Some(entry) = keys.head() else { break };
                side.keys += 1;
                side.bytes += entry.size;
                keys.advance();
            }
        }
        Some(side)
    }
}

/// The requests of a first pass: both listings, its copies and deletes, and both listings again, when the target holds what
/// the source does.
fn requests_of(target: &Place, surveys: &mut [Survey], (of_source, of_target): (u64, u64)) -> Result<u64, MirrorError> {
    let mut requests = of_source + of_target + 2 * of_source;
    for survey in surveys {
        requests += survey.found.deletes.div_ceil(BATCH as u64);
        for spill in survey.copies.iter_mut().flatten() {
            for record in spill.read().map_err(MirrorError::Spill)? {
                requests += target.store.requests_of_copy(record.map_err(MirrorError::Spill)?.size);
            }
        }
    }
    Ok(requests)
}
