//! What a move left behind.

use sqlx::PgConnection;

use super::residency;
use crate::ids::{JobId, MoveId};
use crate::instances::moves::{self, MoveStep};
use crate::instances::receipt::{Receipt, STEPS};
use crate::lease::Fence;

/// What a move did and left; `None` where it never was. A move that is not over has less to show.
///
/// # Errors
/// Only the database's.
pub async fn receipt(conn: &mut PgConnection, id: MoveId) -> Result<Option<Receipt>, sqlx::Error> {
    let Some(moved) = moves::get(conn, id).await? else { return Ok(None) };
    // In its target a move leaves no replica; what may be left there is a staging that never landed.
    let left = residency::of_move(conn, id).await?;
    let old_replica = left.into_iter().find(|left| left.region == moved.from);
    let steps = acts(conn, id).await?;
    Ok(Some(Receipt { moved, old_replica, steps }))
}

/// The journal without its rounds, oldest first: the newest of it.
async fn acts(conn: &mut PgConnection, id: MoveId) -> Result<Vec<MoveStep>, sqlx::Error> {
    let mut steps = sqlx::query_as!(
        MoveStep,
        r#"
        select id, step, round, iterations, started_at, ended_at, outcome, evidence, job_id as "job: JobId",
               fence as "fence: Fence"
          from move_steps
         where move_id = $1
           and step <> 'round'
         order by id desc
         limit $2
        "#,
        id.0,
        i64::from(STEPS),
    )
    .fetch_all(conn)
    .await?;
    steps.reverse();
    Ok(steps)
}
