//! The journal of copies in the database, under the job's fence.

use async_trait::async_trait;
use domain::db;
use domain::ids::MoveId;
use domain::instances;
use domain::instances::moves::{self, CopiedKey};
use domain::queue::Operation;
use sqlx::PgPool;

use crate::jobs::JobContext;
use crate::mirror::{JournalKey, KeyJournal, RecordError};

/// The rows of one move.
#[derive(Debug)]
pub(in crate::jobs) struct MoveJournal {
    pool: PgPool,
    context: JobContext,
    id: MoveId,
    /// The number of the first pair: a landing's rows stand beside the source's.
    first: usize,
}

impl MoveJournal {
    pub(super) fn new(pool: PgPool, context: JobContext, id: MoveId) -> Self {
        Self { pool, context, id, first: 0 }
    }

    /// The journal of the landing of a move.
    pub(in crate::jobs) fn of_landing(pool: PgPool, context: JobContext, id: MoveId) -> Self {
        Self { pool, context, id, first: usize::from(moves::LANDING_PAIR.unsigned_abs()) }
    }

    fn number(&self, pair: usize) -> Result<i16, RecordError> {
        i16::try_from(self.first + pair).map_err(store)
    }

    /// A refused write is told to the runner here, where it was refused.
    fn told(&self, written: Result<(), instances::Error>) -> Result<(), RecordError> {
        written.map_err(|error| match error {
            instances::Error::LeaseLost(_) => {
                self.context.refused(Operation::Domain);
                RecordError::LeaseLost
            }
            other @ (instances::Error::Refused(_)
            | instances::Error::Invalid { .. }
            | instances::Error::Queue(_)
            | instances::Error::Store(_)) => store(other),
        })
    }
}

#[async_trait]
impl KeyJournal for MoveJournal {
    async fn page(&self, pair: usize, after: Option<&str>, limit: usize) -> Result<Vec<JournalKey>, RecordError> {
        let mut conn = db::session(&self.pool).await.map_err(store)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = moves::keys_page(&mut conn, self.id, self.number(pair)?, after, limit).await.map_err(store)?;
        rows.into_iter().map(|row| Ok(JournalKey { size: size_of(row.size)?, ..keyed(row) })).collect()
    }

    async fn record(&self, pair: usize, copied: &[JournalKey]) -> Result<(), RecordError> {
        let rows: Result<Vec<CopiedKey>, RecordError> = copied
            .iter()
            .map(|key| {
                Ok(CopiedKey {
                    key: key.key.clone(),
                    src_etag: key.src_etag.clone(),
                    size: i64::try_from(key.size).map_err(store)?,
                    copied_etag: key.copied_etag.clone(),
                })
            })
            .collect();
        let mut conn = db::session(&self.pool).await.map_err(store)?;
        self.told(moves::record_keys(&mut conn, self.context.lease(), self.id, self.number(pair)?, &rows?).await)?;
        conn.done(()).await.map_err(store)
    }

    async fn forget(&self, pair: usize, keys: &[String]) -> Result<(), RecordError> {
        let mut conn = db::session(&self.pool).await.map_err(store)?;
        self.told(moves::forget_keys(&mut conn, self.context.lease(), self.id, self.number(pair)?, keys).await)?;
        conn.done(()).await.map_err(store)
    }
}

fn keyed(row: CopiedKey) -> JournalKey {
    JournalKey { key: row.key, src_etag: row.src_etag, size: 0, copied_etag: row.copied_etag }
}

fn size_of(size: i64) -> Result<u64, RecordError> {
    u64::try_from(size).map_err(store)
}

fn store(error: impl std::error::Error + Send + Sync + 'static) -> RecordError {
    RecordError::Store(Box::new(error))
}
