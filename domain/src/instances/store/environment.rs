//! The SQL of an instance's environment.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{AppName, Host, InstanceId, RegionCode};

/// What a change of the environment looks at.
#[derive(Debug)]
pub(in crate::instances) struct Locked {
    pub(in crate::instances) id: InstanceId,
    pub(in crate::instances) region: RegionCode,
    pub(in crate::instances) env: BTreeMap<String, String>,
    pub(in crate::instances) revision: i64,
}

/// The record stays locked until the transaction ends.
pub(in crate::instances) async fn lock(
    conn: &mut PgConnection,
    app: &AppName,
    host: &Host,
) -> Result<Option<Locked>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select id as "id: InstanceId", region as "region: RegionCode", env as "env: Json<BTreeMap<String, String>>", revision
          from instances
         where app = $1
           and host = $2
           for no key update
        "#,
        app.as_str(),
        host.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Locked { id: row.id, region: row.region, env: row.env.0, revision: row.revision }))
}

pub(in crate::instances) async fn set(
    conn: &mut PgConnection,
    id: InstanceId,
    env: &BTreeMap<String, String>,
) -> Result<(), sqlx::Error> {
    sqlx::query!("update instances set env = $2, revision = revision + 1 where id = $1", id.0, Json(env) as _)
        .execute(conn)
        .await?;
    Ok(())
}
