//! Telling that jobs are due.

use sqlx::PgConnection;

use crate::queue::hints::CHANNEL;

/// Tells all who listen. Never in a transaction that enqueues: see [`crate::queue::hints`].
///
/// It commits without waiting for the disk, since a hint may be lost.
///
/// # Errors
/// Only the database's.
pub async fn tell(conn: &mut PgConnection, text: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        select set_config('synchronous_commit', 'off', true) as "set!",
               pg_notify($1, $2)::text as told
        "#,
        CHANNEL,
        text,
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}
