//! The SQL of who opens sealed values.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{Host, InstanceId, NodeId, RegionCode};
use crate::instances::config_key::CODE;
use crate::nodes::SILENT_AFTER;

pub(in crate::instances) async fn env(
    conn: &mut PgConnection,
    id: InstanceId,
) -> Result<Option<BTreeMap<String, String>>, sqlx::Error> {
    let env = sqlx::query_scalar!(
        r#"select env as "env: Json<BTreeMap<String, String>>" from instances where id = $1"#,
        id.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(env.map(|env| env.0))
}

/// Whether a box said that it holds a key.
pub(in crate::instances) async fn holds(conn: &mut PgConnection, node: NodeId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
                   select
                     from nodes
                    where id = $1
                      and coalesce(capabilities -> 'config_key', '[]') <> '[]'::jsonb
               ) as "holds!"
        "#,
        node.0,
    )
    .fetch_one(conn)
    .await
}

/// The box after this one, in a round of those of the region that are heard, can host and hold a key; never this one.
pub(in crate::instances) async fn next_holder(
    conn: &mut PgConnection,
    region: &RegionCode,
    node: NodeId,
) -> Result<Option<NodeId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select id as "id: NodeId"
          from nodes
         where region = $1
           and id <> $2
           and capabilities -> 'exec' = 'true'::jsonb
           and coalesce(capabilities -> 'config_key', '[]') <> '[]'::jsonb
           and seen_at > (select lh_now()) - $3::float8 * interval '1 second'
         order by id < $2, id
         limit 1
        "#,
        region.as_str(),
        node.0,
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_optional(conn)
    .await
}

/// The boxes that could not open the values of a record, in the order of their first try: at most those of a region.
pub(in crate::instances) async fn tried(conn: &mut PgConnection, host: &Host) -> Result<Vec<NodeId>, sqlx::Error> {
    let tried = sqlx::query_scalar!(
        r#"
        select coalesce(held -> 'tried', '[]') as "tried!: Json<Vec<NodeId>>"
          from routes
         where host = $1
           and held ->> 'code' = $2
        "#,
        host.as_str(),
        CODE,
    )
    .fetch_optional(conn)
    .await?;
    Ok(tried.map(|tried| tried.0).unwrap_or_default())
}

/// Gives the route of a landing to another box. What holds it up stays told until that one gets on, and beside it who tried.
pub(in crate::instances) async fn hand_route(
    conn: &mut PgConnection,
    host: &Host,
    (from, to): (NodeId, NodeId),
    tried: &[NodeId],
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        r#"
        update routes
           set node_id = $3, held = held || jsonb_build_object('tried', $4::jsonb)
         where host = $1
           and node_id = $2
           and status = 'landing'
        "#,
        host.as_str(),
        from.0,
        to.0,
        serde_json::json!(tried),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
