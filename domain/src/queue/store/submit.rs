//! Enqueueing, on the caller's connection (Q-020).

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::millis;
use crate::ids::JobId;
use crate::queue::{Enqueued, Error, NewJob};

/// Enqueues one job; a live job of the same kind and unique key is returned instead (Q-023).
///
/// # Errors
/// [`Error::PayloadTooLarge`], [`Error::Invalid`], or the database's.
pub async fn enqueue(conn: &mut PgConnection, job: &NewJob) -> Result<Enqueued, Error> {
    let mut made = enqueue_many(conn, std::slice::from_ref(job)).await?;
    Ok(made.swap_remove(0))
}

/// Enqueues many jobs in one statement; the answers stand in the order of `jobs`.
///
/// Nothing is enqueued when any job breaks a rule. A unique key that a live job carries, or that an earlier job of the
/// same call carries, fails nothing: its answer is the other job.
///
/// # Errors
/// [`Error::PayloadTooLarge`], [`Error::Invalid`], or the database's.
pub async fn enqueue_many(conn: &mut PgConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Error> {
    enqueue_under(conn, jobs, None).await
}

/// As [`enqueue_many`]; the new ones carry their parent.
pub(super) async fn enqueue_under(
    conn: &mut PgConnection,
    jobs: &[NewJob],
    parent: Option<JobId>,
) -> Result<Vec<Enqueued>, Error> {
    for job in jobs {
        job.check()?;
    }
    // The holder of a key can finish between the refused insert and the look-up; then the key is free again.
    const MAX_TRIES: usize = 4;
    let mut made: Vec<Option<Enqueued>> = vec![None; jobs.len()];
    for _ in 0..MAX_TRIES {
        let open: Vec<usize> = (0..jobs.len()).filter(|&i| made[i].is_none()).collect();
        if open.is_empty() {
            break;
        }
        match open[..] {
            [alone] => made[alone] = insert_one(conn, &jobs[alone], parent).await?,
            _ => insert(conn, jobs, parent, &open, &mut made).await?,
        }
        find_existing(conn, jobs, &mut made).await?;
    }
    made.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| Error::Invalid {
        field: "unique_key",
        rule: "its holder changes faster than it can be read: try again".to_owned(),
    })
}

/// One job without the arrays of many: half the cost. The rules are those of [`insert`].
async fn insert_one(
    conn: &mut PgConnection,
    job: &NewJob,
    parent: Option<JobId>,
) -> Result<Option<Enqueued>, sqlx::Error> {
    let due = sqlx::query_scalar!(
        r#"
        insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts, max_interruptions,
                          deadline_ms, protected, tags, unique_key, concurrency_key, traceparent, parent_id)
        values ($1, $2, $3,
                case when $6::timestamptz > (select lh_now()) then 'scheduled' else 'available' end,
                $5, coalesce($6, (select lh_now())), (select lh_now()), $4, $7, $8, $9, $10, $11, $12, $13, $14, $15)
            on conflict (kind, unique_key) where unique_key is not null do nothing
        returning state = 'available' as "due!"
        "#,
        job.id.0,
        job.kind.as_str(),
        job.queue.as_str(),
        job.args,
        job.priority,
        job.run_at,
        job.max_attempts,
        job.max_interruptions,
        job.deadline.map(millis),
        job.protected,
        &job.tags,
        job.unique_key,
        job.concurrency_key,
        job.traceparent,
        parent.map(|id| id.0),
    )
    .fetch_optional(conn)
    .await?;
    Ok(due.map(|due| Enqueued::made(job.id, due)))
}

