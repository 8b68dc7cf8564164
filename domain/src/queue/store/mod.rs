//! The queue's SQL.

pub mod evidence;
pub mod figures;
pub mod lease;
pub mod maintenance;
pub mod marks;
pub mod operate;
pub mod read;
pub mod settle;
pub mod submit;
pub mod under_lease;
pub mod workers;

use sqlx::{Postgres, Transaction};

use super::Error;

/// Commits what was done and rolls back what was refused, before the caller goes on.
///
/// A transaction that is only dropped is rolled back when its connection is used next; until then it holds its locks,
/// and a lease passes by the rows of a refused call.
async fn finish<T>(tx: Transaction<'_, Postgres>, done: Result<T, Error>) -> Result<T, Error> {
    match done {
        Ok(value) => {
            tx.commit().await?;
            Ok(value)
        }
        Err(refused) => {
            tx.rollback().await?;
            Err(refused)
        }
    }
}
