//! The SQL of a box's own routes.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{AppName, Host, InstanceId, NodeId, RegionCode};
use crate::instances::boxes::{BoxRoute, NOT_REPLICATED};

/// Every route of a box, by host. All of them, or an error: a part would look like routes that are gone (M-122).
///
/// # Errors
/// Only the database's.
pub async fn box_routes(conn: &mut PgConnection, node: NodeId) -> Result<Vec<BoxRoute>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select i.id as "instance: InstanceId", r.host as "host: Host", r.status = 'serving' as "serving!", i.parked,
               i.region = n.region as "in_scope!", r.address, i.env as "env: Json<BTreeMap<String, String>>", i.restarts
          from routes r
          join instances i on i.id = r.instance_id
          join nodes n on n.id = r.node_id
         where r.node_id = $1
           -- The other kinds have no child of a box.
           and i.kind = 'instance'
           and i.backing = 'exec'
         order by r.host
        "#,
        node.0,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| BoxRoute {
            instance: row.instance,
            host: row.host,
            serving: row.serving,
            parked: row.parked,
            in_scope: row.in_scope,
            address: row.address,
            env: row.env.0,
            restarts: row.restarts,
        })
        .collect())
}

/// Whether a child of this host may start on this box now: its route is the box's and serves, the record is in the box's
/// region, and nobody parked it (M-116). Every way to start a child asks this.
///
/// # Errors
/// Only the database's.
pub async fn may_start(conn: &mut PgConnection, node: NodeId, host: &Host) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
                   select
                     from routes r
                     join instances i on i.id = r.instance_id
                     join nodes n on n.id = r.node_id
                    where r.host = $2
                      and r.node_id = $1
                      and r.status = 'serving'
                      and i.kind = 'instance'
                      and i.backing = 'exec'
                      and i.region = n.region
                      and not i.parked
                      and i.pending_landing_move is null
               ) as "may!"
        "#,
        node.0,
        host.as_str(),
    )
    .fetch_one(conn)
    .await
}

pub(in crate::instances) async fn publish(
    conn: &mut PgConnection,
    node: NodeId,
    host: &Host,
    address: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update routes
           set address = $3,
               -- What answers waits for nothing, whether it is replicated or not. In the same write: a worker that dies
               -- behind it leaves nothing to clear.
               held = case when $3::text is null or held ->> 'code' = $4 then held end,
               held_since = case when $3::text is null or held ->> 'code' = $4 then held_since end
         where host = $2
           and node_id = $1
           and status = 'serving'
           and (address is distinct from $3 or $3::text is not null and held ->> 'code' <> $4)
        "#,
        node.0,
        host.as_str(),
        address,
        NOT_REPLICATED,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The record stays locked until the transaction ends.
pub(in crate::instances) async fn lock_parked(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
) -> Result<Option<(RegionCode, bool)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select region as "region: RegionCode", parked from instances where app = $1 and host = $2 for no key update
        "#,
        app.as_str(),
        host.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (row.region, row.parked)))
}

pub(in crate::instances) async fn set_parked(
    conn: &mut PgConnection,
    host: &Host,
    parked: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update instances
           set parked = $2, revision = revision + 1, restarts = restarts + case when $2 then 0 else 1 end
         where host = $1
        "#,
        host.as_str(),
        parked,
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(in crate::instances) async fn restart(conn: &mut PgConnection, id: InstanceId) -> Result<(), sqlx::Error> {
    sqlx::query!("update instances set restarts = restarts + 1, revision = revision + 1 where id = $1", id.0)
        .execute(conn)
        .await?;
    Ok(())
}

pub(in crate::instances) async fn forget_start(conn: &mut PgConnection, host: &Host) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update routes set held = null, held_since = null where host = $1 and status = 'serving' and held is not null",
        host.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}
