//! Figures beyond the limits of counting: what is exact stays exact, and the rest says that it is a floor.

use domain::queue;
use serde_json::json;
use tests::api::{Server, Told};

async fn fill(server: &Server, sql: &'static str) {
    sqlx::query(sql).execute(server.db.pool()).await.expect("written");
}

#[tokio::test]
async fn the_oldest_due_job_is_found_behind_any_backlog() {
    let server = Server::start().await;
    fill(
        &server,
        "insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts)
         select gen_random_uuid(), 'a.b', 'big', 'available', 0, lh_now(), lh_now(), '{}', 1
           from generate_series(1, 10100)",
    )
    .await;
    // Of another kind and a later priority of the same queue: last in its index.
    fill(
        &server,
        "insert into jobs (id, kind, queue, state, priority, run_at, created_at, args, max_attempts)
         values (gen_random_uuid(), 'z.z', 'big', 'available', 9, lh_now() - interval '1 hour', lh_now(), '{}', 1),
                (gen_random_uuid(), 'z.z', 'big', 'available', 8, lh_now(), lh_now(), '{}', 1)",
    )
    .await;
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    let oldest: domain::clock::Timestamp =
        sqlx::query_scalar("select min(run_at) from jobs").fetch_one(&mut *conn).await.expect("a time");
    assert_eq!(queue::overview(&mut conn).await.expect("the overview").oldest_due_at, Some(oldest));
    let listed = queue::queues(&mut conn).await.expect("the queues").remove(0);
    assert_eq!((listed.oldest_due_at, listed.available), (Some(oldest), 10_000));
    let one = server.client().queue("big").await.expect("one queue");
    assert_eq!((one.oldest_due_at, one.available, one.waiting_at_least), (Some(oldest), 10_000, false));
}

#[tokio::test]
async fn a_queue_behind_a_long_wait_is_found_and_its_count_is_a_floor() {
    let server = Server::start().await;
    fill(
        &server,
        "insert into jobs (id, kind, queue, state, run_at, created_at, args, max_attempts)
         select gen_random_uuid(), 'a.b', case when n <= 10000 then 'soon' else 'late' end, 'scheduled',
                lh_now() + n * interval '1 second', lh_now(), '{}', 1
           from generate_series(1, 10003) n",
    )
    .await;
    let client = server.client();
    let (soon, late) = (client.queue("soon").await.expect("found"), client.queue("late").await.expect("found"));
    assert_eq!((soon.waiting, soon.waiting_at_least), (10_000, true));
    assert_eq!((late.waiting, late.waiting_at_least), (0, true), "three wait, and the answer says `at least`");
    assert_eq!(Told::by(server.request("GET", "/v1/queues/none")).await.problem(), (404, "not_found".to_owned()));
    let worker = queue::WorkerSpec {
        worker: domain::ids::WorkerId::generate(),
        queues: vec!["idle".parse().expect("a name")],
        kinds: Vec::new(),
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    queue::register_worker(&mut conn, &worker, "host", 1, "1", None, 1).await.expect("registered");
    assert!(client.queue("idle").await.expect("a worker names it").served);
}

#[tokio::test]
async fn of_too_many_counts_the_newest_minutes_are_told() {
    let server = Server::start().await;
    fill(
        &server,
        "insert into throughput (minute, queue, kind, outcome, total)
         select date_trunc('minute', lh_now()) - (20 - n % 20) * interval '1 minute', 'q', 'k' || n, 'completed', 1
           from generate_series(1, 20100) n",
    )
    .await;
    fill(
        &server,
        "insert into throughput (minute, queue, kind, outcome, total)
         values (date_trunc('minute', lh_now()), 'q', 'newest', 'completed', 1)",
    )
    .await;
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    let points = queue::throughput(&mut conn, 60).await.expect("the counts");
    assert_eq!(points.last().map(|point| point.kind.as_str()), Some("newest"));
    assert!(points.is_sorted_by_key(|point| point.minute), "oldest first");
}

#[tokio::test]
async fn a_step_beyond_its_size_is_refused_and_the_next_one_is_taken() {
    let server = Server::start().await;
    let job = server.client().enqueue(&wire::NewJob::new("test.free", json!({})), None).await.expect("enqueued").value;
    let worker = queue::WorkerSpec {
        worker: domain::ids::WorkerId::generate(),
        queues: vec!["default".parse().expect("a name")],
        kinds: vec![("test.free".parse().expect("a name"), std::time::Duration::from_secs(30))],
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    let lease = queue::lease_next(&mut conn, &worker, 1, &[]).await.expect("leased").remove(0).lease;
    let large = json!("x".repeat(40 * 1024));
    let refused = queue::append_step(&mut conn, lease, "s", &large, &large).await;
    assert!(matches!(refused, Err(queue::Error::Invalid { field: "step", .. })), "{refused:?}");
    queue::append_step(&mut conn, lease, "s", &large, &json!({})).await.expect("within its size");
    let steps = server.client().job_steps(job.id).await.expect("the steps").items;
    assert_eq!(steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [1]);
    assert_eq!(queue::newest_steps(&mut conn, domain::ids::JobId(job.id), 1).await.expect("a step").len(), 1);
}

#[tokio::test]
async fn a_day_that_cannot_leave_stands_in_the_figures_with_its_seconds() {
    let server = Server::start().await;
    let late = async || {
        let figures = Told::by(server.request("GET", "/metrics")).await.text;
        let told = figures.lines().find_map(|line| line.strip_prefix("leasehold_prune_late_seconds "));
        told.and_then(|seconds| seconds.parse::<f64>().ok()).unwrap_or_else(|| panic!("{figures}"))
    };
    assert_eq!(late().await.to_bits(), 0f64.to_bits(), "none is late");
    let set = "update prune_walk
                  set late_day = '2026-01-01', late_since = lh_now() - interval '2 hours', late_tried_at = lh_now()";
    fill(&server, set).await;
    assert!((7200.0..7300.0).contains(&late().await));
    fill(&server, "update prune_walk set late_tried_at = lh_now() - interval '25 hours'").await;
    assert_eq!(late().await.to_bits(), 0f64.to_bits(), "nobody prunes any more");
}
