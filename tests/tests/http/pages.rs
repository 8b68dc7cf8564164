//! What a page of a list costs: the rows that it reads follow from the page, not from the table.

use domain::ids::{Kind, MoveId, RegionCode};
use domain::instances::moves;
use domain::queue::{self, Filter, JobState};
use sqlx::PgConnection;
use tests::db::Database;

/// Jobs of each table.
const ROWS: i64 = 30_000;

/// 30,000 live and as many finished jobs. Of each, the oldest, one in the middle and the newest are of the kind `rare`;
/// every ten thousandth is running or discarded.
async fn filled() -> Database {
    let db = Database::start().await;
    for statement in [
        "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts, tags, worker_id,
                           lease_expires_at, leased_at)
         select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
                case when n in (1, 15000, 30000) then 'rare' else 'often' end, 'q',
                case when n % 10000 = 0 then 'running' when n % 2 = 0 then 'available' else 'scheduled' end,
                lh_now(), lh_now(), '{}', 20, '{}',
                case when n % 10000 = 0 then gen_random_uuid() end, case when n % 10000 = 0 then lh_now() end,
                case when n % 10000 = 0 then lh_now() end
           from generate_series(1, 30000) n",
        "insert into lease_batches (worker_id, expires_at, first_fence, last_fence, jobs)
         select worker_id, lease_expires_at, fence, fence, array[id] from jobs where state = 'running'",
        "insert into jobs_finished (id, kind, queue, state, priority, run_at, created_at, finished_at, args, attempt,
                                    max_attempts, interruptions, revision, fence, protected, max_interruptions, tags)
         select ('01900000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
                case when n in (1, 15000, 30000) then 'rare' else 'often' end, 'q',
                case when n % 10000 = 0 then 'discarded' else 'completed' end, 0, lh_now(), lh_now(),
                lh_now() + n % 5 * interval '1 day', '{}', 1, 20, 0, 2, n, false, 20, '{}'
           from generate_series(1, 30000) n",
        "insert into fenced_writes (job_id, kind, queue, operation, fence_held, at)
         select ('01900000-0000-7000-8000-' || lpad(to_hex(n % 100), 12, '0'))::uuid, 'k', 'q', 'renew', n, lh_now()
           from generate_series(1, 30000) n",
        "insert into audit_events (at, action, subject_kind, subject)
         select lh_now(), 'job.cancel', case when n % 10000 = 0 then 'region' else 'job' end, 's' || n % 100
           from generate_series(1, 30000) n",
        "analyze",
    ] {
        sqlx::query(statement).execute(db.pool()).await.expect("written");
    }
    db
}

/// Rows of these tables that this connection has read and not reported yet, which it does between transactions: by whole
/// scans, and by an index.
async fn read(conn: &mut PgConnection, tables: &str) -> (i64, i64) {
    sqlx::query_as(
        "select coalesce(sum(seq_tup_read), 0)::bigint, coalesce(sum(coalesce(idx_tup_fetch, 0)), 0)::bigint
           from pg_stat_xact_user_tables
          where relname ~ $1",
    )
    .bind(tables)
    .fetch_one(conn)
    .await
    .expect("the figures")
}

fn since(before: (i64, i64), after: (i64, i64)) -> (i64, i64) {
    (after.0 - before.0, after.1 - before.1)
}

fn filter(state: Option<JobState>, kind: Option<&str>) -> Filter {
    let kind = kind.map(|kind| Kind::new(kind).expect("a kind"));
    Filter { state, kind, ..Filter::default() }
}

