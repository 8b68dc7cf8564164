//! Running a finished job again, as a new one.

use sqlx::{Connection as _, PgConnection};

use crate::db;
use crate::ids::JobId;
use crate::queue::{Error, JobState};

/// Enqueues what a finished job was once more: a new job under the id `again`, due now, with the kind, the queue, the
/// arguments, the priority, the tags, the keys and the limits of the old one, and none of its history. The old one stays
/// as it is. `if_revision` refuses when the old one changed since it was read.
///
/// One transaction, nested where the caller is in one: a retry of the same job at the same time waits, or is waited for.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Conflict`] for a job that is not over or is protected, [`Error::KeyTaken`] where a live
/// job carries its unique key, [`Error::Stale`], or the database's.
pub async fn run_again(
    conn: &mut PgConnection,
    id: JobId,
    again: JobId,
    traceparent: Option<&str>,
    if_revision: Option<i64>,
) -> Result<(), Error> {
    let mut tx = conn.begin().await?;
    let done = run_again_inside(&mut tx, id, again, traceparent, if_revision).await;
    db::finish(tx, done).await
}

async fn run_again_inside(
    conn: &mut PgConnection,
    id: JobId,
    again: JobId,
    traceparent: Option<&str>,
    if_revision: Option<i64>,
) -> Result<(), Error> {
    let done = sqlx::query!(
        r#"
        select state as "state: JobState", revision, protected, kind, unique_key
          from jobs_finished
         where id = $1
           -- A retry that came first has taken the row away; one that comes later finds it as it was.
           for share
        "#,
        id.0,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = done else { return Err(live_or_absent(conn, id).await?) };
    super::operate::refuse_stale(id, if_revision, row.revision)?;
    if row.protected {
        let why = "its kind is protected: begin anew through the verb of what it works on, e.g. another move";
        return Err(Error::Conflict { id, state: row.state, why });
    }
    // The holder of a key can finish between the refused insert and the look-up; then the key is free again.
    const MAX_TRIES: usize = 4;
    for _ in 0..MAX_TRIES {
        if insert(&mut *conn, id, again, traceparent).await? {
            return Ok(());
        }
        let holder = sqlx::query_scalar!(
            r#"select id as "id: JobId" from jobs where kind = $1 and unique_key = $2"#,
            row.kind,
            row.unique_key,
        )
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(holder) = holder {
            return Err(Error::KeyTaken { id, holder });
        }
    }
    let why = "the holder of its unique key changes faster than it can be read: try again";
    Err(Error::Conflict { id, state: row.state, why })
}

/// Answers whether the key was free.
async fn insert(
    conn: &mut PgConnection,
    id: JobId,
    again: JobId,
    traceparent: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let made = sqlx::query!(
        r#"
        insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts, max_interruptions,
                          deadline_ms, protected, tags, unique_key, concurrency_key, traceparent)
        -- The bound of an enqueue: a retry may have allowed more attempts than any job may ask for.
        select $2, kind, queue, 'available', priority, (select lh_now()), (select lh_now()), args,
               least(max_attempts, 1000), max_interruptions, deadline_ms, protected, tags, unique_key, concurrency_key, $3
          from jobs_finished
         where id = $1
            on conflict (kind, unique_key) where unique_key is not null do nothing
        "#,
        id.0,
        again.0,
        traceparent,
    )
    .execute(conn)
    .await?;
    Ok(made.rows_affected() == 1)
}

async fn live_or_absent(conn: &mut PgConnection, id: JobId) -> Result<Error, sqlx::Error> {
    let state = sqlx::query_scalar!(r#"select state as "state: JobState" from jobs where id = $1"#, id.0)
        .fetch_optional(conn)
        .await?;
    let why = "it is not over: cancel it first, or wait";
    Ok(state.map_or(Error::NotFound(id), |state| Error::Conflict { id, state, why }))
}
