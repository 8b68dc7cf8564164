//! What holds for every page: headers, caching, filters, trouble, text that is not ours.

use std::net::SocketAddr;
use std::time::Duration;

use domain::ids::JobId;
use domain::queue::{self, Operation};
use serde_json::json;
use tests::api::{Door, Server, Told};
use tests::db::Database;

use crate::support::{Visitor, between, enqueue, job, lease, plain, worker};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The ids of the jobs on a page of the list, in its order.
fn listed(html: &str) -> Vec<JobId> {
    let rows = html.split("<th role=\"rowheader\"").skip(1);
    rows.map(|row| between(row, "href=\"/jobs/", "\"").parse().expect("a job's id")).collect()
}

/// Addresses that a page links to.
fn links(html: &str) -> Vec<String> {
    let found = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    // As a browser reads them, whether a template wrote the character or the escaping of a value.
    let plain = |href: &str| href.replace("&#38;", "&").replace("&amp;", "&");
    let mut found: Vec<String> = found.filter(|href| href.starts_with('/')).map(plain).collect();
    found.sort();
    found.dedup();
    found
}

#[tokio::test]
async fn every_answer_carries_the_policy_and_no_page_breaks_it() {
    let server = Server::start().await;
    enqueue(&server, &[job("default")]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let first = listed(&visitor.get("/jobs").await.text)[0];
    for path in [
        "/",
        "/jobs",
        "/queues",
        "/queues/default",
        "/login",
        "/nowhere",
        "/jobs/nowhere",
        "/jobs?state=lost",
        &format!("/jobs/{first}"),
        "/assets/dashboard.js",
    ] {
        let told = visitor.get(path).await;
        assert_eq!(told.header("content-security-policy"), Some(POLICY), "{path}");
        assert_eq!(told.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(told.header("referrer-policy"), Some("same-origin"), "{path}");
        if path.starts_with("/assets/") {
            continue;
        }
        for inline in [" style=", "<style", " onclick=", "javascript:", "data:", "<script>", "http://", "https://"] {
            assert!(!told.text.contains(inline), "{path} has {inline}: {}", told.text);
        }
        assert!(
            told.header("cache-control").is_some_and(|c| c.contains("no-store") || c.contains("private")),
            "{path}"
        );
        for (what, times) in [("<h1>", 1), ("<main ", 1), ("<title>", 1), ("<html lang=\"en\"", 1)] {
            assert_eq!(told.text.matches(what).count(), times, "{path}: {what}");
        }
    }
    let door = visitor.post("/logout", &[("csrf", "x")]).await;
    assert_eq!(door.header("content-security-policy"), Some(POLICY));
}

#[tokio::test]
async fn every_link_of_every_page_leads_somewhere() {
    let server = Server::start().await;
    enqueue(&server, &[job("default"), job("other")]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let mut seen = std::collections::BTreeSet::new();
    let mut open = vec!["/".to_owned(), "/login".to_owned()];
    while let Some(path) = open.pop() {
        let told = visitor.get(&path).await;
        assert_eq!(told.status, 200, "{path}");
        if told.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            open.extend(links(&told.text).into_iter().filter(|href| seen.insert(href.clone())));
        }
        assert!(seen.len() < 200, "the pages of two jobs are few");
    }
    assert!(seen.iter().any(|href| href.starts_with("/jobs/")), "{seen:?}");
}

#[tokio::test]
async fn a_page_on_which_nothing_happened_is_not_sent_again_though_time_passed() {
    let server = Server::start().await;
    let mut later = job("default");
    later.run_at = Some(server.db.clock().now().await + chrono::TimeDelta::hours(1));
    enqueue(&server, &[later]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    for path in ["/", "/jobs"] {
        let page = visitor.get_live(path).await;
        let etag = page.header("etag").expect("a page has an ETag").to_owned();
        server.db.clock().advance(Duration::from_secs(1)).await;
        let again =
            |etag: &str| visitor.request("GET", path).header("x-leasehold-part", "live").header("if-none-match", etag);
        let same = Told::by(again(&etag)).await;
        assert_eq!((same.status, same.text.as_str(), same.header("etag")), (304, "", Some(etag.as_str())), "{path}");
        assert!(same.header("x-leasehold-now") > page.header("x-leasehold-now"), "the clock goes on");
        enqueue(&server, &[job("default")]).await;
        let changed = Told::by(again(&etag)).await;
        assert_eq!(changed.status, 200, "{path}");
        assert_ne!(changed.header("etag"), Some(etag.as_str()));
    }
}

#[tokio::test]
async fn the_live_part_leaves_out_what_the_script_does_not_swap() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let (whole, live) = (visitor.get("/").await, visitor.get_live("/").await);
    // The drawings of all glyphs alone are more than this.
    assert!(live.text.len() + 6_000 < whole.text.len(), "{} and {}", live.text.len(), whole.text.len());
    let regions = |text: &str| text.matches("data-live=").count();
    assert_eq!(regions(&live.text), regions(&whole.text));
}

#[tokio::test]
async fn files_are_kept_for_good_under_their_version_and_asked_for_again_without() {
    let server = Server::start().await;
    let mut visitor = Visitor::of(&server);
    let page = visitor.get("/login").await;
    let script = between(&page.text, "<script src=\"", "\"").to_owned();
    let told = visitor.get(&script).await;
    assert_eq!((told.status, told.header("content-type")), (200, Some("text/javascript; charset=utf-8")));
    assert!(told.header("cache-control").is_some_and(|c| c.contains("immutable")), "{told:?}");
    let bare = visitor.get("/assets/dashboard.css?v=old").await;
    assert_eq!((bare.status, bare.header("cache-control")), (200, Some("no-cache")));
    let etag = bare.header("etag").expect("an ETag").to_owned();
    let again = Told::by(visitor.request("GET", "/assets/dashboard.css").header("if-none-match", etag)).await;
    assert_eq!(again.status, 304);
    for outside in ["/assets/../templates/base.html", "/assets/%2e%2e%2fCargo.toml", "/assets/other.js"] {
        assert_eq!(visitor.get(outside).await.status, 404, "{outside}");
    }
}

#[tokio::test]
async fn an_address_that_does_not_exist_is_a_page_for_people_and_a_problem_for_programs() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let told = visitor.get("/nowhere").await;
    assert_eq!((told.status, told.header("content-type")), (404, Some("text/html; charset=utf-8")));
    let id = told.header("x-request-id").expect("a request has an id");
    assert!(told.text.contains(id) && told.text.contains("not_found"), "{}", told.text);
    assert_eq!(Told::by(server.bare("GET", "/nowhere")).await.problem(), (404, "not_found".to_owned()));
    assert_eq!(Told::by(visitor.request("GET", "/v1/nowhere")).await.problem(), (404, "not_found".to_owned()));
    let gone = visitor.get("/jobs/019cea2d-2905-7337-8b7d-8d292f8873d4").await;
    assert_eq!(gone.status, 404);
    assert!(gone.text.contains("There is no such job, or you may not see it."), "{}", gone.text);
}

#[tokio::test]
async fn a_database_that_is_away_is_told_and_the_page_tries_again_by_itself() {
    let db = Database::start().await;
    let mut through = reqwest::Url::parse(db.url()).expect("a URL");
    let behind: SocketAddr = format!("{}:{}", through.host_str().expect("a host"), through.port().unwrap_or(5432))
        .parse()
        .expect("an address");
    let door = Door::before(behind).await;
    through.set_port(Some(door.address().port())).expect("a port");
    let pool = domain::db::connect_lazy(through.as_str(), 4).expect("a URL");
    let server = Server::start_over(db, pool, Server::config()).await;
    let mut visitor = Visitor::signed_in(&server).await;
    door.shut();
    let told = visitor.get("/").await;
    assert_eq!((told.status, told.header("retry-after")), (503, Some("5")), "{told:?}");
    assert!(told.text.contains("The database does not answer"), "{}", told.text);
    assert!(told.text.contains("<meta http-equiv=\"refresh\" content=\"5\">"), "{}", told.text);
    assert!(visitor.cookies.contains_key("lh_session"), "nobody is signed out by it");
    door.open();
    tests::wait::until("the page is back", Duration::from_secs(20), || {
        let request = visitor.request("GET", "/");
        async { (Told::by(request).await.status == 200).then_some(()) }
    })
    .await;
}

#[tokio::test]
async fn a_chosen_theme_holds_without_script() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    assert!(!visitor.get("/").await.text.contains("data-theme"), "the system decides until somebody chooses");
    let told = visitor.post("/theme", &[("theme", "dark"), ("back", "/jobs")]).await;
    assert_eq!((told.status, told.header("location")), (303, Some("/jobs")));
    let page = visitor.get("/jobs").await;
    assert!(page.text.contains("data-theme=\"dark\"") && page.text.contains("name=\"theme\" value=\"light\""));
    assert!(visitor.get("/login").await.text.contains("data-theme=\"dark\""));
    let told = visitor.post("/theme", &[("theme", "light"), ("back", "//evil.example")]).await;
    assert_eq!(told.header("location"), Some("/"));
}

