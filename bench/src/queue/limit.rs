//! The bare limit: one table, one lease statement, one settle statement, nothing around them.

use sqlx::{Connection as _, PgConnection};

use crate::measure::{Figures, Meter};
use crate::stand::Stand;

const TABLE: &str = "
    create table bare (
        id bigint generated always as identity primary key,
        queue text not null, payload jsonb not null, priority smallint not null default 0,
        state smallint not null default 0, attempts int not null default 0,
        run_at timestamptz not null default now(), token bigint, lease_until timestamptz);
    create index bare_ready on bare (queue, priority, run_at, id) where state = 0";
const BULK: &str = "insert into bare (queue, payload) select 'bench', p from unnest($1::jsonb[]) p";
const SINGLE: &str = "insert into bare (queue, payload) values ('bench', $1)";
const LEASE: &str = "
    with c as materialized (
        select id from bare where queue = 'bench' and state = 0 and run_at <= now()
         order by priority, run_at, id limit $1 for update skip locked)
    update bare j set state = 1, attempts = attempts + 1, token = attempts + 1, lease_until = now() + interval '30 s'
      from c where j.id = c.id returning j.id, j.token, j.payload";
const SETTLE: &str = "
    update bare j set state = 2, lease_until = null from unnest($1::bigint[], $2::bigint[]) d(id, token)
     where j.id = d.id and j.token = d.token and j.state = 1";
const PLANS: &str = "
    set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off;
    set enable_mergejoin = off; set enable_bitmapscan = off";

pub(super) async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql(PLANS).execute(&mut conn).await?;
    Ok(conn)
}

pub(super) async fn prepared(stand: &Stand) -> anyhow::Result<(String, PgConnection)> {
    let url = stand.fresh("bench_limit").await?;
    let mut conn = connect(&url).await?;
    sqlx::raw_sql(TABLE).execute(&mut conn).await?;
    Ok((url, conn))
}

/// Leases one job, or none: how many.
pub(super) async fn lease(conn: &mut PgConnection) -> Result<usize, sqlx::Error> {
    let rows: Vec<(i64, i64, serde_json::Value)> = sqlx::query_as(LEASE).bind(1_i64).fetch_all(conn).await?;
    Ok(rows.len())
}

/// Enqueues one job.
pub(super) async fn enqueue(conn: &mut PgConnection, i: usize) -> Result<(), sqlx::Error> {
    sqlx::query(SINGLE).bind(serde_json::json!({ "i": i })).execute(conn).await?;
    Ok(())
}

async fn fill(conn: &mut PgConnection, jobs: i64) -> anyhow::Result<()> {
    let all: Vec<i64> = (0..jobs).collect();
    for chunk in all.chunks(1000) {
        let payloads: Vec<serde_json::Value> = chunk.iter().map(|i| serde_json::json!({ "i": i })).collect();
        sqlx::query(BULK).bind(payloads).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Drains `jobs` with `connections` loops of lease and settle.
///
/// # Errors
/// The database's.
pub async fn drain(stand: &Stand, jobs: i64, connections: usize, batch: u16) -> anyhow::Result<Figures> {
    let (url, mut conn) = prepared(stand).await?;
    fill(&mut conn, jobs).await?;
    sqlx::raw_sql("vacuum analyze bare").execute(&mut conn).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    let mut loops = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let mut own = connect(&url).await?;
        loops.spawn(async move {
            loop {
                let rows: Vec<(i64, i64, serde_json::Value)> =
                    sqlx::query_as(LEASE).bind(i64::from(batch)).fetch_all(&mut own).await?;
                if rows.is_empty() {
                    return Ok::<_, sqlx::Error>(());
                }
                let (ids, tokens): (Vec<i64>, Vec<i64>) = rows.iter().map(|r| (r.0, r.1)).unzip();
                sqlx::query(SETTLE).bind(ids).bind(tokens).execute(&mut own).await?;
            }
        });
    }
    while let Some(done) = loops.join_next().await {
        done??;
    }
    let figures = meter.stop(&mut conn, jobs).await?;
    let left: i64 = sqlx::query_scalar("select count(*) from bare where state <> 2").fetch_one(&mut conn).await?;
    anyhow::ensure!(left == 0, "{left} jobs of the limit's drain are not done");
    Ok(figures)
}

/// Enqueues `jobs` in calls of 1,000.
///
/// # Errors
/// The database's.
pub async fn enqueue_bulk(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    fill(&mut conn, jobs).await?;
    meter.stop(&mut conn, jobs).await
}

/// Enqueues `jobs` one at a time on one connection.
///
/// # Errors
/// The database's.
pub async fn enqueue_single(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    for i in 0..jobs {
        sqlx::query(SINGLE).bind(serde_json::json!({ "i": i })).execute(&mut conn).await?;
    }
    meter.stop(&mut conn, jobs).await
}
