//! One round's effects on the target, and what is recorded of them.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::survey::Survey;
use super::{KeyJournal, MirrorError, Observer, Pair, Place, Reason, RoundProgress, Settings};

/// S3's bound for one batch of deletes, and ours for one write to the journal.
pub(super) const BATCH: usize = 1_000;

/// One round, as it works on one pair after the other.
pub(super) struct Round<'a> {
    pub(super) source: &'a Place,
    pub(super) target: &'a Place,
    pub(super) index: usize,
    pub(super) pair: &'a Pair,
    pub(super) journal: &'a dyn KeyJournal,
    pub(super) observer: &'a dyn Observer,
    pub(super) settings: &'a Settings,
    pub(super) cancel: &'a CancellationToken,
    pub(super) progress: RoundProgress,
    pub(super) began: Instant,
}

impl<'a> Round<'a> {
    /// Turns to another pair.
    pub(super) fn turn_to(&mut self, index: usize, pair: &'a Pair) {
        self.index = index;
        self.pair = pair;
    }

    /// Deletes what the source pruned, in key order: a replica's raw files first, its snapshots last. Call only when
    /// every copy of the round has succeeded.
    pub(super) async fn delete_all(&mut self, survey: &mut Survey) -> Result<(), MirrorError> {
        let Some(mut spill) = survey.deletes.take() else { return Ok(()) };
        let mut batch = Vec::with_capacity(BATCH);
        for record in spill.read().map_err(MirrorError::Spill)? {
            batch.push(format!("{}{}", self.pair.staging_prefix(), record.map_err(MirrorError::Spill)?.key));
            if batch.len() == BATCH {
                self.delete(&mut batch).await?;
            }
        }
        self.delete(&mut batch).await
    }

    async fn delete(&mut self, batch: &mut Vec<String>) -> Result<(), MirrorError> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.cancel.is_cancelled() {
            return Err(MirrorError::Cancelled);
        }
        crate::failpoint::hit("mirror.before_delete", self.pair.staging_prefix()).await;
        let refused = self.target.store.delete_many(&self.target.bucket, batch).await;
        let refused = refused.map_err(|error| {
            let about = format!("{} keys from {} on", batch.len(), self.target.at_key(&batch[0]));
            MirrorError::of_target(error, Reason::DeleteForbidden, about)
        })?;
        crate::failpoint::hit("mirror.after_delete", self.pair.staging_prefix()).await;
        let (asked, prefix) = (batch.len(), self.pair.staging_prefix().len());
        let gone: Vec<String> = batch
            .drain(..)
            .filter(|key| !refused.iter().any(|refused| refused.key == *key))
            .map(|mut key| key.split_off(prefix))
            .collect();
        self.progress.deleted += gone.len() as u64;
        self.journal.forget(self.index, &gone).await?;
        let Some(first) = refused.first() else { return Ok(()) };
        tracing::warn!(key = first.key, code = first.code, keys = refused.len(), "the target refused to delete keys");
        let forbidden = refused.iter().find(|refused| refused.code == "AccessDenied");
        let named = forbidden.unwrap_or(first);
        let about = format!("{} of {} keys, {}: {}", refused.len(), asked, self.target.at_key(&named.key), named.code);
        if forbidden.is_some() {
            Err(MirrorError::permanent(Reason::DeleteForbidden, about))
        } else {
            Err(MirrorError::Transient { reason: Reason::DeleteFailing, about, source: None })
        }
    }

    /// Drops journal rows that nothing stands behind any more.
    pub(super) async fn forget_all(&self, survey: &mut Survey) -> Result<(), MirrorError> {
        let Some(mut spill) = survey.forgets.take() else { return Ok(()) };
        let mut batch = Vec::with_capacity(BATCH);
        for record in spill.read().map_err(MirrorError::Spill)? {
            batch.push(record.map_err(MirrorError::Spill)?.key);
            if batch.len() == BATCH {
                self.journal.forget(self.index, &batch).await?;
                batch.clear();
            }
        }
        if !batch.is_empty() {
            self.journal.forget(self.index, &batch).await?;
        }
        Ok(())
    }

    /// Shows where the round stands.
    pub(super) async fn show(&mut self, finished: bool) -> Result<(), MirrorError> {
        self.progress.elapsed = self.began.elapsed();
        self.progress.finished = finished;
        Ok(self.observer.round(&self.progress).await?)
    }
}
