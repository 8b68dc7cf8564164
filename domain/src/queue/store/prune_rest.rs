//! The rest of what ages: workers, counts by minute, evidence. Each statement removes a batch, oldest first.

use std::time::Duration;

use sqlx::PgConnection;

/// Removes workers that were last heard over `kept` ago and hold nothing, at most `limit`.
pub(super) async fn workers(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<i64, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        with old as materialized (
            select id
              from workers
             where seen_at < (select lh_now()) - $1::float8 * interval '1 second'
               -- What it holds names it until a sweep took it away.
               and not exists (select from lease_batches b where b.worker_id = workers.id)
             order by seen_at
             limit $2
               for update skip locked
        )
        delete from workers w using old o where w.id = o.id
        "#,
        kept.as_secs_f64(),
        limit,
    )
    .execute(conn)
    .await?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

/// Removes counts of minutes over `kept` ago, at most `limit`.
pub(super) async fn throughput(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<i64, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        with old as materialized (
            select minute, queue, kind, outcome
              from throughput
             where minute < (select lh_now()) - $1::float8 * interval '1 second'
             order by minute, queue, kind, outcome
             limit $2
               for update skip locked
        )
        delete from throughput t
         using old o
         where t.minute = o.minute
           and t.queue = o.queue
           and t.kind = o.kind
           and t.outcome = o.outcome
        "#,
        kept.as_secs_f64(),
        limit,
    )
    .execute(conn)
    .await?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

/// Removes refused writes of over `kept` ago, at most `limit`, and the counts of leases of which no row is left.
pub(super) async fn refused_writes(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        with old as materialized (
            select id, job_id, fence_held
              from fenced_writes
             where at < (select lh_now()) - $1::float8 * interval '1 second'
             order by at
             limit $2
               for update skip locked
        ), gone as (
            delete from fenced_writes w using old o where w.id = o.id returning w.id
        ), counted as (
            delete from fenced_write_totals t
             using (select distinct job_id, fence_held from old) o
             where t.job_id = o.job_id
               and t.fence_held = o.fence_held
               and not exists (
                   select
                     from fenced_writes w
                    where w.job_id = o.job_id
                      and w.fence_held = o.fence_held
                      and not exists (select from old x where x.id = w.id)
               )
        )
        select count(*) as "gone!" from gone
        "#,
        kept.as_secs_f64(),
        limit,
    )
    .fetch_one(conn)
    .await
}

/// How many workers, counts by minute and refused writes are past, each counted up to `limit`.
pub(super) async fn tally(
    conn: &mut PgConnection,
    workers: Duration,
    throughput: Duration,
    refused_writes: Duration,
    limit: i64,
) -> Result<(i64, i64, i64), sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select (select count(*) from (
                   select
                     from workers w
                    where w.seen_at < (select lh_now()) - $1::float8 * interval '1 second'
                      and not exists (select from lease_batches b where b.worker_id = w.id)
                    limit $4) w) as "workers!",
               (select count(*) from (
                   select from throughput
                    where minute < (select lh_now()) - $2::float8 * interval '1 second' limit $4) t) as "throughput!",
               (select count(*) from (
                   select from fenced_writes
                    where at < (select lh_now()) - $3::float8 * interval '1 second' limit $4) r) as "refused!"
        "#,
        workers.as_secs_f64(),
        throughput.as_secs_f64(),
        refused_writes.as_secs_f64(),
        limit,
    )
    .fetch_one(conn)
    .await?;
    Ok((row.workers, row.throughput, row.refused))
}
