//! The record's and the box's writes. Each names the columns that it changes and the states that it may leave.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;

use crate::clock::Timestamp;
use crate::ids::{AppName, Host, InstanceId, MoveId, NodeId, RegionCode};
use crate::instances::moves::policy::Movable;
use crate::instances::moves::store::read::movable;
use crate::instances::moves::{MoveState, Status, StoredState, Wish};
use crate::instances::record::{InstanceKind, Role};
use crate::instances::sealed;
use crate::lease::Lease;
use crate::nodes::Bucket;

/// What the gate of the verbs looks at.
#[derive(Debug)]
pub(in crate::instances::moves) struct LockedRecord {
    pub(in crate::instances::moves) id: InstanceId,
    pub(in crate::instances::moves) kind: InstanceKind,
    pub(in crate::instances::moves) backing: String,
    pub(in crate::instances::moves) role: Role,
    pub(in crate::instances::moves) placement: Option<String>,
    pub(in crate::instances::moves) pool: String,
    pub(in crate::instances::moves) hibernate: bool,
    pub(in crate::instances::moves) region: RegionCode,
    pub(in crate::instances::moves) env: Json<BTreeMap<String, String>>,
    /// Its revision.
    pub(in crate::instances::moves) revision: i64,
    pub(in crate::instances::moves) node: Option<NodeId>,
}

impl LockedRecord {
    /// What the gate of the verbs looks at: the record, beside what is in flight and whether a box serves it.
    pub(in crate::instances::moves) fn movable<'a>(
        &'a self,
        open: Option<(&'a RegionCode, &'a StoredState)>,
        placed: bool,
    ) -> Movable<'a> {
        Movable {
            kind: self.kind,
            backing: &self.backing,
            role: self.role,
            placement: self.placement.as_deref(),
            pool: &self.pool,
            hibernate: self.hibernate,
            region: &self.region,
            sealed: sealed::any(&self.env),
            open,
            placed,
            purging: false,
        }
    }
}

