//! The journal of copies: what proves that two objects are equal.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

/// What one copy did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalKey {
    /// The part of the key behind the prefix.
    pub key: String,
    /// The source's `ETag` when it was copied, without quotes.
    pub src_etag: String,
    /// The source's size, bytes.
    pub size: u64,
    /// The `ETag` that the target gave to the copy, without quotes.
    pub copied_etag: String,
}

/// Why the journal, or whatever else is recorded under the lease, could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A newer fence exists: the write was refused.
    #[error("the lease is lost")]
    LeaseLost,
    /// The database's fault.
    #[error("record what the mirror did")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where copies are remembered. Writes go under the job's fence.
#[async_trait]
pub trait KeyJournal: Send + Sync {
    /// At most `limit` rows of a pair whose keys come after `after`, sorted by the *bytes* of the key (in PostgreSQL:
    /// `collate "C"`). Fewer than `limit` rows mean the end.
    async fn page(&self, pair: usize, after: Option<&str>, limit: usize) -> Result<Vec<JournalKey>, RecordError>;

    /// Remembers copies; a row of the same key is replaced. All or nothing.
    async fn record(&self, pair: usize, copied: &[JournalKey]) -> Result<(), RecordError>;

    /// Forgets keys; unknown ones are no error. All or nothing.
    async fn forget(&self, pair: usize, keys: &[String]) -> Result<(), RecordError>;
}

/// A journal in memory, for tests and measurements: it dies with the process.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    rows: Mutex<BTreeMap<(usize, String), JournalKey>>,
}

impl MemoryJournal {
    /// How many rows it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows().len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows().is_empty()
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<(usize, String), JournalKey>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KeyJournal for MemoryJournal {
    async fn page(&self, pair: usize, after: Option<&str>, limit: usize) -> Result<Vec<JournalKey>, RecordError> {
        let from = match after {
            Some(after) => Bound::Excluded((pair, after.to_owned())),
            None => Bound::Included((pair, String::new())),
        };
        let rows = self.rows();
        Ok(rows
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.0 == pair)
            .take(limit)
            .map(|(_, row)| row.clone())
            .collect())
    }

    async fn record(&self, pair: usize, copied: &[JournalKey]) -> Result<(), RecordError> {
        self.rows().extend(copied.iter().map(|row| ((pair, row.key.clone()), row.clone())));
        Ok(())
    }

    async fn forget(&self, pair: usize, keys: &[String]) -> Result<(), RecordError> {
        let mut rows = self.rows();
        for key in keys {
            rows.remove(&(pair, key.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str) -> JournalKey {
        JournalKey { key: key.to_owned(), src_etag: "s".to_owned(), size: 1, copied_etag: "t".to_owned() }
    }

    #[tokio::test]
    async fn pages_follow_the_bytes_of_the_key_within_a_pair() {
        let journal = MemoryJournal::default();
        journal.record(0, &[row("b"), row("a"), row("é"), row("Z")]).await.unwrap();
        journal.record(1, &[row("0")]).await.unwrap();
        let keys = |rows: Vec<JournalKey>| rows.into_iter().map(|row| row.key).collect::<Vec<_>>();
        assert_eq!(keys(journal.page(0, None, 2).await.unwrap()), ["Z", "a"]);
        assert_eq!(keys(journal.page(0, Some("a"), 9).await.unwrap()), ["b", "é"]);
        journal.forget(0, &["b".to_owned(), "x".to_owned()]).await.unwrap();
        assert_eq!(keys(journal.page(0, Some("a"), 9).await.unwrap()), ["é"]);
        assert_eq!(journal.len(), 4);
    }
}
