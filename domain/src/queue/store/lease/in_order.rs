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
        worker,
        request,
        asked,
        walked = "not exists (select from queue_limits l where l.queue = s.queue and l.running is not null)",
        finding = r#"
        due as materialized (
            select place, lease_ms
              from open
             order by priority, run_at, id
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
        rated = "false",
        contested = "false",
        cut_queues = "'{}'::text[]",
        cut_keys = "'{}'::text[]",
    )
    .fetch_all(conn)
    .await
}
