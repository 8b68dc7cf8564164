//! The tests' own support: what every other test stands on.

use std::time::Duration;

use sqlx::Connection as _;
use tests::db::Database;

#[tokio::test]
async fn every_test_has_a_database_of_its_own_with_the_newest_schema() {
    let (one, two) = tokio::join!(Database::start(), Database::start());
    domain::db::check_schema(one.pool()).await.expect("one's schema is current");
    domain::db::check_schema(two.pool()).await.expect("two's schema is current");
    assert_ne!(one.url(), two.url());
}

#[tokio::test]
async fn the_database_clock_moves_for_every_session_and_runs_on() {
    let db = Database::start().await;
    let before = db.clock().now().await;
    db.clock().advance(Duration::from_secs(3600)).await;
    let other = db.pool_of(1).await;
    let mut conn = other.acquire().await.expect("a connection");
    let after = domain::clock::now(&mut conn).await.expect("the clock");
    let moved = (after - before).to_std().expect("time goes forward");
    assert!(moved >= Duration::from_secs(3600) && moved < Duration::from_secs(3660), "{moved:?}");
    assert!(domain::clock::now(&mut conn).await.expect("the clock") > after);
}

#[tokio::test]
async fn a_dropped_database_is_gone() {
    let db = Database::start().await;
    let url = db.url().to_owned();
    drop(db);
    assert!(domain::db::connect(&url, 1).await.is_err());
}

/// An empty database with the migrations up to `version`; it goes with the tests' server.
async fn of_version(version: i64) -> sqlx::PgPool {
    let name = format!("old_{}", domain::entropy::uuid_v7().simple());
    let server = tests::server::url().await;
    let mut admin = sqlx::PgConnection::connect(server).await.expect("the tests' server answers");
    let create = sqlx::AssertSqlSafe(format!("create database {name}"));
    sqlx::query(create).execute(&mut admin).await.expect("made");
    let url = server.rsplit_once('/').map(|(server, _)| format!("{server}/{name}")).expect("a URL has a path");
    let pool = domain::db::connect(&url, 4).await.expect("it answers");
    for migration in domain::db::MIGRATOR.iter().filter(|migration| migration.version <= version) {
        sqlx::raw_sql(migration.sql.clone()).execute(&pool).await.expect("an old schema");
    }
    pool
}

/// Applies one migration as the migrator does.
async fn apply(pool: &sqlx::PgPool, version: i64) -> Result<(), sqlx::Error> {
    let migration = domain::db::MIGRATOR.iter().find(|migration| migration.version == version).expect("it exists");
    let mut tx = pool.begin().await?;
    sqlx::raw_sql(migration.sql.clone()).execute(&mut *tx).await?;
    tx.commit().await
}

const ENQUEUE: &str = "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts)
                       values (gen_random_uuid(), 'k', 'q', 'available', lh_now(), lh_now(), '{}', 20)";

/// A job whose enqueue commits while migration 7 writes the table anew is in the new one, and so is what runs.
#[tokio::test]
async fn a_job_that_is_enqueued_during_the_migration_of_the_live_jobs_is_kept() {
    let pool = of_version(6).await;
    sqlx::query(
        "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts, fence, worker_id, leased_at,
                           lease_expires_at)
         values (gen_random_uuid(), 'k', 'q', 'running', lh_now(), lh_now(), '{}', 20, 7, gen_random_uuid(), lh_now(),
                 lh_now())",
    )
    .execute(&pool)
    .await
    .expect("running");
    let mut enqueuing = pool.begin().await.expect("a transaction");
    sqlx::query(ENQUEUE).execute(&mut *enqueuing).await.expect("enqueued, not yet committed");
    let migrating = tokio::spawn({
        let pool = pool.clone();
        async move { apply(&pool, 7).await }
    });
    tests::wait::until("the migration waits for the enqueue", Duration::from_secs(10), async || {
        let blocked: bool = sqlx::query_scalar(
            "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
        )
        .fetch_one(&pool)
        .await
        .expect("the database answers");
        blocked.then_some(())
    })
    .await;
    enqueuing.commit().await.expect("committed");
    migrating.await.expect("no panic").expect("migrated");
    let states: Vec<String> =
        sqlx::query_scalar("select state from jobs order by state").fetch_all(&pool).await.expect("both");
    assert_eq!(states, ["available", "running"]);
    let fences: Vec<i64> = sqlx::query_scalar("select fence from running_jobs").fetch_all(&pool).await.expect("one");
    assert_eq!(fences, [7], "its batch names it");
    sqlx::query(ENQUEUE).execute(&pool).await.expect("the new table takes jobs");
}

#[tokio::test]
async fn the_migration_of_the_live_jobs_refuses_while_a_worker_lives() {
    let pool = of_version(6).await;
    sqlx::query(
        "insert into workers (id, host, pid, version, queues, kinds, concurrency, started_at, seen_at)
         values (gen_random_uuid(), 'h', 1, '0', '{q}', '{k}', 1, lh_now(), lh_now())",
    )
    .execute(&pool)
    .await
    .expect("a worker");
    let refused = apply(&pool, 7).await.expect_err("it refuses").to_string();
    assert!(refused.contains("workers are running: stop them"), "{refused}");
    sqlx::query(ENQUEUE).execute(&pool).await.expect("the old table is as it was");
    sqlx::query("update workers set stopped_at = lh_now()").execute(&pool).await.expect("stopped");
    apply(&pool, 7).await.expect("migrated");
}
