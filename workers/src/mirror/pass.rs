//! One pass: rounds at once, until a fresh listing shows zero differences or the budget is used.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use domain::entropy;
use domain::instances::plan::{Bars, Differences, LastCopy, RoundVerdict, Txid, judge};
use tokio_util::sync::CancellationToken;

use super::apply::Round;
use super::survey::{Stop, Survey, survey};
use super::{KeyJournal, MirrorError, Observer, Pair, RoundProgress};
use crate::objects::{self, Listing, ObjectStore, RequestCounts};

/// A bucket and the store that holds it.
#[derive(Debug, Clone)]
pub struct Place {
    /// The store.
    pub store: ObjectStore,
    /// The bucket.
    pub bucket: String,
}

impl Place {
    pub(crate) fn list(&self, prefix: &str) -> Listing {
        self.store.list(&self.bucket, prefix)
    }

    /// A key of it, as errors name it; quoted, since a key may hold any character.
    pub(super) fn at_key(&self, key: &str) -> String {
        format!("key {key:?} of bucket {}", self.bucket)
    }

    /// A prefix of it, as errors name it.
    pub(super) fn at_prefix(&self, prefix: &str) -> String {
        format!("{prefix} in bucket {}", self.bucket)
    }
}

/// Bounds of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rounds that copy, in one pass. Each is followed by a listing.
    pub max_iterations: u32,
    /// No round begins after this time. A round that has begun is finished: its length is the data's.
    pub budget: Duration,
    /// The opt-in bars of a busy instance.
    pub bars: Bars,
    /// Copies at once in one pass, for keys that may overtake each other.
    pub concurrency: usize,
    /// Rows of the journal in one read.
    pub journal_page: usize,
    /// Rows of the journal in one write; as many copies are made again after a crash at most.
    pub journal_batch: usize,
    /// What copies under way get after a cancellation or a failure, to be recorded.
    pub cancel_grace: Duration,
    /// Where difference sets spill to; `None` is the system's folder.
    pub spill_folder: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_iterations: 10,
            budget: Duration::from_secs(20),
            bars: Bars::default(),
            concurrency: 16,
            journal_page: 5_000,
            journal_batch: 250,
            cancel_grace: Duration::from_secs(2),
            spill_folder: None,
        }
    }
}

/// What a pass means for the move.
#[derive(Debug)]
pub enum Outcome {
    /// A fresh listing found zero differences (M-057).
    InSync,
    /// Never zero, but within the bars that somebody set.
    WithinBars,
    /// Anything else.
    NotReady(NotReady),
}

/// Why a pass that ended well does not make the move ready.
#[derive(Debug)]
pub enum NotReady {
    /// The source changed faster than the pass copied; the report has the numbers.
    Busy,
    /// The source prefix holds no object that takes part. Nothing was deleted.
    SourceEmpty {
        /// The prefix.
        prefix: String,
    },
    /// The source prefix cannot be listed until somebody acts.
    SourceUnreadable {
        /// Which bucket and prefix.
        at: String,
        /// What the store said.
        error: objects::Error,
    },
}

impl NotReady {
    /// The stable code, as the move's status shows it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::SourceEmpty { .. } => "source_empty",
            Self::SourceUnreadable { .. } => "source_unreadable",
        }
    }
}

/// What a pass did.
#[derive(Debug)]
pub struct PassReport {
    /// What it means.
    pub outcome: Outcome,
    /// Rounds that copied or deleted.
    pub iterations: u32,
    /// What the last complete listing found: zero when in sync.
    pub found: Differences,
    /// Objects of the source that take part.
    pub source_keys: u64,
    /// The newest transaction that the source's keys name. In sync, it is also the newest that is staged.
    pub newest: Option<Txid>,
    /// Objects copied.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Objects deleted at the target.
    pub deleted: u64,
    /// Objects that vanished or changed before their turn.
    pub lost: u64,
    /// Since the beginning of the listing of the last round that moved everything it had found: the staging is at
    /// most this far behind. `None` when no round did.
    pub lag: Option<Duration>,
    /// Requests to both stores, retries included.
    pub requests: RequestCounts,
    /// How long the pass took.
    pub elapsed: Duration,
}