#[tokio::test]
async fn the_list_pages_by_key_and_filters_by_its_address() {
    let server = Server::start().await;
    let mut jobs: Vec<_> = (0..30).map(|_| job("many")).collect();
    jobs.push(job("few"));
    jobs[0].tags = vec!["a&b".to_owned()];
    enqueue(&server, &jobs).await;
    let mut wanted: Vec<JobId> = jobs[..30].iter().map(|job| job.id).collect();
    wanted.sort();
    wanted.reverse();
    let mut visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/jobs?queue=many").await.text;
    assert_eq!(listed(&first), wanted[..25]);
    let older = between(&first, "<a class=\"btn slim\" href=\"", "\" rel=\"next\"").replace("&#38;", "&");
    // What comes meanwhile moves no row from one page to another.
    enqueue(&server, &[job("many")]).await;
    let second = visitor.get(&older).await.text;
    assert_eq!(listed(&second), wanted[25..]);
    assert!(!second.contains("rel=\"next\"") && second.contains(">Newest</a>"), "{second}");
    assert_eq!(listed(&visitor.get("/jobs?tag=a%26b").await.text), [jobs[0].id]);
    assert_eq!(listed(&visitor.get("/jobs?kind=test.free&queue=few&state=available&tag=").await.text), [jobs[30].id]);
    let none = visitor.get("/jobs?state=completed").await.text;
    assert!(none.contains("No job matches."), "{none}");
}