/// The record stays locked until the transaction ends: verbs on one host wait for each other.
pub(in crate::instances::moves) async fn lock_record(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
) -> Result<Option<LockedRecord>, sqlx::Error> {
    // Read behind the lock, so what another verb wrote meanwhile is seen, its route too.
    sqlx::query!(
        "select id from instances where app = $1 and host = $2 for no key update",
        app.as_str(),
        host.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    movable(conn, app, host).await
}

/// The record of a move, locked.
#[derive(Debug)]
pub(in crate::instances::moves) struct RecordOfMove {
    pub(in crate::instances::moves) id: InstanceId,
    pub(in crate::instances::moves) host: Host,
    pub(in crate::instances::moves) from: RegionCode,
    pub(in crate::instances::moves) env: Json<BTreeMap<String, String>>,
}

pub(in crate::instances::moves) async fn lock_record_of(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<RecordOfMove>, sqlx::Error> {
    sqlx::query_as!(
        RecordOfMove,
        r#"
        select i.id as "id: InstanceId", i.host as "host: Host", m.from_region as "from: RegionCode",
               i.env as "env: Json<BTreeMap<String, String>>"
          from moves m
          join instances i on i.id = m.instance_id
         where m.id = $1
           for no key update of i
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await
}

pub(in crate::instances::moves) async fn insert(
    conn: &mut PgConnection,
    id: MoveId,
    (instance, host): (InstanceId, &Host),
    (from, to): (&RegionCode, &RegionCode),
    wish: Wish,
) -> Result<(), sqlx::Error> {
    let budget = wish.freeze_budget.map(|budget| i32::try_from(budget.as_secs()));
    let budget = budget.transpose().map_err(|error| sqlx::Error::Encode(error.into()))?;
    sqlx::query!(
        r#"
        insert into moves (id, instance_id, host, from_region, to_region, state, cut_auto, freeze_budget_seconds,
                           requested_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, (select lh_now()))
        "#,
        id.0,
        instance.0,
        host.as_str(),
        from.as_str(),
        to.as_str(),
        MoveState::Preparing.as_str(),
        wish.cut_auto,
        budget,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Counts a change of the record; no other column is named, so concurrent edits survive (M-010).
pub(in crate::instances::moves) async fn touch_record(
    conn: &mut PgConnection,
    id: InstanceId,
) -> Result<(), sqlx::Error> {
    sqlx::query!("update instances set revision = revision + 1 where id = $1", id.0).execute(conn).await?;
    Ok(())
}

/// `false` where a target is pinned already, or the move is over.
pub(in crate::instances::moves) async fn pin(
    conn: &mut PgConnection,
    id: MoveId,
    target: &Bucket,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set target_bucket = $2, target_bucket_region = $3
         where id = $1
           and target_bucket is null
           and finished_at is null
        "#,
        id.0,
        target.name,
        target.region,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

pub(in crate::instances::moves) async fn pinned(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<Bucket>, sqlx::Error> {
    sqlx::query_as!(
        Bucket,
        r#"
        select target_bucket as "name!", target_bucket_region as "region!"
          from moves
         where id = $1
           and target_bucket is not null
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await
}

/// The number of the round that begins; `None` in a state in which none runs.
pub(in crate::instances::moves) async fn count_round(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<i32>, sqlx::Error> {
    let mirrors: Vec<&str> = MoveState::ALL.into_iter().filter(|s| s.mirrors()).map(MoveState::as_str).collect();
    sqlx::query_scalar!(
        r#"
        update moves
           set round = round + 1
         where id = $1
           and state = any($2)
           and finished_at is null
        returning round
        "#,
        id.0,
        &mirrors as &[&str],
    )
    .fetch_optional(conn)
    .await
}

/// `None` where the move is over, or never was.
pub(in crate::instances::moves) async fn state(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<StoredState>, sqlx::Error> {
    let state = sqlx::query_scalar!("select state from moves where id = $1 and finished_at is null", id.0)
        .fetch_optional(conn)
        .await?;
    Ok(state.map(StoredState::from))
}

/// When it became ready; `None` where it is not in a state from which it may.
pub(in crate::instances::moves) async fn promote(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let from: Vec<&str> = MoveState::Ready.entered_from().iter().map(|s| s.as_str()).collect();
    sqlx::query_scalar!(
        r#"
        update moves
           set state = 'ready', ready_at = (select lh_now())
         where id = $1
           and state = any($2)           -- MoveState::Ready.entered_from()
           and finished_at is null
        returning ready_at as "ready_at!"
        "#,
        id.0,
        &from as &[&str],
    )
    .fetch_optional(conn)
    .await
}

/// The status, locked, and the present moment.
pub(in crate::instances::moves) async fn lock_status(
    conn: &mut PgConnection,
    id: MoveId,
) -> Result<Option<(Status, Timestamp)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select status as "status: sqlx::types::Json<Status>", (select lh_now()) as "now!"
          from moves
         where id = $1
           for no key update
        "#,
        id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|r| (r.status.0, r.now)))
}

pub(in crate::instances::moves) async fn set_status(
    conn: &mut PgConnection,
    id: MoveId,
    status: &Status,
) -> Result<(), sqlx::Error> {
    sqlx::query!("update moves set status = $2 where id = $1", id.0, serde_json::json!(status)).execute(conn).await?;
    Ok(())
}

/// Opens a row of the journal; returns its number.
pub(in crate::instances) async fn open_step(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    step: &str,
    round: Option<i32>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        insert into move_steps (move_id, job_id, fence, step, round, started_at)
        values ($1, $2, $3, $4, $5, (select lh_now()))
        returning id
        "#,
        id.0,
        lease.job.0,
        lease.fence.0,
        step,
        round,
    )
    .fetch_one(conn)
    .await
}

/// A row that is closed already stays as it is: the journal is append-only.
pub(in crate::instances::moves) async fn close_step(
    conn: &mut PgConnection,
    step: i64,
    iterations: Option<i32>,
    outcome: &str,
    evidence: &Value,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update move_steps
           set ended_at = (select lh_now()), iterations = $2, outcome = $3, evidence = $4
         where id = $1
           and ended_at is null
        "#,
        step,
        iterations,
        outcome,
        evidence,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A step that begins and ends in its own transaction.
pub(in crate::instances) async fn one_step(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    step: &str,
    outcome: &str,
    evidence: &Value,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into move_steps (move_id, job_id, fence, step, started_at, ended_at, outcome, evidence)
        values ($1, $2, $3, $4, (select lh_now()), (select lh_now()), $5, $6)
        "#,
        id.0,
        lease.job.0,
        lease.fence.0,
        step,
        outcome,
        evidence,
    )
    .execute(conn)
    .await?;
    Ok(())
}