#[tokio::test]
async fn no_page_of_jobs_scans_a_table_and_common_pages_read_little_more_than_they_show() {
    let db = filled().await;
    let states = JobState::ALL.into_iter().map(Some).chain([None]);
    for (state, kind) in states.flat_map(|state| [None, Some("often"), Some("rare")].map(|kind| (state, kind))) {
        // From the newest job on, and from the middle of both tables.
        for before in [None, Some("01900000-0000-7000-9000-000000004000"), Some("01900000-0000-7000-8000-000000004000")]
        {
            let before = before.map(|id| id.parse().expect("an id"));
            let mut tx = db.pool().begin().await.expect("a transaction");
            let before_it = read(&mut tx, "^jobs").await;
            let page = queue::list(&mut tx, &Filter { before, ..filter(state, kind) }, 50).await.expect("a page");
            let (scanned, fetched) = since(before_it, read(&mut tx, "^jobs").await);
            let what = format!("{state:?} {kind:?} {before:?}: {} jobs, {fetched} rows", page.items.len());
            assert_eq!(scanned, 0, "{what}");
            if state.is_none() && kind != Some("rare") {
                // A page of each table, and of a narrowed list no more than the looks' ends.
                assert!(kind.is_some() || fetched <= 102 + 10, "{what}");
            }
            if matches!(state, Some(JobState::Running | JobState::Cancelled | JobState::Discarded)) {
                assert!(fetched <= 20, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn rare_jobs_are_found_across_looks_each_once() {
    let db = filled().await;
    let mut conn = db.pool().acquire().await.expect("a connection");
    for limit in [1, 2, 50] {
        let (mut ids, mut before) = (Vec::new(), None);
        for _ in 0..20 {
            let page = queue::list(&mut conn, &Filter { before, ..filter(None, Some("rare")) }, limit).await;
            let page = page.expect("a page");
            ids.extend(page.items.into_iter().map(|job| job.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!((ids.len(), before), (6, None), "pages of {limit}");
        assert!(ids.is_sorted_by(|a, b| a > b), "newest first, none twice");
    }
    let mut of_state =
        async |state| queue::list(&mut conn, &filter(Some(state), None), 50).await.expect("a page").items;
    assert_eq!(of_state(JobState::Discarded).await.len(), 3);
    assert_eq!(of_state(JobState::Running).await.len(), 3);
    assert!(of_state(JobState::Cancelled).await.is_empty());
}

#[tokio::test]
async fn no_page_of_acts_or_of_refused_writes_reads_more_than_it_shows() {
    let db = filled().await;
    let words = |text: &str| Some(text.to_owned());
    for (subject_kind, subject) in
        [(None, None), (words("region"), None), (None, words("s7")), (words("job"), words("s7"))]
    {
        for before in [None, Some(ROWS / 2)] {
            let wanted = domain::audit::Filter { subject_kind: subject_kind.clone(), subject: subject.clone(), before };
            let mut tx = db.pool().begin().await.expect("a transaction");
            let before_it = read(&mut tx, "^audit_events$").await;
            let acts = domain::audit::list(&mut tx, &wanted, 50).await.expect("the acts");
            let told = since(before_it, read(&mut tx, "^audit_events$").await);
            assert!(!acts.is_empty() && told.0 == 0 && told.1 <= 60, "{wanted:?}: {told:?}");
        }
    }
    for job in [None, Some("01900000-0000-7000-8000-000000000007".parse().expect("an id"))] {
        for before in [None, Some(ROWS / 2)] {
            let mut tx = db.pool().begin().await.expect("a transaction");
            let before_it = read(&mut tx, "^fenced_writes$").await;
            let found = queue::recent_refused(&mut tx, job, before, 50).await.expect("the evidence");
            let told = since(before_it, read(&mut tx, "^fenced_writes$").await);
            assert!(found.len() == 50 && told.0 == 0 && told.1 <= 60, "{job:?} {before:?}: {told:?}");
        }
    }
}

#[tokio::test]
async fn a_queue_that_nothing_else_knows_is_looked_for_among_the_first_20_000_that_wait() {
    let db = Database::start().await;
    sqlx::query(
        "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts)
         select gen_random_uuid(), 'a.b',
                case when n <= 10000 then 'soon' when n <= 20000 then 'late' else 'last' end, 'scheduled',
                lh_now() + n * interval '1 second', lh_now(), '{}', 1
           from generate_series(1, 20010) n",
    )
    .execute(db.pool())
    .await
    .expect("written");
    let mut conn = db.pool().acquire().await.expect("a connection");
    let mut known = async |name| queue::queue(&mut conn, name).await.expect("an answer").is_some();
    assert!(known("soon").await && known("late").await);
    assert!(!known("last").await && !known("nothing").await, "whatever waits, a name costs no more");
}

/// 30,000 instances of `big`, of which three moved, and as many of `others`, each of which did; of every hundredth of
/// these the move is in flight, and so is the oldest of `big`. `small` has one instance, which moved first of all.
async fn a_moving_fleet() -> Database {
    let db = Database::start().await;
    for statement in [
        "insert into regions (code, name, armed, data_bucket, data_bucket_region, created_at)
         select code, code, true, code, code, lh_now() from unnest(array['eu', 'uk', 'us']) code",
        "insert into instances (id, app, host, kind, backing, role, region, created_at)
         select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
                case when n = 0 then 'small' when n % 2 = 0 then 'big' else 'others' end, 'h' || n, 'instance', 'exec',
                'original', 'eu', lh_now()
           from generate_series(0, 60000) n",
        "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at, finished_at, outcome)
         select ('01900000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, i.id, i.host, 'eu',
                case when n in (3, 30001) then 'us' else 'uk' end, 'preparing', lh_now(),
                case when n % 200 <> 1 and n <> 2 then lh_now() end,
                case when n % 200 <> 1 and n <> 2 then 'aborted' end
           from generate_series(0, 60000) n
           join instances i on i.host = 'h' || n
          where n % 2 = 1 or n in (0, 2, 30000, 60000)",
        "analyze",
    ] {
        sqlx::query(statement).execute(db.pool()).await.expect("written");
    }
    db
}

fn moves_of(app: Option<&str>, open: Option<bool>) -> moves::Filter {
    moves::Filter { open, apps: app.map(|app| vec![app.to_owned()]), ..moves::Filter::default() }
}

/// Searches in an index of moves, counted as [`read`] counts.
async fn look_ups(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select idx_scan from pg_stat_xact_user_tables where relname = 'moves'")
        .fetch_one(conn)
        .await
        .expect("the figures")
}

#[tokio::test]
async fn no_page_of_moves_follows_every_instance_or_reads_a_table() {
    let db = a_moving_fleet().await;
    // Looked-up rows of moves and instances: five looks of 2,000, each with its horizon and the instances.
    let most = 5 * 3 * 2_000 + 500;
    let us = || Some(RegionCode::new("us").expect("a code"));
    for (wanted, bound) in [
        (moves_of(None, None), 160),
        (moves_of(None, Some(true)), 160),
        (moves_of(None, Some(false)), 2_200),
        (moves::Filter { region: us(), ..moves_of(None, None) }, most),
        (moves_of(Some("small"), None), 210),
        (moves_of(Some("big"), None), most),
        (moves_of(Some("big"), Some(false)), most),
        // As many as are in flight, with their instances and the horizon.
        (moves_of(Some("big"), Some(true)), 3 * 302 + 210),
        (moves_of(Some("others"), None), 2_500),
        (moves_of(Some("others"), Some(true)), 3 * 302 + 210),
    ] {
        let mut tx = db.pool().begin().await.expect("a transaction");
        let (before_it, looked_up) = (read(&mut tx, "^(moves|instances)$").await, look_ups(&mut tx).await);
        let page = moves::list(&mut tx, &wanted, 50).await.expect("a page");
        let (scanned, fetched) = since(before_it, read(&mut tx, "^(moves|instances)$").await);
        let looked_up = look_ups(&mut tx).await - looked_up;
        let what = format!("{wanted:?}: {} moves, {fetched} rows, {looked_up} look-ups", page.items.len());
        assert!(scanned == 0 && fetched <= bound && looked_up <= 250, "{scanned} scanned; {what}");
    }
}

#[tokio::test]
async fn rare_moves_are_found_across_looks_each_once() {
    let db = a_moving_fleet().await;
    let mut conn = db.pool().acquire().await.expect("a connection");
    let to_us = moves::Filter { region: Some(RegionCode::new("us").expect("a code")), ..moves_of(None, None) };
    for (wanted, expected) in [
        (moves_of(Some("big"), None), 3),
        (moves_of(Some("big"), Some(true)), 1),
        (moves_of(Some("big"), Some(false)), 2),
        (moves_of(Some("small"), None), 1),
        (moves_of(Some("nobody"), None), 0),
        (to_us, 2),
        (moves_of(None, Some(true)), 301),
    ] {
        for limit in [1, 2, 50] {
            let (mut ids, mut before): (Vec<MoveId>, _) = (Vec::new(), None);
            for _ in 0..400 {
                let page = moves::list(&mut conn, &moves::Filter { before, ..wanted.clone() }, limit).await;
                let page = page.expect("a page");
                assert!(page.items.len() <= usize::from(limit));
                ids.extend(page.items.into_iter().map(|found| found.id));
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!((ids.len(), before), (expected, None), "{wanted:?} in pages of {limit}");
            assert!(ids.is_sorted_by(|a, b| a > b), "newest first, none twice");
        }
    }
}
