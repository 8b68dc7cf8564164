//! Sorted streams with a look at their head: the two listings and the journal.

use std::collections::VecDeque;

use domain::instances::plan::{Entry, Journalled, KeyPlace, KeyRule, Txid};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{JournalKey, KeyJournal, Pair, Place, RecordError};
use crate::objects::{self, Listed, Listing};

/// Why a listing cannot be compared.
pub(super) enum CursorError {
    /// The store's, or the listing's own.
    Store(objects::Error),
    /// A key in a layout that the pair's rule does not know.
    Foreign {
        /// The whole key.
        key: String,
        /// What it breaks.
        rule: &'static str,
    },
}

/// A listing that is read one page ahead on a task of its own, so that both sides are listed at once. Keys that take
/// no part are left out.
pub(super) struct SideCursor {
    pages: mpsc::Receiver<Result<Option<Vec<Listed>>, objects::Error>>,
    page: VecDeque<Listed>,
    ended: bool,
    rule: KeyRule,
    /// What ends before is left out.
    from: Option<Txid>,
    prefix_len: usize,
    _task: AbortOnDropHandle<()>,
}

impl SideCursor {
    /// The source of a pair: what a mirror of it begins with.
    pub(super) fn of_source(place: &Place, pair: &Pair) -> Self {
        let cursor = Self::new(place.list(pair.source_prefix()), pair.source_prefix(), pair.rule());
        Self { from: pair.from(), ..cursor }
    }

    /// Begins to list at once.
    pub(super) fn new(mut listing: Listing, prefix: &str, rule: KeyRule) -> Self {
        let (sender, pages) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            loop {
                let page = listing.next_page().await;
                let last = !matches!(page, Ok(Some(_)));
                if sender.send(page).await.is_err() || last {
                    return;
                }
            }
        });
        let task = AbortOnDropHandle::new(task);
        Self { pages, page: VecDeque::new(), ended: false, rule, from: None, prefix_len: prefix.len(), _task: task }
    }

    /// Makes the head known: after this it is an object, or the proper end of the listing.
    pub(super) async fn fill(&mut self) -> Result<(), CursorError> {
        while !self.is_known() {
            match self.pages.recv().await {
                Some(Ok(Some(page))) => self.take(page)?,
                Some(Ok(None)) => self.ended = true,
                Some(Err(error)) => return Err(CursorError::Store(error)),
                // The task died. That proves nothing about the listing, least of all its end.
                None => return Err(CursorError::Store(objects::Error::ListingInvalid("it broke off"))),
            }
        }
        Ok(())
    }

    fn take(&mut self, page: Vec<Listed>) -> Result<(), CursorError> {
        self.page = page.into();
        let mut foreign = None;
        self.page.retain(|listed| match self.rule.place(&listed.key[self.prefix_len..]) {
            KeyPlace::Mirrored { replica, .. } => {
                replica.zip(self.from).is_none_or(|(replica, from)| replica.max >= from)
            }
            KeyPlace::Ignored => false,
            KeyPlace::Foreign { rule } => {
                foreign.get_or_insert_with(|| CursorError::Foreign { key: listed.key.clone(), rule });
                false
            }
        });
        foreign.map_or(Ok(()), Err)
    }

    /// Whether the head is known.
    pub(super) fn is_known(&self) -> bool {
        self.ended || !self.page.is_empty()
    }

    /// The object at the head, its key without the prefix; `None` at the end.
    pub(super) fn head(&self) -> Option<Entry<'_>> {
        let listed = self.page.front()?;
        Some(Entry { key: &listed.key[self.prefix_len..], size: listed.size, etag: listed.etag.as_deref() })
    }

    pub(super) fn advance(&mut self) {
        self.page.pop_front();
    }
}

/// The journal of one pair, page by page.
pub(super) struct JournalCursor<'a> {
    journal: &'a dyn KeyJournal,
    pair: usize,
    limit: usize,
    rows: VecDeque<JournalKey>,
    after: Option<String>,
    ended: bool,
}

impl<'a> JournalCursor<'a> {
    pub(super) fn new(journal: &'a dyn KeyJournal, pair: usize, limit: usize) -> Self {
        Self { journal, pair, limit: limit.max(1), rows: VecDeque::new(), after: None, ended: false }
    }

    /// Makes the head known.
    pub(super) async fn fill(&mut self) -> Result<(), RecordError> {
        if self.rows.is_empty() && !self.ended {
            let rows = self.journal.page(self.pair, self.after.as_deref(), self.limit).await?;
            self.ended = rows.len() < self.limit;
            self.after = rows.last().map(|row| row.key.clone());
            self.rows = rows.into();
        }
        Ok(())
    }

    pub(super) fn is_known(&self) -> bool {
        self.ended || !self.rows.is_empty()
    }

    /// The row at the head; `None` at the end.
    pub(super) fn head(&self) -> Option<Journalled<'_>> {
        let row = self.rows.front()?;
        Some(Journalled { key: &row.key, src_etag: &row.src_etag, size: row.size, copied_etag: &row.copied_etag })
    }

    pub(super) fn advance(&mut self) {
        self.rows.pop_front();
    }
}
