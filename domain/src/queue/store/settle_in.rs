//! Settling inside a transaction of the holder's own.

use sqlx::PgConnection;

use crate::lease::LeaseLost;
use crate::queue::{Error, JobState, Outcome, Settlement, policy};

/// What the server raises for a lease that is not the job's.
const LEASE_LOST: &str = "LH001";
/// What it raises for a lease whose holder settled under it before.
const SETTLED_BEFORE: &str = "LH004";

/// Records an outcome in the caller's transaction: it stands with everything else that is written there, or not at all.
/// Returns the state in which the job is once that commits.
///
/// # Consistency
/// A stale fence is refused by an error that the server raises. After it the transaction can only be rolled back, also
/// where the caller passes the error by: a `commit` then commits nothing. Call it outside of nested transactions, since
/// rolling one of those back takes the refusal along. The job's row stays locked until the end, so the lease cannot be
/// taken over in between.
///
/// # Retries
/// A transaction whose answer to `commit` was lost may be tried again: where it had committed, the second one is refused
/// with [`Error::SettledBefore`], so that the change is not made twice.
///
/// # Errors
/// [`Error::LeaseLost`], [`Error::SettledBefore`], [`Error::Invalid`] for a result of more than
/// [`policy::MAX_PAYLOAD_BYTES`], or the database's.
pub async fn settle_in(conn: &mut PgConnection, settlement: &Settlement) -> Result<JobState, Error> {
    if let Outcome::Completed { result } = &settlement.outcome {
        let size = result.to_string().len();
        if size > policy::MAX_PAYLOAD_BYTES {
            let limit = policy::MAX_PAYLOAD_BYTES;
            let rule = format!("{size} bytes, more than {limit}: store the data elsewhere and return its address");
            return Err(Error::Invalid { field: "result", rule });
        }
    }
    let lease = settlement.lease;
    sqlx::query_scalar!("select lh_require_lease($1, $2)::text", lease.job.0, lease.fence.0)
        .fetch_one(&mut *conn)
        .await
        .map_err(|error| match error.as_database_error().and_then(|raised| raised.code()).as_deref() {
            Some(LEASE_LOST) => LeaseLost { lease }.into(),
            Some(SETTLED_BEFORE) => Error::SettledBefore(lease),
            Some(_) | None => Error::Store(error),
        })?;
    let settled = super::settle::record(conn, std::slice::from_ref(settlement)).await?;
    match settled.get(&lease) {
        Some(crate::queue::Fate::Settled(state)) => Ok(*state),
        // The row is locked under this fence, so it was found.
        Some(_) | None => Err(LeaseLost { lease }.into()),
    }
}
