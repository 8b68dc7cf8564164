//! Domain transactions under a lease.

use sqlx::{Connection as _, PgConnection};

use super::{Error, check_lease};
use crate::db;
use crate::lease::{Lease, LeaseLost};

/// Runs a domain transaction that writes under a fence: all that `work` wrote stands if the lease is still the job's at its
/// end, and else nothing does.
///
/// # Errors
/// [`Error::LeaseLost`], the work's own, or the database's: then everything is rolled back before the caller goes on.
pub async fn fenced<T, E>(
    conn: &mut PgConnection,
    lease: Lease,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<Error> + From<sqlx::Error>,
{
    let mut tx = conn.begin().await?;
    let done = async {
        let done = work(&mut tx).await?;
        require_lease(&mut tx, lease).await?;
        Ok(done)
    }
    .await;
    db::finish(tx, done).await
}

/// Refuses where `lease` is not the job's: for domain transactions that write under a fence.
///
/// The job's row stays locked until the transaction ends, so the lease cannot be taken over in between.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn require_lease(conn: &mut PgConnection, lease: Lease) -> Result<(), Error> {
    if check_lease(conn, lease).await? { Ok(()) } else { Err(LeaseLost { lease }.into()) }
}
