//! The bare limit: one table, one lease statement, one settle statement, nothing around them.

use std::sync::Arc;

use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use super::course::{Backlog, Course, measure, pin, settle_down};
use super::progress::Progress;
use crate::measure::{Figures, Meter};
use crate::stand::Stand;

/// Its database.
const DATABASE: &str = "bench_limit";

const TABLE: &str = "
    create table bare (
        id bigint generated always as identity primary key,
        queue text not null, payload jsonb not null, priority smallint not null default 0,
        state smallint not null default 0, attempts int not null default 0,
        run_at timestamptz not null default now(), token bigint, lease_until timestamptz);
    create index bare_ready on bare (queue, priority, run_at, id) where state = 0";
const BULK: &str = "insert into bare (queue, payload) select 'bench', p from unnest($1::jsonb[]) p";
const BULK_QUEUES: &str = "
    insert into bare (queue, payload)
    select ($2::text[])[1 + n % cardinality($2)], p from unnest($1::jsonb[]) with ordinality a(p, n)";
const SINGLE: &str = "insert into bare (queue, payload) values ('bench', $1)";
const LEASE: &str = "
    with c as materialized (
        select id from bare where queue = $2 and state = 0 and run_at <= now()
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
    let url = stand.fresh(DATABASE).await?;
    let mut conn = connect(&url).await?;
    sqlx::raw_sql(TABLE).execute(&mut conn).await?;
    Ok((url, conn))
}

/// Leases one job, or none: how many.
pub(super) async fn lease(conn: &mut PgConnection) -> Result<usize, sqlx::Error> {
    let rows: Vec<(i64, i64, serde_json::Value)> =
        sqlx::query_as(LEASE).bind(1_i64).bind("bench").fetch_all(conn).await?;
    Ok(rows.len())
}

/// Enqueues one job.
pub(super) async fn enqueue(conn: &mut PgConnection, i: usize) -> Result<(), sqlx::Error> {
    sqlx::query(SINGLE).bind(serde_json::json!({ "i": i })).execute(conn).await?;
    Ok(())
}

async fn fill(conn: &mut PgConnection, backlog: &Backlog) -> anyhow::Result<()> {
    let names = backlog.names();
    let all: Vec<i64> = (0..backlog.jobs).collect();
    for chunk in all.chunks(1000) {
        let payloads: Vec<serde_json::Value> = chunk.iter().map(|i| serde_json::json!({ "i": i })).collect();
        let bulk = match names[..] {
            [_] => sqlx::query(BULK).bind(payloads),
            _ => sqlx::query(BULK_QUEUES).bind(payloads).bind(&names),
        };
        bulk.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Leases and settles until `goal` are done or nothing is left, from its queues in turn.
async fn work(
    mut conn: PgConnection,
    mut queues: Vec<String>,
    batch: u16,
    progress: Arc<Progress>,
    goal: i64,
) -> anyhow::Result<()> {
    let mut turn = 0;
    while !queues.is_empty() && progress.done() < goal {
        turn %= queues.len();
        let rows: Vec<(i64, i64, serde_json::Value)> =
            sqlx::query_as(LEASE).bind(i64::from(batch)).bind(&queues[turn]).fetch_all(&mut conn).await?;
        if rows.is_empty() {
            queues.remove(turn);
            continue;
        }
        let (ids, tokens): (Vec<i64>, Vec<i64>) = rows.iter().map(|r| (r.0, r.1)).unzip();
        sqlx::query(SETTLE).bind(ids).bind(tokens).execute(&mut conn).await?;
        progress.add(rows.len());
        turn += 1;
    }
    Ok(())
}

/// Drains `course` with loops of lease and settle; the figures of each portion.
///
/// # Errors
/// The database's.
pub async fn drain(stand: &Stand, course: &Course, batch: u16) -> anyhow::Result<Vec<Figures>> {
    let (url, mut conn) = prepared(stand).await?;
    if let Some(before) = course.before() {
        drain_in(stand, &url, &mut conn, &before, batch).await?;
    }
    let figures = drain_in(stand, &url, &mut conn, course, batch).await?;
    stand.remove(DATABASE).await?;
    Ok(figures)
}

async fn drain_in(
    stand: &Stand,
    url: &str,
    conn: &mut PgConnection,
    course: &Course,
    batch: u16,
) -> anyhow::Result<Vec<Figures>> {
    fill(conn, &course.backlog).await?;
    settle_down(conn, "bare").await?;
    let _pin = if course.pinned { Some(pin(url).await?) } else { None };
    let progress = Arc::new(Progress::default());
    let mut loops = Vec::new();
    for _ in 0..course.hands {
        let own = connect(url).await?;
        loops.push(work(own, course.backlog.names(), batch, Arc::clone(&progress), course.total()));
    }
    let start = || loops.into_iter().collect::<JoinSet<_>>();
    let (figures, mut running) = measure(conn, stand.pid(), course, &progress, start).await?;
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let done: i64 = sqlx::query_scalar("select count(*) from bare where state = 2").fetch_one(conn).await?;
    let wanted = course.kept + progress.done();
    anyhow::ensure!(done == wanted, "{done} of {wanted} jobs of the limit's drain are done");
    Ok(figures)
}

/// Enqueues `jobs` in calls of 1,000.
///
/// # Errors
/// The database's.
pub async fn enqueue_bulk(stand: &Stand, jobs: i64) -> anyhow::Result<Figures> {
    let (_, mut conn) = prepared(stand).await?;
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    fill(&mut conn, &Backlog::of(jobs)).await?;
    let figures = meter.stop(&mut conn, jobs).await?;
    stand.remove(DATABASE).await?;
    Ok(figures)
}

/// Enqueues `each` jobs one at a time on each of so many connections at once.
///
/// # Errors
/// The database's.
pub async fn enqueue_single(stand: &Stand, each: i64, connections: i64) -> anyhow::Result<Figures> {
    let (url, mut conn) = prepared(stand).await?;
    let mut loops = JoinSet::new();
    let mut own = Vec::new();
    for _ in 0..connections {
        own.push(connect(&url).await?);
    }
    let meter = Meter::start(&mut conn, stand.pid()).await?;
    for mut own in own {
        loops.spawn(async move {
            for i in 0..each {
                sqlx::query(SINGLE).bind(serde_json::json!({ "i": i })).execute(&mut own).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    let figures = meter.stop(&mut conn, each * connections).await?;
    stand.remove(DATABASE).await?;
    Ok(figures)
}
