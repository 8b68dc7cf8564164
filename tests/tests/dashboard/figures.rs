//! What the first page says is what the database's rows say.

use std::time::Duration;

use domain::queue::{self, Operation};
use tests::api::Server;

use crate::support::{Visitor, between, enqueue, job, lease, number, plain, worker};

/// A figure of the first page: its value, and behind a bar the line below it.
fn figure(html: &str, name: &str) -> String {
    let cell = between(html, &format!("<dt>{name}</dt>"), "</dd></div>");
    plain(&cell.replace("<span class=\"sub\">", " | ")).trim().to_owned()
}

/// The region of the page that the script swaps by this name.
fn region<'t>(html: &'t str, name: &str) -> &'t str {
    let rest = html.split_once(&format!("data-live=\"{name}\"")).unwrap_or_else(|| panic!("no region {name}")).1;
    rest.split("data-live=").next().unwrap_or(rest)
}

#[tokio::test]
async fn an_empty_deployment_shows_the_first_steps_and_the_first_job_ends_them() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/").await;
    assert!(page.text.contains("data-live=\"first-steps\""), "{}", page.text);
    for words in [
        "Ready, and nothing has run yet",
        "leasehold worker --queues default",
        "leasehold job enqueue test.free",
        "As administrator.",
    ] {
        assert!(page.text.contains(words), "{words} stands in {}", page.text);
    }
    let spec = worker(&server, &["default"]).await;
    let page = visitor.get("/").await;
    assert!(page.text.contains("Process 4711 on host-1 serves default."), "{}", page.text);
    enqueue(&server, &[job("default")]).await;
    assert!(!visitor.get("/").await.text.contains("first-steps"));
    // A finished job keeps the page: something has run.
    let leased = lease(&server, &spec, 1).await;
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    let done = queue::Settlement {
        lease: leased[0].lease,
        outcome: queue::Outcome::Completed { result: serde_json::json!(null) },
    };
    queue::settle(&mut conn, &[done]).await.expect("settled");
    drop(conn);
    assert!(!visitor.get("/").await.text.contains("first-steps"));
}

#[tokio::test]
async fn every_figure_is_the_databases() {
    let server = Server::start().await;
    let served = worker(&server, &["busy"]).await;
    let mut later = job("busy");
    later.run_at = Some(server.db.clock().now().await + chrono::TimeDelta::hours(1));
    enqueue(&server, &[job("busy"), job("busy"), job("busy"), job("lonely"), later]).await;
    let leased = lease(&server, &served, 2).await;
    assert_eq!(leased.len(), 2);
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    let count = |outcome: &str, total| ("busy".to_owned(), "test.free".to_owned(), outcome.to_owned(), total);
    let counts = [
        count("enqueued", 1200),
        count("completed", 1100),
        count("discarded", 7),
        count("failed", 31),
        count("rescued", 2),
    ];
    queue::add_throughput(&mut conn, &counts).await.expect("counted");
    for _ in 0..3 {
        queue::note_refused(&mut conn, leased[0].lease, Some(served.worker), Operation::Step).await.expect("noted");
    }
    drop(conn);
    server.db.clock().advance(Duration::from_secs(40)).await;
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::seen_worker(&mut conn, served.worker, None).await.expect("seen");
    drop(conn);

    let page = Visitor::signed_in(&server).await.get("/").await;
    let html = page.text.as_str();
    let due = number(&server, "select count(*) from jobs where state = 'available'").await;
    let running = number(&server, "select count(*) from jobs where state = 'running'").await;
    let expired =
        number(&server, "select count(*) from jobs where state = 'running' and lease_expires_at < lh_now()").await;
    let waiting = number(&server, "select count(*) from jobs where state in ('scheduled', 'retryable')").await;
    let refused = number(&server, "select count(*) from fenced_writes where at > lh_now() - interval '1 hour'").await;
    assert_eq!((due, running, expired, waiting, refused), (2, 2, 2, 1, 3), "the rows that the test made");
    for (name, value) in [
        ("Due now", format!("{due} | in 2 queues")),
        ("Running", format!("{running} of 4 | slots of live workers")),
        ("Waiting", format!("{waiting} | for their time or their next attempt")),
        ("Expired leases", format!("{expired} | 2 rescued in 1 h")),
        ("Fenced writes", format!("{refused} refused in 1 h | late writes changed nothing")),
        ("Workers", "1 live | none silent".to_owned()),
    ] {
        assert_eq!(figure(html, name), value, "{name}");
    }
    let oldest = figure(html, "Oldest due job");
    assert!(oldest.starts_with("4") && (oldest.ends_with("in busy") || oldest.ends_with("in lonely")), "{oldest}");
    let throughput = figure(html, "Throughput");
    assert!(throughput.contains("1 200 in, 1 107 out since"), "{throughput}");

    let queues = region(html, "queues");
    for (queue, due, running, state) in [("busy", 1, 2, "open"), ("lonely", 1, 0, "unserved")] {
        let row = plain(between(queues, &format!("/queues/{queue}\">"), "</tr>"));
        let cells: Vec<&str> = row.split('\n').map(str::trim).collect();
        assert_eq!(
            (cells[1], cells[2], cells[4]),
            (state, due.to_string().as_str(), running.to_string().as_str()),
            "{row}"
        );
    }
    let kinds = plain(between(region(html, "failing"), "kind=test.free\">", "</tr>"));
    let cells: Vec<&str> = kinds.split('\n').map(str::trim).collect();
    assert_eq!(cells[1..5], ["1 100", "31", "7", "3.3 %"], "{kinds}");
    let refused_rows = region(html, "refused");
    assert_eq!(refused_rows.matches(&format!("/jobs/{}", leased[0].lease.job)).count(), 3);
    assert!(refused_rows.contains(&format!("<code>{}</code>", leased[0].lease.fence)), "{refused_rows}");
    assert!(region(html, "workers").contains("2 of 4"), "{}", region(html, "workers"));
    // 40 s without a worker: a problem; both leases expired: a warning.
    assert!(plain(html).contains("No live worker serves queue lonely: 1 job is due."), "{html}");
    assert!(html.contains("<title>(1) Overview"), "{html}");
    assert!(plain(region(html, "verdict")).contains("1 problem, 1 warning"), "{}", region(html, "verdict"));
}

#[tokio::test]
async fn a_calm_deployment_says_so() {
    let server = Server::start().await;
    let spec = worker(&server, &["busy"]).await;
    enqueue(&server, &[job("busy")]).await;
    lease(&server, &spec, 1).await;
    let page = Visitor::signed_in(&server).await.get("/").await;
    assert!(page.text.contains("All is well"), "{}", page.text);
    assert!(!page.text.contains("class=\"att\""), "nothing asks for a person");
    assert!(plain(&page.text).contains("1 job runs, 1 worker is live, and nothing waits to be run."), "{}", page.text);
}

#[tokio::test]
async fn a_silent_worker_is_told_with_what_it_holds() {
    let server = Server::start().await;
    let spec = worker(&server, &["busy"]).await;
    enqueue(&server, &[job("busy"), job("busy")]).await;
    lease(&server, &spec, 2).await;
    server.db.clock().advance(Duration::from_secs(31)).await;
    let page = Visitor::signed_in(&server).await.get("/").await;
    let text = plain(region(&page.text, "attention"));
    assert!(text.contains("on host-1 is silent"), "{text}");
    assert!(text.contains("It holds 2 jobs"), "{text}");
    assert!(text.contains("No worker is live to take them over"), "{text}");
}
