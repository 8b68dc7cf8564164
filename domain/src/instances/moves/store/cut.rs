//! The writes of a cut and of an abort.

use std::time::Duration;

use sqlx::PgConnection;

use crate::ids::{Host, InstanceId, MoveId, NodeId, RegionCode};
use crate::instances::moves::{LANDING_PAIR, MoveState, Tail, policy};

/// Enters a state from one of those that may precede it; `false` where the move is in none of them, or over.
pub(in crate::instances::moves) async fn enter(
    conn: &mut PgConnection,
    id: MoveId,
    state: MoveState,
) -> Result<bool, sqlx::Error> {
    let from: Vec<&str> = state.entered_from().iter().map(|s| s.as_str()).collect();
    let done = sqlx::query!(
        r#"
        update moves
           set state = $2,
               cut_at = case when $2 = 'cutting' then (select lh_now()) else cut_at end,
               aborted_at = case when $2 = 'aborting' then (select lh_now()) else aborted_at end
         where id = $1
           and state = any($3)           -- MoveState::entered_from()
           and finished_at is null
        "#,
        id.0,
        state.as_str(),
        &from as &[&str],
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Records of a move that was just let be cut how long its freeze was predicted to be, and whether that was over its
/// budget. What kept it from being cut by itself does so no longer.
pub(in crate::instances::moves) async fn note_freeze(
    conn: &mut PgConnection,
    id: MoveId,
    predicted: Option<Duration>,
    forced: bool,
) -> Result<bool, sqlx::Error> {
    let predicted = predicted.map(|span| i64::try_from(span.as_millis()));
    let predicted = predicted.transpose().map_err(|error| sqlx::Error::Encode(error.into()))?;
    let done = sqlx::query!(
        r#"
        update moves
           set predicted_freeze_ms = $2, cut_forced = $3,
               status = case when status -> 'obstacle' ->> 'code' = any($4)
                             then status - 'obstacle' - 'obstacle_since'
                             else status end
         where id = $1
           and state = 'cutting'
           and finished_at is null
        "#,
        id.0,
        predicted,
        forced,
        &policy::NOT_CUT.map(str::to_owned),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Closes the route of a host to everybody but its own box; `false` where it is closed, or not this box's.
pub(in crate::instances::moves) async fn close_route(
    conn: &mut PgConnection,
    host: &Host,
    node: NodeId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update routes
           set status = 'moving', address = null,
               -- Nothing is to start here any more, and the cut itself proves what is replicated.
               held = null, held_since = null
         where host = $1
           and node_id = $2
           and status = 'serving'
        "#,
        host.as_str(),
        node.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Records what was proven of the tail; `false` where the move is not being cut, or its purge began: the proof stands then.
pub(in crate::instances::moves) async fn set_tail(
    conn: &mut PgConnection,
    id: MoveId,
    tail: &Tail,
) -> Result<bool, sqlx::Error> {
    let size = i64::try_from(tail.size).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let done = sqlx::query!(
        r#"
        update moves
           set tail_txid = $2, tail_sha256 = $3, tail_size = $4
         where id = $1
           and state = 'cutting'
           and finished_at is null
           and purge_began_at is null
        "#,
        id.0,
        tail.txid,
        tail.sha256,
        size,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// From here on the source's own database may be gone; `false` where the tail is not proven, or the move is not being cut.
pub(in crate::instances::moves) async fn begin_purge(conn: &mut PgConnection, id: MoveId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set purge_began_at = coalesce(purge_began_at, (select lh_now()))
         where id = $1
           and state = 'cutting'
           and finished_at is null
           and tail_txid is not null
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Ends a move that was cut; gives its target. `None` where its purge has not begun, or it is over.
pub(in crate::instances::moves) async fn end_moved(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<RegionCode>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update moves
           set finished_at = (select lh_now()), outcome = 'moved',
               -- What held it up does no longer.
               status = status - 'obstacle' - 'obstacle_since'
         where id = $1
           and state = 'cutting'
           and finished_at is null
           and purge_began_at is not null
        returning to_region as "to: RegionCode"
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await
}

/// The one write that changes an instance's region (I5): it names the region that it leaves.
pub(in crate::instances::moves) async fn flip_region(
    conn: &mut PgConnection,
    id: InstanceId,
    (from, to): (&RegionCode, &RegionCode),
    landing: MoveId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update instances
           set region = $3, pending_landing_move = $4, pending_landing_to = $3, revision = revision + 1
         where id = $1
           and region = $2
        "#,
        id.0,
        from.as_str(),
        to.as_str(),
        landing.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Keeps the replica that the move leaves behind, until its landing says for how long.
pub(in crate::instances::moves) async fn keep_old_replica(
    conn: &mut PgConnection,
    id: MoveId,
    prefix: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix)
        select m.id, m.instance_id, m.host, m.from_region, r.data_bucket, r.data_bucket_region, $2
          from moves m
          join regions r on r.code = m.from_region
         where m.id = $1
           and r.data_bucket is not null
            on conflict (move_id, region) do nothing
        "#,
        id.0,
        prefix,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Notes that a fresh listing of the staging was empty, the first time.
pub(in crate::instances::moves) async fn note_swept(conn: &mut PgConnection, id: MoveId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set swept_at = (select lh_now())
         where id = $1
           and state = 'aborting'
           and finished_at is null
           and swept_at is null
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Ends a move whose staging was found empty twice; `false` where it was not, or it is over.
pub(in crate::instances::moves) async fn end_aborted(conn: &mut PgConnection, id: MoveId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set finished_at = (select lh_now()), outcome = 'aborted', staging_deleted_at = (select lh_now()),
               status = status - 'obstacle' - 'obstacle_since'
         where id = $1
           and state = 'aborting'
           and finished_at is null
           and swept_at is not null
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How long ago the staging was first found empty, and whether copies of an earlier run may still be under way: a round
/// that nobody ended, or that was cut short.
pub(in crate::instances::moves) async fn since_swept(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<(f64, bool)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select extract(epoch from (select lh_now()) - m.swept_at)::float8 as "seconds!",
               exists (
                   select
                     from move_steps s
                    where s.move_id = m.id
                      and s.step in ('round', 'final_delta')
                      and coalesce(s.outcome, '') not in ('in_sync', 'within_bars', 'not_ready', 'done')
               ) as "loose!"
          from moves m
         where m.id = $1
           and m.swept_at is not null
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (row.seconds, row.loose)))
}

/// Removes a route that its box should no longer have: the record is in another region. `false` where there is none.
pub(in crate::instances) async fn retire_route(
    conn: &mut PgConnection,
    host: &Host,
    node: NodeId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        delete from routes r
         using instances i, nodes n
         where r.host = $1
           and r.node_id = $2
           and i.id = r.instance_id
           and n.id = r.node_id
           and i.region <> n.region
        "#,
        host.as_str(),
        node.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes some rows of the journal of copies of a move that is over; how many there were.
pub(in crate::instances::moves) async fn forget_some_keys(
    conn: &mut PgConnection,
    id: MoveId,
    of_landing: bool,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        delete from move_keys
         where ctid in (
                   select k.ctid from move_keys k where k.move_id = $1 and (k.pair >= $4) = $3 limit $2
               )
           and exists (select from moves m where m.id = $1 and m.finished_at is not null)
        "#,
        id.0,
        limit,
        of_landing,
        LANDING_PAIR,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