/// A list of prefixes and where they are staged.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// Where the keys come from.
    pub source: Place,
    /// Where they go. Its store does the copying.
    pub target: Place,
    /// What is mirrored.
    pub pairs: Vec<Pair>,
    /// The bounds.
    pub settings: Settings,
}

impl Mirror {
    /// Makes one pass. A second pass at the same time, over the same pairs, would be wrong: the caller holds a lease.
    ///
    /// # Panics
    /// Without pairs: that is a mistake of the caller's.
    ///
    /// # Errors
    /// [`MirrorError`]; what was copied until then stays copied and recorded, and nothing was deleted that the source
    /// still held. [`MirrorError::LeaseLost`] and [`MirrorError::Cancelled`] may leave single requests on their way.
    pub async fn pass(
        &self,
        journal: &dyn KeyJournal,
        observer: &dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<PassReport, MirrorError> {
        assert!(!self.pairs.is_empty(), "a mirror of nothing would always be in sync");
        let counted = |place: &Place| Place { store: place.store.counted(), bucket: place.bucket.clone() };
        let (source, target) = (counted(&self.source), counted(&self.target));
        let mut report = PassReport::new();
        let began = Instant::now();
        let outcome = self.rounds((&source, &target), journal, observer, cancel, &mut report).await?;
        Ok(PassReport {
            outcome,
            requests: source.store.requests() + target.store.requests(),
            elapsed: began.elapsed(),
            ..report
        })
    }

    async fn rounds(
        &self,
        (source, target): (&Place, &Place),
        journal: &dyn KeyJournal,
        observer: &dyn Observer,
        cancel: &CancellationToken,
        report: &mut PassReport,
    ) -> Result<Outcome, MirrorError> {
        let began = Instant::now();
        let mut last: Option<(Instant, Differences)> = None;
        loop {
            let listed = Instant::now();
            let mut surveys = match self.survey_all((source, target), journal, cancel).await {
                Ok(surveys) => surveys,
                Err(Stop::Mirror(error)) => return Err(error),
                Err(Stop::Unreadable { at, error }) => {
                    return Ok(Outcome::NotReady(NotReady::SourceUnreadable { at, error }));
                }
            };
            report.see(&surveys);
            if let Some(prefix) = self.empty_source(&surveys) {
                return Ok(Outcome::NotReady(NotReady::SourceEmpty { prefix: prefix.to_owned() }));
            }
            let mut round = Round {
                source,
                target,
                index: 0,
                pair: &self.pairs[0],
                journal,
                observer,
                settings: &self.settings,
                cancel,
                progress: RoundProgress {
                    iteration: report.iterations + 1,
                    found: report.found,
                    source_keys: report.source_keys,
                    copied: 0,
                    copied_bytes: 0,
                    deleted: 0,
                    lost: 0,
                    elapsed: listed.elapsed(),
                    finished: false,
                },
                began: listed,
            };
            for ((index, pair), survey) in self.pairs.iter().enumerate().zip(&mut surveys) {
                round.turn_to(index, pair);
                round.forget_all(survey).await?;
            }
            let used = report.iterations >= self.settings.max_iterations || began.elapsed() >= self.settings.budget;
            if report.found.is_zero() || (used && report.iterations > 0) {
                round.show(true).await?;
                report.lag = last.map(|(listed, _)| listed.elapsed());
                let last = last.map(|(listed, moved)| LastCopy { moved, lag: listed.elapsed() });
                return Ok(match judge(report.found, last, self.settings.bars) {
                    RoundVerdict::InSync => Outcome::InSync,
                    RoundVerdict::WithinBars => Outcome::WithinBars,
                    RoundVerdict::Busy => Outcome::NotReady(NotReady::Busy),
                });
            }
            round.show(false).await?;
            self.apply(&mut round, &mut surveys).await?;
            round.show(true).await?;
            let done = round.progress;
            report.add(&done);
            if done.lost == 0 {
                last = Some((listed, report.found));
            } else if done.copied == 0 {
                // The listing names keys that cannot be copied: give the store a moment before the next listing.
                pause(report.iterations, cancel).await?;
            }
        }
    }

    /// Copies of all pairs, then deletes of all pairs, and those only when no copy was lost (M-046).
    async fn apply<'a>(&'a self, round: &mut Round<'a>, surveys: &mut [Survey]) -> Result<(), MirrorError> {
        for ((index, pair), survey) in self.pairs.iter().enumerate().zip(&mut *surveys) {
            round.turn_to(index, pair);
            round.copy_all(survey).await?;
        }
        if round.progress.lost > 0 {
            return Ok(());
        }
        for ((index, pair), survey) in self.pairs.iter().enumerate().zip(surveys) {
            round.turn_to(index, pair);
            round.delete_all(survey).await?;
        }
        Ok(())
    }