async fn insert(
    conn: &mut PgConnection,
    jobs: &[NewJob],
    parent: Option<JobId>,
    open: &[usize],
    made: &mut [Option<Enqueued>],
) -> Result<(), sqlx::Error> {
    let pick = || open.iter().map(|&i| &jobs[i]);
    let ids: Vec<Uuid> = pick().map(|j| j.id.0).collect();
    let kinds: Vec<&str> = pick().map(|j| j.kind.as_str()).collect();
    let queues: Vec<&str> = pick().map(|j| j.queue.as_str()).collect();
    let args: Vec<&serde_json::Value> = pick().map(|j| &j.args).collect();
    let priorities: Vec<i16> = pick().map(|j| j.priority).collect();
    let run_at: Vec<Option<crate::clock::Timestamp>> = pick().map(|j| j.run_at).collect();
    let max_attempts: Vec<i32> = pick().map(|j| j.max_attempts).collect();
    let max_interruptions: Vec<i32> = pick().map(|j| j.max_interruptions).collect();
    let deadlines: Vec<Option<i64>> = pick().map(|j| j.deadline.map(millis)).collect();
    let protected: Vec<bool> = pick().map(|j| j.protected).collect();
    // Arrays of arrays must be rectangular in PostgreSQL, so the tags travel as JSON.
    let tags: Vec<serde_json::Value> = pick().map(|j| serde_json::json!(j.tags)).collect();
    let unique_keys: Vec<Option<&str>> = pick().map(|j| j.unique_key.as_deref()).collect();
    let concurrency_keys: Vec<Option<&str>> = pick().map(|j| j.concurrency_key.as_deref()).collect();
    let traces: Vec<Option<&str>> = pick().map(|j| j.traceparent.as_deref()).collect();
    let created = sqlx::query!(
        r#"
        with asked as (
            select *
              from unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::smallint[], $6::timestamptz[], $7::int[],
                          $8::int[], $9::bigint[], $10::bool[], $11::jsonb[], $12::text[], $13::text[], $14::text[])
                   with ordinality
                   as a(id, kind, queue, args, priority, run_at, max_attempts, max_interruptions, deadline_ms,
                        protected, tags, unique_key, concurrency_key, traceparent, n)
        )
        insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts, max_interruptions,
                          deadline_ms, protected, tags, unique_key, concurrency_key, traceparent, parent_id)
        select id, kind, queue,
               case when run_at > (select lh_now()) then 'scheduled' else 'available' end,
               priority, coalesce(run_at, (select lh_now())), (select lh_now()), args, max_attempts, max_interruptions,
               deadline_ms, protected,
               case when tags = '[]' then '{}' else array(select jsonb_array_elements_text(tags)) end,
               unique_key, concurrency_key, traceparent, $15
          from asked
         -- Two calls that meet in their keys wait for each other in one order, whatever order their callers gave.
         order by kind, unique_key, n
            on conflict (kind, unique_key) where unique_key is not null do nothing
        returning id, state = 'available' as "due!"
        "#,
        &ids,
        &kinds as &[&str],
        &queues as &[&str],
        &args as &[&serde_json::Value],
        &priorities,
        &run_at as &[Option<crate::clock::Timestamp>],
        &max_attempts,
        &max_interruptions,
        &deadlines as &[Option<i64>],
        &protected,
        &tags,
        &unique_keys as &[Option<&str>],
        &concurrency_keys as &[Option<&str>],
        &traces as &[Option<&str>],
        parent.map(|id| id.0),
    )
    .fetch_all(conn)
    .await?;
    if created.len() == open.len() && created.iter().all(|row| row.due) {
        for &i in open {
            made[i] = Some(Enqueued::Created(jobs[i].id));
        }
        return Ok(());
    }
    let created: HashMap<Uuid, bool> = created.into_iter().map(|row| (row.id, row.due)).collect();
    for &i in open {
        if let Some(due) = created.get(&jobs[i].id.0) {
            made[i] = Some(Enqueued::made(jobs[i].id, *due));
        }
    }
    Ok(())
}

async fn find_existing(
    conn: &mut PgConnection,
    jobs: &[NewJob],
    made: &mut [Option<Enqueued>],
) -> Result<(), sqlx::Error> {
    let open: Vec<usize> = (0..jobs.len()).filter(|&i| made[i].is_none()).collect();
    if open.is_empty() {
        return Ok(());
    }
    let kinds: Vec<&str> = open.iter().map(|&i| jobs[i].kind.as_str()).collect();
    let keys: Vec<&str> = open.iter().map(|&i| jobs[i].unique_key.as_deref().unwrap_or_default()).collect();
    let rows = sqlx::query!(
        r#"
        select j.id, j.kind, j.unique_key as "unique_key!"
          from unnest($1::text[], $2::text[]) as a(kind, unique_key)
          join jobs j on j.kind = a.kind and j.unique_key = a.unique_key
        "#,
        &kinds as &[&str],
        &keys as &[&str],
    )
    .fetch_all(conn)
    .await?;
    let holders: HashMap<(&str, &str), Uuid> =
        rows.iter().map(|r| ((r.kind.as_str(), r.unique_key.as_str()), r.id)).collect();
    for i in open {
        let key = (jobs[i].kind.as_str(), jobs[i].unique_key.as_deref().unwrap_or_default());
        if let Some(id) = holders.get(&key) {
            made[i] = Some(Enqueued::Existing(JobId(*id)));
        }
    }
    Ok(())
}
