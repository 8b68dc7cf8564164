//! The net under the batches: running jobs that none of them names.

use sqlx::PgConnection;

/// Looks at the next `limit` live jobs of the walk that all workers share, and gives those a batch that hold an expired
/// lease and stand in none, so that [`super::rescue::rescue_expired`] finds them; returns how many.
///
/// No statement of ours leaves such a job behind. If one does all the same, its job would run for ever: the walk goes
/// around all live jobs in small steps. While another session takes a step, this one takes none.
///
/// # Errors
/// Only the database's.
pub async fn adopt_strays(conn: &mut PgConnection, limit: u16) -> Result<u64, sqlx::Error> {
    let adopted = sqlx::query_scalar!(
        r#"
        with walk as materialized (
            select behind from stray_walk for update skip locked
        ), next as materialized (
            select j.id, j.state, j.worker_id, j.fence, j.lease_expires_at
              from walk w
             cross join lateral (select * from jobs a where a.id > w.behind order by a.id limit $1) j
        ), walked as (
            -- From the beginning again where the end was reached.
            update stray_walk
               set behind = coalesce((select id from next order by id offset $1 - 1 limit 1),
                                     '00000000-0000-0000-0000-000000000000')
             where exists (select from walk)
        ), adopted as (
            insert into lease_batches (worker_id, expires_at, first_fence, last_fence, jobs)
            select n.worker_id, n.lease_expires_at, n.fence, n.fence, array[n.id]
              from next n
             where n.state = 'running'
               -- Far beyond what a living worker's batch, or a sweep that is under way, could still be about to name.
               and n.lease_expires_at < (select lh_now()) - interval '1 minute'
               and not exists (select from running_jobs r where r.id = n.id)
            returning id
        )
        select count(*) as "adopted!"
          from adopted
        "#,
        i64::from(limit),
    )
    .fetch_one(conn)
    .await?;
    Ok(adopted.unsigned_abs())
}
