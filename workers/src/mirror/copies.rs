//! The copies of one round: rank by rank, with a barrier between ranks.

use std::io;
use std::time::Duration;

use domain::instances::plan::{KeyPlace, Level};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::apply::Round;
use super::spill::Record;
use super::survey::Survey;
use super::{JournalKey, MirrorError, Reason};
use crate::objects::{Copied, CopySource, Error};

/// How often progress is shown while copies run.
const SHOW_EVERY: Duration = Duration::from_secs(2);

/// Whether later keys may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Onwards,
    /// A key that nothing else covers was lost: copying on would open a hole.
    Halt,
}

impl Round<'_> {
    /// Copies everything that the survey found, in the order that keeps the staging restorable.
    ///
    /// # Errors
    /// The first request that failed for good. Keys that vanished or changed are counted, not errors.
    pub(super) async fn copy_all(&mut self, survey: &mut Survey) -> Result<(), MirrorError> {
        let (rule, spans) = (self.pair.rule(), survey.spans.clone());
        let key_of = |record: &Record| match rule.place(&record.key) {
            KeyPlace::Mirrored { replica, .. } => replica,
            KeyPlace::Ignored | KeyPlace::Foreign { .. } => None,
        };
        let is_free = |record: &Record| key_of(record).is_none_or(|key| spans.is_free(key));
        let is_covered = |record: &Record| key_of(record).is_none_or(|key| spans.is_covered(key));
        for rank in (0..Level::COUNT).rev() {
            let Some(mut spill) = survey.copies[rank].take() else { continue };
            // Two walks over the set: first the keys that may overtake each other, then the tail, one by one.
            let free = spill.read().map_err(MirrorError::Spill)?.filter(|record| record.as_ref().map_or(true, is_free));
            let mut flow = self.run(free, self.settings.concurrency.max(1), is_covered).await?;
            if flow == Flow::Onwards {
                let tail = spill.read().map_err(MirrorError::Spill)?;
                let tail = tail.filter(|record| record.as_ref().map_or(true, |record| !is_free(record)));
                flow = self.run(tail, 1, is_covered).await?;
            }
            if flow == Flow::Halt {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies `records`, at most `width` at once, and records what arrived. After a loss, a failure or a cancellation
    /// nothing new begins; what is under way gets the grace of the settings, so that it can be recorded.
    async fn run(
        &mut self,
        records: impl Iterator<Item = io::Result<Record>>,
        width: usize,
        is_covered: impl Fn(&Record) -> bool,
    ) -> Result<Flow, MirrorError> {
        let (source, target, pair) = (self.source, self.target, self.pair);
        let copy = |record: Record| async move {
            let (from, to) =
                (format!("{}{}", pair.source_prefix(), record.key), format!("{}{}", pair.staging_prefix(), record.key));
            let object = CopySource {
                store: &source.store,
                bucket: &source.bucket,
                key: &from,
                etag: &record.etag,
                size: record.size,
            };
            let copied = target.store.copy(object, &target.bucket, &to).await;
            if copied.is_ok() {
                crate::failpoint::hit("mirror.after_copy", &to).await;
            }
            (record, copied)
        };
        let mut records = records.fuse();
        let mut under_way = FuturesUnordered::new();
        let mut arrived = Vec::new();
        let mut flow = Flow::Onwards;
        let mut failure = None;
        let mut give_up_at = None;
        let mut show = interval_at(Instant::now() + SHOW_EVERY, SHOW_EVERY);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let cancel = self.cancel.clone();
        loop {
            while under_way.len() < width && give_up_at.is_none() && flow == Flow::Onwards {
                let Some(record) = records.next() else { break };
                under_way.push(copy(record.map_err(MirrorError::Spill)?));
            }
            tokio::select! {
                biased;
                () = sleep_until(give_up_at.unwrap_or_else(Instant::now)), if give_up_at.is_some() => break,
                () = cancel.cancelled(), if give_up_at.is_none() => {
                    failure.get_or_insert(MirrorError::Cancelled);
                    give_up_at = Some(Instant::now() + self.settings.cancel_grace);
                }
                next = under_way.next() => {
                    let Some((record, copied)) = next else { break };
                    match copied {
                        Ok(copied) => {
                            self.note(record, copied, &mut arrived);
                            if arrived.len() >= self.settings.journal_batch.max(1) {
                                self.record(&mut arrived).await?;
                            }
                        }
                        Err(Error::Vanished { .. } | Error::Changed { .. }) => {
                            self.progress.lost += 1;
                            if !is_covered(&record) {
                                flow = Flow::Halt;
                            }
                        }
                        Err(error) => {
                            failure.get_or_insert_with(|| {
                                let from = source.at_key(&format!("{}{}", pair.source_prefix(), record.key));
                                let about = format!("{from}, to {}", target.at_prefix(pair.staging_prefix()));
                                MirrorError::of_target(error, Reason::CopyForbidden, about)
                            });
                            give_up_at.get_or_insert(Instant::now() + self.settings.cancel_grace);
                        }
                    }
                }
                _ = show.tick() => self.show(false).await?,
            }
        }
        self.record(&mut arrived).await?;
        failure.map_or(Ok(flow), Err)
    }

    fn note(&mut self, record: Record, copied: Copied, arrived: &mut Vec<JournalKey>) {
        self.progress.copied += 1;
        self.progress.copied_bytes += record.size;
        arrived.push(JournalKey {
            key: record.key,
            src_etag: record.etag,
            size: record.size,
            copied_etag: copied.etag,
        });
    }

    async fn record(&self, arrived: &mut Vec<JournalKey>) -> Result<(), MirrorError> {
        if !arrived.is_empty() {
            crate::failpoint::hit("mirror.before_record", self.pair.staging_prefix()).await;
            self.journal.record(self.index, arrived).await?;
            arrived.clear();
        }
        Ok(())
    }
}