#[tokio::test]
async fn a_page_refuses_what_its_address_asks_for_and_it_does_not_know() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    for bad in [
        "/jobs?state=lost",
        "/jobs?kind=A%20B",
        "/jobs?before=x",
        "/jobs?cursor=zz",
        "/jobs?state=running&state=running",
        "/queues?cursor=zz",
        "/queues?after=a%20b",
        "/queues?after=a&after=b",
        "/instances?after=a%20b",
        "/instances?region=eu",
        "/login?next=a&next=b",
    ] {
        let told = visitor.get(bad).await;
        assert_eq!(told.status, 400, "{bad}");
        assert!(told.text.contains("malformed_request"), "{}", told.text);
    }
    let told = plain(&visitor.get("/queues?cursor=zz").await.text);
    let said = ["that this page does not know: ", "`cursor`", "`after`"];
    assert!(said.iter().all(|words| told.contains(words)), "{told}");
    assert_eq!(visitor.get("/queues?after=a").await.status, 200, "a name that nothing has is a place all the same");
}

#[tokio::test]
async fn the_field_in_the_top_bar_leads_to_a_job_a_kind_or_a_queue() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let id = JobId::generate();
    for (text, there) in [
        (id.to_string(), format!("/jobs/{id}")),
        ("test.free".to_owned(), "/jobs?kind=test.free".to_owned()),
        ("node.eu-1".to_owned(), "/jobs?queue=node.eu-1".to_owned()),
    ] {
        let told = visitor.get(&format!("/jobs?q={text}")).await;
        assert_eq!((told.status, told.header("location")), (303, Some(there.as_str())));
    }
    assert_eq!(visitor.get("/jobs?q=a%20b").await.status, 400);
}

