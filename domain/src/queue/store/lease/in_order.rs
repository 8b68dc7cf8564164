//! The short text of the lease statement: jobs in order of priority and age, of queues without a limit, without keys.

use sqlx::PgConnection;

use super::tail::leasing;
use super::{Asked, Row};
use crate::ids::{BatchId, JobId, Kind, QueueName};
use crate::lease::Fence;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{PollRequest, WorkerSpec};

/// One bounded walk of the index for each range of a queue and a kind, merged.
pub(super) async fn lease(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    request: &PollRequest<'_>,
    asked: &Asked<'_>,
) -> Result<Vec<Row>, sqlx::Error> {
    leasing!(
        r#"
        with served as (
            select *
              from unnest($1::text[], $2::text[], $3::bigint[], $11::smallint[], $12::timestamptz[], $13::uuid[],
                          $14::smallint[])
                   as s(queue, kind, lease_ms, from_priority, from_run_at, from_id, to_priority)
             where not exists (select from pauses p where p.scope = 'queue' and p.name = s.queue)
               and not exists (select from pauses p where p.scope = 'kind' and p.name = s.kind)
        ), due as materialized (
            select j.place, j.id, j.priority, j.run_at, s.lease_ms
              from served s
             cross join lateral (
                   select *
                     from (
                          select a.ctid as place, a.id, a.priority, a.run_at
                            from jobs a
                           where a.queue = s.queue
                             and a.kind = s.kind
                             and not a.keyed
                             and a.ready
                             and (a.priority, a.run_at, a.id) >= (s.from_priority, s.from_run_at, s.from_id)
                             and a.priority <= s.to_priority
                             -- Those that run keep their place in the index; the walk passes them by.
                             and a.state = 'available'
                           order by a.priority, a.run_at, a.id
                           -- A number that the planner can see: of a parameter it believes a tenth of the table,
                           -- and would then read all of it to join the rest.
                           limit 4000
                          ) b
                    limit $4
                   ) j
             where not exists (select from queue_limits l where l.queue = s.queue and l.running is not null)
             order by j.priority, j.run_at, j.id
             limit $4
        ), held as materialized (
            -- By the row's place on its page, which is cheaper than its id. A row that moved meanwhile was changed
            -- meanwhile: if it is locked here all the same, the update below does not see its new version, and it is
            -- leased by a later statement. One row after the other, in the order of what is due, so that no row is
            -- locked beyond the limit.
            select j.place, d.lease_ms
              from due d
             cross join lateral (
                   select l.ctid as place
                     from jobs l
                    where l.ctid = d.place
                      and l.state = 'available'
                      for update skip locked
                   ) j
             limit $5
        )
        "#,
        fence = "nextval('lease_fence')",
        allowed = "true",
        in_turn = r#"
                   ($8 or (select count(*) from due) < $5)
                   and (exists (select from queue_limits l where l.queue = any($1) and l.running is not null)
                        or exists (
                            select
                              from served s
                             where exists (
                                   select
                                     from jobs a
                                    where a.keyed
                                      and a.queue = s.queue
                                      and a.kind = s.kind
                                      and a.ready
                                      and a.state = 'available'
                                   )
                            ))"#,
        contested = "false",
        cut_queues = "'{}'::text[]",
        cut_keys = "'{}'::text[]",
        &asked.ranges.queues as &[&str],
        &asked.ranges.kinds as &[&str],
        &asked.ranges.lease_ms,
        asked.window,
        asked.limit,
        worker.worker.0,
        &asked.ended,
        request.look,
        request.wall_clock,
        SILENT_AFTER.as_secs_f64(),
        &asked.ranges.from_priority,
        &asked.ranges.from_run_at,
        &asked.ranges.from_id,
        &asked.ranges.to_priority,
    )
    .fetch_all(conn)
    .await
}
