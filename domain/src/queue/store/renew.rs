//! Renewing leases.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::millis;
use crate::ids::JobId;
use crate::lease::{Fence, Lease};
use crate::queue::Renewed;

/// Lengthens many leases in one statement, each by its own life; the answers stand in the order of `leases`.
///
/// A cancellation that somebody asked for comes back in the answer, so it reaches the handler within a third of a lease
/// without any notification (Q-031).
///
/// A row that another session holds is passed by and answered with [`Renewed::Busy`]: it must not let the other leases
/// of the worker lapse.
///
/// # Errors
/// Only the database's: then nothing is known, and the holder stops at its own, earlier deadline.
pub async fn renew(conn: &mut PgConnection, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>, sqlx::Error> {
    let ids: Vec<Uuid> = leases.iter().map(|(l, _)| l.job.0).collect();
    let fences: Vec<i64> = leases.iter().map(|(l, _)| l.fence.0).collect();
    let lease_ms: Vec<i64> = leases.iter().map(|(_, life)| millis(*life)).collect();
    let rows = sqlx::query!(
        r#"
        with asked as (
            select *
              from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as a(id, fence, lease_ms)
        ), held as materialized (
            select j.id, a.lease_ms
              from asked a
              join jobs j on j.id = a.id
             where j.fence = a.fence
               and j.state = 'running'
             order by j.id
               for update of j skip locked
        )
        update jobs j
           set lease_expires_at = (select lh_now()) + h.lease_ms * interval '1 ms',
               renewed = true
          from held h
         where j.id = h.id
        returning j.id as "id: JobId", j.fence as "fence: Fence", j.cancel_requested_at is not null as "cancelled!",
                  j.cancel_reason
        "#,
        &ids,
        &fences,
        &lease_ms,
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut known: HashMap<Lease, Renewed> = rows
        .into_iter()
        .map(|r| {
            let told = if r.cancelled {
                Renewed::CancelRequested { reason: r.cancel_reason.unwrap_or_default() }
            } else {
                Renewed::Alive
            };
            (Lease { job: r.id, fence: r.fence }, told)
        })
        .collect();
    let missed: Vec<Lease> = leases.iter().map(|(l, _)| *l).filter(|lease| !known.contains_key(lease)).collect();
    if !missed.is_empty() {
        known.extend(still_held(conn, &missed).await?.into_iter().map(|lease| (lease, Renewed::Busy)));
    }
    Ok(leases.iter().map(|(lease, _)| known.remove(lease).unwrap_or(Renewed::Lost)).collect())
}

/// Which of these leases are their jobs' as far as is committed: a look that waits for no lock.
pub(super) async fn still_held(conn: &mut PgConnection, leases: &[Lease]) -> Result<Vec<Lease>, sqlx::Error> {
    let ids: Vec<Uuid> = leases.iter().map(|l| l.job.0).collect();
    let fences: Vec<i64> = leases.iter().map(|l| l.fence.0).collect();
    let rows = sqlx::query!(
        r#"
        select j.id as "id: JobId", j.fence as "fence: Fence"
          from unnest($1::uuid[], $2::bigint[]) as a(id, fence)
          join jobs j on j.id = a.id
         where j.fence = a.fence
           and j.state = 'running'
        "#,
        &ids,
        &fences,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|r| Lease { job: r.id, fence: r.fence }).collect())
}
