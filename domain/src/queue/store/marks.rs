//! Cheap marks of what changed, for hints to live pages.

use sqlx::PgConnection;

use crate::queue::ChangeMarks;
use crate::queue::policy::SILENT_AFTER;

/// Reads the marks: a few index look-ups, however many jobs there are.
///
/// # Errors
/// Only the database's.
pub async fn change_marks(conn: &mut PgConnection) -> Result<ChangeMarks, sqlx::Error> {
    sqlx::query_as!(
        ChangeMarks,
        r#"
        select concat_ws('/',
                   -- Each lease takes a fence; each enqueue makes a newest job; what settles is counted by minute.
                   (select last_value from lease_fence),
                   (select id from jobs order by id desc limit 1),
                   (select sum(total) from throughput where minute > (select lh_now()) - interval '2 minutes'),
                   (select max(id) from fenced_writes),
                   -- What operators hold back.
                   (select concat(count(*), max(paused_at)) from (select paused_at from pauses limit 1000) u),
                   (select sum(revision) from (select revision from queue_limits limit 1000) l),
                   -- Progress writes no counter: the progress of the running jobs is compared itself, of a thousand
                   -- at most: a hundred batches, and ten jobs of each. A page of more reloads at its own pace.
                   (select sum(hashtext(p.progress::text)::bigint) from (
                       select j.progress
                         from (select jobs from lease_batches order by id desc limit 100) b
                        cross join lateral (select id from unnest(b.jobs) as u(id) limit 10) u
                        cross join lateral (select progress from jobs a where a.id = u.id and a.state = 'running') j
                   ) p)) as "jobs!",
               concat_ws('/',
                   (select string_agg(w.state, ',' order by w.id) from (
                       select id, concat(id, case
                                  when stopped_at is not null then 's'
                                  when seen_at < (select lh_now()) - $1::float8 * interval '1 second' then '?'
                                  when draining_at is not null then 'd'
                              end) as state
                         from workers
                        where seen_at > (select lh_now()) - interval '1 day'
                        order by seen_at desc
                        limit 1000
                   ) w)) as "workers!"
        "#,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_one(conn)
    .await
}
