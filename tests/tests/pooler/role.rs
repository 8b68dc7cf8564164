//! Timeouts and plans that the role brings where no session can.

use std::time::Duration;

use domain::db;
use sqlx::Executor as _;
use tests::db::Database;
use tests::pgbouncer::PgBouncer;

#[tokio::test]
async fn what_the_role_lacks_is_told_with_the_statements_that_mend_it() {
    let database = Database::start().await;
    let mut admin = database.session().await;
    // A name that must be quoted; its password is hexadecimal, so it needs no care.
    let role = format!("\"Pooled-{}\"", database.url().rsplit_once('_').map(|(_, id)| id).expect("a unique name"));
    admin
        .execute(sqlx::AssertSqlSafe(format!("create role {role} login superuser password 'abc'")))
        .await
        .expect("made");
    let place = database.url().split_once('@').map(|(_, place)| place).expect("a URL");
    let url = format!("postgres://{}:abc@{place}", role.trim_matches('"'));
    let direct = database.pool();
    assert_eq!(db::role_gaps(direct).await.expect("answers"), [], "straight to PostgreSQL each session brings its own");

    let before = PgBouncer::entering(&database, &url).await;
    let gaps = db::role_gaps(&before.pool(1)).await.expect("answers");
    let names: Vec<_> = gaps.iter().map(|gap| gap.setting).collect();
    assert_eq!(names, ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "plan_cache_mode"]);
    for gap in gaps {
        admin.execute(sqlx::AssertSqlSafe(gap.statement)).await.expect("the statement is right");
    }
    // Sessions that were open keep what they had.
    drop(before);
    let after = PgBouncer::entering(&database, &url).await;
    let pool = after.pool(1);
    assert_eq!(db::role_gaps(&pool).await.expect("answers"), []);
    let mut conn = db::session(&pool).await.expect("a session");
    let limit: String =
        sqlx::query_scalar("select current_setting('lock_timeout')").fetch_one(&mut *conn).await.expect("answers");
    assert_eq!(limit, "10s");
    drop(conn);
    pool.close().await;
    drop(after);
    admin.execute(sqlx::AssertSqlSafe(format!("drop role {role}"))).await.expect("dropped");
}

/// A setting that lasts for one transaction leaves nothing behind for whoever gets the session next.
#[tokio::test]
async fn what_a_transaction_sets_stays_in_it() {
    let database = Database::start().await;
    let bouncer = PgBouncer::before(&database).await;
    let pool = bouncer.pool(1);
    let plans = async |manner| {
        let mut conn = db::session_in(&pool, manner).await.expect("a session");
        let sql = "select current_setting('enable_seqscan') || '/' || current_setting('lock_timeout')";
        let told: String = sqlx::query_scalar(sql).fetch_one(&mut *conn).await.expect("answers");
        conn.done(told).await.expect("committed")
    };
    assert_eq!(plans(db::Manner::Impatient).await, "off/200ms");
    assert_eq!(plans(db::Manner::Hot).await, "off/0");
    assert_eq!(plans(db::Manner::Plain).await, "on/0");
    let mut page = db::begin_read(&pool, Duration::from_millis(1234)).await.expect("a snapshot");
    let limit: String =
        sqlx::query_scalar("select current_setting('statement_timeout')").fetch_one(&mut *page).await.expect("answers");
    assert_eq!(limit, "1234ms");
}