#[tokio::test]
async fn one_job_tells_its_leases_its_refused_writes_and_why_it_does_not_run() {
    let server = Server::start().await;
    let waiting = job("lonely");
    enqueue(&server, &[job("busy"), waiting.clone()]).await;
    let spec = worker(&server, &["busy"]).await;
    let leased = lease(&server, &spec, 1).await.remove(0);
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::append_step(&mut conn, leased.lease, "round 3", &json!(3), &json!({"copied": 12})).await.expect("recorded");
    let failed = queue::Settlement {
        lease: leased.lease,
        outcome: queue::Outcome::Failed {
            error: json!({"code": "s3.slow_down", "message": "503 from the target"}),
            after: Duration::from_secs(60),
        },
    };
    queue::settle(&mut conn, &[failed]).await.expect("settled");
    queue::note_refused(&mut conn, leased.lease, Some(spec.worker), Operation::Renew).await.expect("noted");
    drop(conn);
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/jobs/{}", leased.lease.job)).await.text;
    let text = plain(&page);
    for words in [
        "retryable",
        "Attempt 1 failed 503 from the target",
        "1 step",
        "round 3",
        "Refused: renew",
        "Nothing was changed",
        "Why is it not running?",
        "Attempt 1 of 20 failed: 503 from the target. It is tried again at",
        &format!("fence {}", leased.lease.fence),
    ] {
        assert!(text.contains(words), "{words} stands in {text}");
    }
    let page = plain(&visitor.get(&format!("/jobs/{}", waiting.id)).await.text);
    assert!(page.contains("No live worker serves test.free on queue lonely."), "{page}");
}

#[tokio::test]
async fn a_form_that_is_none_is_told_as_a_page_and_a_page_that_is_none_leads_home() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    for (path, form) in [("/login", vec![("csrf", "x")]), ("/logout", vec![]), ("/theme", vec![("theme", "pink")])] {
        let told = visitor.post(path, &form).await;
        assert_eq!(told.status, 400, "{path}");
        assert!(told.text.contains("malformed_request"), "{path}: {}", told.text);
        assert_eq!(told.header("content-security-policy"), Some(POLICY));
    }
    for path in ["/logout", "/theme"] {
        let told = visitor.get(path).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/")), "{path}");
    }
}

#[tokio::test]
async fn a_key_that_asks_too_often_is_told_on_pages_too() {
    let config = api::Config { rate_per_second: 1, rate_burst: 3, ..api::Config::default() };
    let server = Server::start_with(config).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let mut told = visitor.get("/").await;
    for _ in 0..10 {
        if told.status == 429 {
            break;
        }
        told = visitor.get("/").await;
    }
    assert_eq!((told.status, told.header("retry-after")), (429, Some("1")));
    assert!(told.text.contains("rate_limited"), "{}", told.text);
}

#[tokio::test]
async fn text_that_is_not_ours_is_never_markup() {
    let server = Server::start().await;
    let evil = "<script>alert('x')</script>\"'&";
    let mut bad = job("default");
    bad.tags = vec![evil.to_owned()];
    bad.unique_key = Some(evil.to_owned());
    bad.args = json!({ "text": evil });
    enqueue(&server, std::slice::from_ref(&bad)).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let pages = [
        format!("/jobs/{}", bad.id),
        "/jobs?tag=%3Cscript%3Ealert('x')%3C/script%3E%22'%26".to_owned(),
        "/jobs?state=%3Cscript%3E".to_owned(),
        "/login?next=/%22%3E%3Cscript%3E".to_owned(),
        "/%3Cscript%3E".to_owned(),
    ];
    for path in pages {
        let told = visitor.get(&path).await;
        assert!(!told.text.contains("<script>"), "{path}: {}", told.text);
    }
    assert_eq!(listed(&visitor.get("/jobs?tag=%3Cscript%3Ealert('x')%3C/script%3E%22'%26").await.text), [bad.id]);
}