    pub(super) async fn survey_all(
        &self,
        (source, target): (&Place, &Place),
        journal: &dyn KeyJournal,
        cancel: &CancellationToken,
    ) -> Result<Vec<Survey>, Stop> {
        let mut surveys = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs.iter().enumerate() {
            let folder = self.settings.spill_folder.as_ref();
            let one = survey(source, target, pair, (journal, self.settings.journal_page), folder);
            // Reads only, so a request under way may be dropped.
            let one = cancel.run_until_cancelled(one).await.ok_or(Stop::Mirror(MirrorError::Cancelled))?;
            surveys.push(one?);
        }
        Ok(surveys)
    }

    pub(super) fn empty_source(&self, surveys: &[Survey]) -> Option<&str> {
        let empty = |(pair, survey): &(&Pair, &Survey)| survey.source_keys == 0 && !pair.may_be_empty();
        self.pairs.iter().zip(surveys).find(empty).map(|(pair, _)| pair.source_prefix())
    }
}

impl PassReport {
    fn new() -> Self {
        Self {
            outcome: Outcome::NotReady(NotReady::Busy),
            iterations: 0,
            found: Differences::default(),
            source_keys: 0,
            newest: None,
            copied: 0,
            copied_bytes: 0,
            deleted: 0,
            lost: 0,
            lag: None,
            requests: RequestCounts::default(),
            elapsed: Duration::ZERO,
        }
    }

    fn see(&mut self, surveys: &[Survey]) {
        self.found = surveys.iter().fold(Differences::default(), |sum, survey| Differences {
            copies: sum.copies + survey.found.copies,
            copy_bytes: sum.copy_bytes + survey.found.copy_bytes,
            deletes: sum.deletes + survey.found.deletes,
        });
        self.source_keys = surveys.iter().map(|survey| survey.source_keys).sum();
        self.newest = surveys.iter().filter_map(|survey| survey.spans.newest()).max();
    }

    fn add(&mut self, round: &RoundProgress) {
        self.iterations += 1;
        self.copied += round.copied;
        self.copied_bytes += round.copied_bytes;
        self.deleted += round.deleted;
        self.lost += round.lost;
    }
}

/// A pause that doubles with the iteration, from 0.2 to 2 s, with half of it as jitter.
async fn pause(iteration: u32, cancel: &CancellationToken) -> Result<(), MirrorError> {
    let longest_ms = 200_u64.saturating_mul(1 << iteration.saturating_sub(1).min(4)).min(2_000);
    let pause = Duration::from_millis(longest_ms).mul_f64(0.5 + entropy::fraction() / 2.0);
    cancel.run_until_cancelled(tokio::time::sleep(pause)).await.ok_or(MirrorError::Cancelled)
}
