//! The SQL of operators' doors.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{AppName, Host, InstanceId, MoveId, NodeId, RegionCode};
use crate::nodes::SILENT_AFTER;

/// What a door looks at that changes a record by hand.
#[derive(Debug)]
pub(in crate::instances) struct Locked {
    pub(in crate::instances) id: InstanceId,
    pub(in crate::instances) region: RegionCode,
    pub(in crate::instances) env: BTreeMap<String, String>,
    pub(in crate::instances) revision: i64,
    /// The landing that is pending, and the transaction of its cut.
    pub(in crate::instances) pending: Option<(MoveId, String)>,
    /// The box whose child may run. One that was parked may still be ending it.
    pub(in crate::instances) serves: Option<NodeId>,
    /// Whether that box was heard lately.
    pub(in crate::instances) lives: bool,
}

/// The record stays locked until the transaction ends.
pub(in crate::instances) async fn lock(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
) -> Result<Option<Locked>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select i.id as "id: InstanceId", i.region as "region: RegionCode", i.revision,
               i.env as "env: Json<BTreeMap<String, String>>",
               (select m.id from moves m where m.id = i.pending_landing_move) as "pending: MoveId",
               (select m.tail_txid from moves m where m.id = i.pending_landing_move) as txid,
               (
                   select r.node_id
                     from routes r
                    where r.host = i.host
                      and r.status <> 'landing'
               ) as "serves: NodeId",
               exists (
                   select
                     from routes r
                     join nodes n on n.id = r.node_id
                    where r.host = i.host
                      and n.seen_at > (select lh_now()) - $3::float8 * interval '1 second'
               ) as "lives!"
          from instances i
         where i.app = $1
           and i.host = $2
           for no key update of i
        "#,
        app.as_str(),
        host.as_str(),
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|r| Locked {
        id: r.id,
        region: r.region,
        env: r.env.0,
        revision: r.revision,
        pending: r.pending.zip(r.txid),
        serves: r.serves,
        lives: r.lives,
    }))
}

/// Returns the record's revision.
pub(in crate::instances) async fn point(
    conn: &mut PgConnection,
    id: InstanceId,
    to: &RegionCode,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update instances
           set region = $2, pending_landing_move = null, pending_landing_to = null, revision = revision + 1
         where id = $1
        returning revision
        "#,
        id.0,
        to.as_str(),
    )
    .fetch_one(conn)
    .await
}

pub(in crate::instances) async fn drop_route(conn: &mut PgConnection, host: &Host) -> Result<(), sqlx::Error> {
    sqlx::query!("delete from routes where host = $1", host.as_str()).execute(conn).await?;
    Ok(())
}

pub(in crate::instances) async fn leave_staging(
    conn: &mut PgConnection,
    id: MoveId,
    prefix: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix, keep_until)
        select m.id, m.instance_id, m.host, m.to_region, m.target_bucket, m.target_bucket_region, $2, (select lh_now())
          from moves m
         where m.id = $1
           and m.target_bucket is not null
            on conflict (move_id, region) do nothing
        "#,
        id.0,
        prefix,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// `false` where the purge has begun, or the move is not being cut.
pub(in crate::instances) async fn unstick(conn: &mut PgConnection, id: MoveId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update moves
           set state = 'aborting', aborted_at = (select lh_now())
         where id = $1
           and state = 'cutting'
           and finished_at is null
           and purge_began_at is null
        "#,
        id.0,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

pub(in crate::instances) async fn open_route(conn: &mut PgConnection, host: &Host) -> Result<(), sqlx::Error> {
    sqlx::query!("update routes set status = 'serving' where host = $1 and status = 'moving'", host.as_str())
        .execute(conn)
        .await?;
    Ok(())
}

pub(in crate::instances) async fn touch(conn: &mut PgConnection, id: InstanceId) -> Result<(), sqlx::Error> {
    sqlx::query!("update instances set revision = revision + 1 where id = $1", id.0).execute(conn).await?;
    Ok(())
}
