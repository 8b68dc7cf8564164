//! The SQL of the list of all instances.

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::ids::{AppName, Host, RegionCode};
use crate::instances::moves::{Obstacle, StoredState};
use crate::instances::{Entry, RouteStatus};
use crate::nodes::SILENT_AFTER;

/// Instances by host, those after `after`, of one application or of all, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn index(
    conn: &mut PgConnection,
    app: Option<&AppName>,
    after: Option<&Host>,
    limit: u16,
) -> Result<Vec<Entry>, sqlx::Error> {
    // The page first, by the index of hosts or that of applications; what is told of it afterwards.
    let rows = sqlx::query!(
        r#"
        with page as materialized (
                 select id, host, app, region, parked
                   from instances
                  where host > coalesce($2, '')
                    and ($1::text is null or app = $1)
                  order by host
                  limit $3
             )
        select i.host as "host: Host", i.app as "app: AppName", i.region as "region: RegionCode", i.parked,
               r.status as "status?: RouteStatus", r.held as "held?: Json<Obstacle>", n.identity as "node?",
               n.region as "at?: RegionCode",
               n.seen_at > (select lh_now()) - $4::float8 * interval '1 second' as "live?",
               m.state as "moving?", m.to_region as "to?: RegionCode"
          from page i
          left join routes r on r.host = i.host
          left join nodes n on n.id = r.node_id
          left join moves m on m.host = i.host and m.finished_at is null
         order by i.host
        "#,
        app.map(AppName::as_str),
        after.map(Host::as_str),
        i64::from(limit),
        SILENT_AFTER.as_secs_f64(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Entry {
            app: row.app,
            host: row.host,
            region: row.region,
            parked: row.parked,
            status: row.status,
            held: row.held.map(|held| held.0),
            node: row.node.zip(row.at),
            live: row.live.unwrap_or_default(),
            moving: row.moving.map(StoredState::from).zip(row.to),
        })
        .collect())
}
