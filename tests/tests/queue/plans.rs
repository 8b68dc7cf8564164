//! Plans of the hot statements: the same for ten thousand jobs and for a million, and as they were when last looked at.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use domain::queue::{self, Limits};
use sqlx::{PgConnection, Row as _};

use crate::support::{Queue, job};

/// The statements, each with words that stand in no other.
const HOT: [(&str, &str); 8] = [
    ("lease in order", "By the row's place on its page, which is cheaper"),
    ("lease in turn", "As the short text does it; the fences rise in turn."),
    ("complete", "'completed', priority, run_at, created_at"),
    ("settle", "Somebody asked it to end, and it did not complete."),
    ("renew", "renewed = true"),
    ("rescue", "looked at again a moment"),
    ("stage", "set state = 'available', revision = j.revision + 1\n          from due d"),
    ("enqueue", "Two calls that meet in their keys wait for each other"),
];

/// What a plan is like must not hang on how many jobs wait: no statement reads a table, and the plans of few jobs
/// are those of a million.
#[tokio::test]
async fn the_plans_of_the_hot_statements_are_the_same_at_a_million_jobs_and_read_no_table() {
    let q = Queue::start().await;
    let pool = domain::db::connect_hot(q.db.url(), 1).expect("a URL of our own making");
    let mut conn = pool.acquire().await.expect("a connection");
    let statements = statements();
    fill(&mut conn, 0, 10_000).await;
    let few = plans(&mut conn, &statements).await;
    fill(&mut conn, 10_000, 1_000_000).await;
    let many = plans(&mut conn, &statements).await;
    for (name, plan) in &many {
        assert_eq!(few[name], *plan, "{name}: another plan for a million jobs");
        for table in ["jobs", "jobs_finished", "lease_batches", "slots", "workers"] {
            assert!(!plan.contains(&format!("Seq Scan on {table} ")), "{name} reads {table}:\n{plan}");
        }
    }
    // The goldens are those of one version of the server.
    let version: String = sqlx::query_scalar("show server_version_num").fetch_one(&mut *conn).await.expect("a version");
    if version.starts_with("15") {
        compare(&many);
    }
}

/// Their text as the program prepares it.
fn statements() -> BTreeMap<&'static str, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.sqlx");
    let texts: Vec<String> = std::fs::read_dir(folder)
        .expect("the checked queries")
        .map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).expect("a file"))
        .map(|text| serde_json::from_str::<serde_json::Value>(&text).expect("JSON"))
        .map(|query| query["query"].as_str().expect("its text").to_owned())
        .collect();
    HOT.into_iter()
        .map(|(name, words)| {
            let found: Vec<&String> = texts.iter().filter(|text| text.contains(words)).collect();
            assert_eq!(found.len(), 1, "{name}: these words stand in {} statements", found.len());
            (name, found[0].clone())
        })
        .collect()
}

async fn fill(conn: &mut PgConnection, from: i32, to: i32) {
    sqlx::query("set statement_timeout = 0").execute(&mut *conn).await.expect("set");
    sqlx::query(
        "insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts, concurrency_key)
         select gen_random_uuid(), 'test.work', 'q' || n % 4, 'available', 0, lh_now(), lh_now(), '{}', 5,
                case when n % 4 = 0 then 'k' || n % 1000 end
           from generate_series($1::int, $2::int - 1) as g(n)",
    )
    .bind(from)
    .bind(to)
    .execute(&mut *conn)
    .await
    .expect("jobs");
    sqlx::query("vacuum analyze jobs").execute(conn).await.expect("analyzed");
}

async fn plans(conn: &mut PgConnection, statements: &BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    let mut plans = BTreeMap::new();
    for (name, text) in statements {
        let parameters = (1..).take_while(|n| text.contains(&format!("${n}"))).count();
        let nulls = vec!["null"; parameters].join(", ");
        raw(conn, format!("prepare hot as {text}")).await;
        let explain = sqlx::AssertSqlSafe(format!("explain (costs off) execute hot({nulls})"));
        let rows = sqlx::query(explain).persistent(false).fetch_all(&mut *conn).await.expect("a plan");
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        plans.insert(*name, lines.join("\n") + "\n");
        raw(conn, "deallocate hot".to_owned()).await;
    }
    plans
}

async fn raw(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(conn).await.expect("the statement");
}

/// Compares with the plans that were looked at, or writes them where `LEASEHOLD_UPDATE` is set.
fn compare(plans: &BTreeMap<&'static str, String>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queue/plans.txt");
    let mut text = String::new();
    for (name, plan) in plans {
        write!(text, "## {name}\n{plan}\n").expect("a string grows");
    }
    if tests::server::variable("LEASEHOLD_UPDATE").is_some() {
        std::fs::write(&golden, text).expect("the golden file");
        return;
    }
    let known = std::fs::read_to_string(&golden).expect("the golden file");
    assert!(known == text, "a plan changed: run this test with LEASEHOLD_UPDATE=1 and review the difference");
}

/// A plan is kept for as long as its connection, and may be made while the table is empty.
#[tokio::test]
async fn a_plan_that_was_made_while_nothing_waited_reads_no_table_afterwards() {
    let q = Queue::start().await;
    let pool = domain::db::connect(q.db.url(), 1).await.expect("connects");
    let mut conn = pool.acquire().await.expect("a connection");
    let queue_name = job().queue;
    // As autovacuum leaves them where there was work before.
    for table in ["jobs", "lease_batches"] {
        raw(&mut conn, format!("vacuum analyze {table}")).await;
    }
    let mut read = async || {
        raw(&mut conn, "begin".to_owned()).await;
        let limits = Limits { running: Some(10), ..Limits::default() };
        queue::set_limits(&mut conn, &queue_name, &limits, None, "a test", None).await.expect("set");
        queue::overview(&mut conn).await.expect("the overview");
        queue::queues(&mut conn).await.expect("the queues");
        queue::queue(&mut conn, queue_name.as_str()).await.expect("the queue");
        let rows: i64 = sqlx::query_scalar("select seq_tup_read from pg_stat_xact_user_tables where relname = 'jobs'")
            .fetch_one(&mut *conn)
            .await
            .expect("what was read");
        raw(&mut conn, "rollback".to_owned()).await;
        rows
    };
    for _ in 0..3 {
        assert_eq!(read().await, 0);
    }
    let jobs: Vec<_> = (0..2000).map(|_| job()).collect();
    queue::enqueue_many(&mut *q.conn().await, &jobs).await.expect("valid jobs");
    assert_eq!(q.lease_up_to(100).await.len(), 100);
    assert_eq!(read().await, 0, "rows read from end to end");
}
