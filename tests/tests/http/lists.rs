//! Every list is paged: what was cut says so, and following it leads through everything once.

use std::collections::BTreeSet;

use domain::ids::{AppName, InstanceId, JobId, MoveId, WorkerId};
use domain::queue;
use serde_json::{Value, json};
use tests::api::{Server, Told, of_app};
use tests::fleet::{APP, DOOR, Fleet, HOST, refusal, region, to};
use wire::{Code, MoveFilter, NewJob, RegionRequest};

/// Follows a list in pages of two and returns its items.
async fn walk(server: &Server, place: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    for _ in 0..100 {
        let told = Told::by(server.request("GET", &format!("{place}?limit=2{cursor}"))).await;
        assert_eq!(told.status, 200, "{place}: {told:?}");
        let page = told.json();
        let found = page["items"].as_array().expect("items").clone();
        assert!(found.len() <= 2, "{place}: {found:?}");
        items.extend(found);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
    panic!("{place} never ends");
}

async fn execute(server: &Server, sql: &'static str, id: JobId) {
    sqlx::query(sql).bind(id.0).execute(server.db.pool()).await.expect("written");
}

#[tokio::test]
async fn every_list_leads_through_all_of_its_items_once() {
    let server = Server::start().await;
    let client = server.client();
    let mut job = JobId(uuid::Uuid::nil());
    for n in 0..5 {
        client.put_region(&format!("r{n}"), &region(&format!("r{n}"))).await.expect("declared");
        let new = NewJob { queue: Some(format!("q{n}")), ..NewJob::new("test.free", json!({})) };
        job = JobId(client.enqueue(&new, None).await.expect("enqueued").value.id);
        let mut conn = server.db.pool().acquire().await.expect("a connection");
        let worker = queue::WorkerSpec { worker: WorkerId::generate(), queues: Vec::new(), kinds: Vec::new() };
        queue::register_worker(&mut conn, &worker, "host", n, "1", None, 1).await.expect("registered");
    }
    execute(
        &server,
        "insert into job_attempts (job_id, attempt, outcome, first_fence, last_fence, started_at, ended_at)
                      select $1, n, 'failed', n, n, lh_now(), lh_now() from generate_series(1, 5) n",
        job,
    )
    .await;
    execute(
        &server,
        "insert into job_steps (job_id, seq, fence, name, cursor, at)
                      select $1, n, 1, 's', '1', lh_now() from generate_series(1, 5) n",
        job,
    )
    .await;
    execute(
        &server,
        "insert into job_logs (job_id, seq, fence, at, level, line)
                      select $1, n, 1, lh_now(), 'info', 'l' from generate_series(1, 5) n",
        job,
    )
    .await;
    execute(&server, "insert into throughput (minute, queue, kind, outcome, total)
                      select date_trunc('minute', lh_now()) - n % 2 * interval '1 minute', $1::text, 'k' || n, 'completed', n
                        from generate_series(1, 5) n", job).await;
    for (place, key, expected) in [
        ("/v1/kinds".to_owned(), "kind", 4),
        ("/v1/queues".to_owned(), "name", 5),
        ("/v1/workers".to_owned(), "id", 5),
        ("/v1/regions".to_owned(), "code", 5),
        (format!("/v1/apps/{APP}/regions"), "code", 5),
        (format!("/v1/jobs/{job}/attempts"), "last_fence", 5),
        (format!("/v1/jobs/{job}/steps"), "seq", 5),
        (format!("/v1/jobs/{job}/log"), "seq", 5),
    ] {
        let items = walk(&server, &place).await;
        let keys: BTreeSet<String> = items.iter().map(|item| item[key].to_string()).collect();
        assert_eq!((items.len(), keys.len()), (expected, expected), "{place}: {items:?}");
    }
    let mine = |points: &[Value]| points.iter().filter(|p| p["queue"] == job.to_string()).count();
    assert_eq!(mine(&walk(&server, "/v1/throughput").await), 5);
    // The typed client follows by itself.
    assert_eq!(client.queues().await.expect("the queues").items.len(), 5);
    assert_eq!(client.job_steps(job.0).await.expect("the steps").items.len(), 5);
}

#[tokio::test]
async fn a_scope_narrows_the_moves_before_the_page_is_cut() {
    let fleet = Fleet::with_instance().await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    // Newer moves of somebody else would fill the first page.
    for n in 0..3 {
        let app = AppName::new("other").expect("a name");
        let instance = InstanceId::generate();
        sqlx::query(
            "insert into instances (id, app, host, kind, backing, role, region, created_at)
             values ($1, $2, $3, 'instance', 'exec', 'original', 'eu', lh_now())",
        )
        .bind(instance.0)
        .bind(app.as_str())
        .bind(format!("n{n}.other.example"))
        .execute(fleet.server.db.pool())
        .await
        .expect("a record");
        sqlx::query(
            "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at)
             values ($1, $2, $3, 'eu', 'uk', 'preparing', lh_now())",
        )
        .bind(MoveId::generate().0)
        .bind(instance.0)
        .bind(format!("n{n}.other.example"))
        .execute(fleet.server.db.pool())
        .await
        .expect("a move");
    }
    for open in [None, Some(true)] {
        let one = MoveFilter { open, limit: Some(1), ..MoveFilter::default() };
        let page = fleet.client().moves(&one).await.expect("a page");
        assert_eq!(page.items.iter().map(|m| m.host.as_str()).collect::<Vec<_>>(), [HOST], "{open:?}");
        assert_eq!(page.next_cursor, None);
        let all = fleet.server.client().moves(&MoveFilter { open, ..MoveFilter::default() }).await.expect("a page");
        assert_eq!(all.items.len(), 4, "an operator sees all");
    }
    let (_, none) = fleet.server.key(domain::authority::IdentityKind::App, &[], None, of_app("nobody")).await;
    let page = fleet.server.client_of(&none).moves(&MoveFilter::default()).await.expect("a page");
    assert_eq!((page.items.len(), page.next_cursor), (0, None));
}

#[tokio::test]
async fn a_stale_mark_changes_no_region_and_begins_no_move() {
    let fleet = Fleet::with_instance().await;
    let put = async |mark: &str, name: &str| {
        let body = RegionRequest { name: name.to_owned(), ..region("uk") };
        Told::by(fleet.server.request("PUT", "/v1/regions/uk").header("if-match", mark).json(&body)).await
    };
    let uk = async || {
        let regions = fleet.server.client().regions().await.expect("the regions").items;
        regions.into_iter().find(|region| region.code == "uk").expect("declared")
    };
    let before = uk().await;
    let serial = before.serial.expect("operators see it");
    let told = put(&format!("\"{}\"", serial + 1), "New").await;
    assert_eq!(told.problem(), (412, "stale_revision".to_owned()));
    assert_eq!(told.json()["current"]["serial"].as_i64(), Some(serial));
    assert_eq!(uk().await, before);
    let told = put(&format!("\"{serial}\""), "New").await;
    assert_eq!((told.status, told.header("etag")), (200, Some(format!("\"{}\"", serial + 1).as_str())));
    assert_eq!(put("W/\"1\"", "New").await.problem(), (400, "malformed_request".to_owned()));
    let body = region("nowhere");
    let told =
        Told::by(fleet.server.request("PUT", "/v1/regions/nowhere").header("if-match", "\"1\"").json(&body)).await;
    assert_eq!(told.problem(), (412, "stale_revision".to_owned()), "what is not there is at no serial");

    let record = fleet.client().instance(APP, HOST).await.expect("found");
    let start = async |revision: i64| {
        let request = fleet.server.request("POST", DOOR).header("if-match", format!("\"{revision}\""));
        Told::by(request.json(&to("uk"))).await
    };
    let world = fleet.dump().await;
    let told = start(record.revision + 1).await;
    assert_eq!(told.problem(), (412, "stale_revision".to_owned()));
    assert_eq!(told.json()["current"]["revision"].as_i64(), Some(record.revision));
    assert_eq!(fleet.dump().await, world);
    assert_eq!(start(record.revision).await.status, 202);
    let error = fleet.client().move_instance(APP, HOST, &to("uk")).await.expect_err("in flight");
    assert_eq!(refusal(&error), (409, Some(Code::MoveInFlight)));
}
