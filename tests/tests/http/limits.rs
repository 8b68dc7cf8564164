//! Limits and pauses as operators set them: preconditions, repeats, permissions, and the audit trail.

use domain::authority::{IdentityKind, Permission, Role, Scopes};
use serde_json::{Value, json};
use tests::api::{Server, Told};
use wire::{Code, KindPause, LimitsRequest, NewJob, Pause, Rate, Reason};

fn because(text: &str) -> Reason {
    Reason { reason: Some(text.to_owned()) }
}

fn running(n: i64, reason: &str) -> LimitsRequest {
    LimitsRequest { running: Some(n), reason: Some(reason.to_owned()), ..LimitsRequest::default() }
}

/// Acts on this thing, oldest first: what, why, and with what detail.
async fn acts(server: &Server, kind: &str, name: &str) -> Vec<(String, Option<String>, Value)> {
    let mut acts = server.client().audit(Some(kind), Some(name), None, None).await.expect("the trail").items;
    acts.reverse();
    assert!(acts.iter().all(|act| act.identity.as_deref() == Some("administrator") && act.key_id.is_some()));
    acts.into_iter().map(|act| (act.action, act.reason, act.detail)).collect()
}

#[tokio::test]
async fn limits_are_set_whole_told_with_who_and_why_and_audited_with_what_they_were() {
    let server = Server::start().await;
    let client = server.client();
    let none = client.limits("mail").await.expect("also of a queue that nothing names");
    assert_eq!((none.revision, none.running, none.set_at), (0, None, None));
    let rate = Rate { starts: 10, span_seconds: 60 };
    let whole =
        LimitsRequest { running_per_key: Some(2), starts_per_key: Some(rate), ..running(5, "the relay's quota") };
    let set = client.set_limits("mail", &whole, Some(0)).await.expect("set");
    assert_eq!((set.revision, set.running, set.running_per_key, set.starts_per_key), (1, Some(5), Some(2), Some(rate)));
    assert_eq!((set.set_by.as_deref(), set.reason.as_str()), (Some("administrator"), "the relay's quota"));
    assert_eq!(client.limits("mail").await.expect("told"), set);
    // What is not named is no limit any more.
    let less = client.set_limits("mail", &running(3, "less"), None).await.expect("set");
    assert_eq!((less.revision, less.running, less.running_per_key, less.starts_per_key), (2, Some(3), None, None));
    let told = acts(&server, "queue", "mail").await;
    assert_eq!(told.len(), 2, "{told:?}");
    let all = json!({"running": 5, "running_per_key": 2, "starts_per_key": {"starts": 10, "span_seconds": 60}});
    let nothing = json!({"running": null, "running_per_key": null, "starts_per_key": null});
    assert_eq!(told[0].2, json!({"before": nothing, "after": all, "revision": 1}));
    assert_eq!((told[1].0.as_str(), told[1].1.as_deref()), ("queue.limit", Some("less")));
    assert_eq!(told[1].2["before"], all);
    // A queue that only its limit names is listed with it.
    let listed = client.queues().await.expect("the queues").items;
    assert_eq!(listed.iter().map(|q| (q.name.as_str(), q.limits.running)).collect::<Vec<_>>(), [("mail", Some(3))]);
    assert_eq!(client.queue("mail").await.expect("found"), listed[0]);
}

#[tokio::test]
async fn limits_that_changed_since_they_were_read_are_not_overwritten() {
    let server = Server::start().await;
    let client = server.client();
    client.set_limits("mail", &running(5, "first"), None).await.expect("set");
    for seen in [0, 2] {
        let error = client.set_limits("mail", &running(9, "second"), Some(seen)).await.expect_err("it is at 1");
        let problem = error.problem().expect("a problem");
        assert!(problem.is(Code::StaleRevision) && problem.status == 412, "{problem}");
        let current = problem.current.as_ref().expect("the present state");
        assert_eq!((current["revision"].as_i64(), current["running"].as_i64()), (Some(1), Some(5)));
    }
    let put =
        |mark: &str| server.request("PUT", "/v1/queues/mail/limits").header("if-match", mark).json(&running(6, "seen"));
    assert_eq!(Told::by(put("1")).await.problem(), (400, "malformed_request".to_owned()));
    let told = Told::by(put("\"1\"")).await;
    assert_eq!((told.status, told.header("etag")), (200, Some("\"2\"")));
    let told = Told::by(server.request("GET", "/v1/queues/mail/limits")).await;
    assert_eq!((told.status, told.header("etag")), (200, Some("\"2\"")));
    assert_eq!(acts(&server, "queue", "mail").await.len(), 2, "a refused act leaves no trace");
}

#[tokio::test]
async fn two_who_set_the_first_limits_at_once_are_both_told_what_was_before() {
    let server = Server::start().await;
    let mut first = server.db.pool().begin().await.expect("a transaction");
    let name = "mail".parse().expect("a name");
    let limits = domain::queue::Limits { running: Some(7), ..domain::queue::Limits::default() };
    domain::queue::set_limits(&mut first, &name, &limits, None, "first", None).await.expect("set");
    let client = server.client();
    let request = running(9, "second");
    let (second, ()) = tokio::join!(client.set_limits("mail", &request, None), async {
        server.db.until_blocked().await;
        first.commit().await.expect("committed");
    });
    assert_eq!(second.expect("set over the first").revision, 2);
    assert_eq!(acts(&server, "queue", "mail").await[0].2["before"]["running"], 7);
}

#[tokio::test]
async fn what_is_out_of_bounds_or_without_a_reason_changes_nothing() {
    let server = Server::start().await;
    let place = "/v1/queues/mail/limits";
    for (body, pointer) in [
        (json!({"running": 0, "reason": "x"}), "/running"),
        (json!({"running": 10_001, "reason": "x"}), "/running"),
        (json!({"running": -1, "reason": "x"}), "/running"),
        (json!({"running": 4_000_000_000_i64, "reason": "x"}), "/running"),
        (json!({"running_per_key": 1001, "reason": "x"}), "/running_per_key"),
        (json!({"starts_per_key": {"starts": 1, "span_seconds": 86_401}, "reason": "x"}), "/starts_per_key"),
        (json!({"starts_per_key": {"starts": 0, "span_seconds": 60}, "reason": "x"}), "/starts_per_key"),
        (json!({"running": 5}), "/reason"),
        (json!({"running": 5, "reason": " "}), "/reason"),
        (json!({"running": 5, "reason": "\u{2003}\u{200b}\u{feff}"}), "/reason"),
        (json!({"running": 5, "reason": "x".repeat(1001)}), "/reason"),
    ] {
        let told = Told::by(server.request("PUT", place).json(&body)).await;
        assert_eq!((told.problem().0, told.pointers()), (422, vec![pointer.to_owned()]), "{body}: {told:?}");
    }
    for body in [json!({"runing": 5, "reason": "x"}), json!({"starts_per_key": {"starts": 1}, "reason": "x"})] {
        let told = Told::by(server.request("PUT", place).json(&body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{body}");
    }
    for place in ["/v1/queues/mail/pause", "/v1/queues/mail/resume", "/v1/kinds/test.free/pause"] {
        let told = Told::by(server.request("POST", place)).await;
        assert_eq!((told.problem().0, told.pointers()), (422, vec!["/reason".to_owned()]), "{place}");
    }
    assert_eq!(server.client().limits("mail").await.expect("told").revision, 0);
    assert!(server.client().pauses().await.expect("told").items.is_empty());
    assert!(acts(&server, "queue", "mail").await.is_empty());
    for place in ["/v1/queues/a%20b/pause", "/v1/kinds/Test/pause"] {
        let told = Told::by(server.request("POST", place).json(&because("x"))).await;
        assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{place}");
    }
    let told = Told::by(server.request("GET", "/v1/queues/a%20b/limits")).await;
    assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "a look tells the rule too");
}

#[tokio::test]
async fn a_queue_is_paused_once_and_resumed_once_however_often_it_is_asked_for() {
    let server = Server::start().await;
    let client = server.client();
    client.enqueue(&NewJob::new("test.free", json!({})), None).await.expect("enqueued");
    let pause = client.pause_queue("default", &because("a release"), None).await.expect("paused").value;
    assert_eq!((pause.scope.as_str(), pause.name.as_str()), ("queue", "default"));
    assert_eq!((pause.paused_by.as_deref(), pause.reason.as_str()), (Some("administrator"), "a release"));
    let again = client.pause_queue("default", &because("another"), None).await.expect("paused still").value;
    assert!(again.already && !pause.already, "{again:?}");
    assert_eq!(Pause { already: false, ..again }, pause, "as it was");
    let shown = client.queue("default").await.expect("found");
    assert_eq!((shown.available, shown.paused.as_ref()), (1, Some(&pause)));
    assert_eq!(client.queues().await.expect("listed").items, [shown]);
    let resumed = client.resume_queue("default", &because("done"), None).await.expect("resumed").value;
    assert_eq!(resumed.ended, Some(pause));
    let again = client.resume_queue("default", &because("done"), None).await.expect("resumed").value;
    assert_eq!(again.ended, None);
    assert_eq!(client.queue("default").await.expect("found").paused, None);
    let told = acts(&server, "queue", "default").await;
    let words: Vec<_> = told.iter().map(|(action, why, _)| (action.as_str(), why.as_deref())).collect();
    assert_eq!(words, [("queue.pause", Some("a release")), ("queue.resume", Some("done"))]);
    assert_eq!(told[1].2["before"]["reason"], "a release", "what it was before: {told:?}");
    // A queue that nothing names can be paused before its first job, and is shown.
    client.pause_queue("later", &because("not yet"), None).await.expect("paused");
    assert!(client.queue("later").await.expect("found").paused.is_some());
}

#[tokio::test]
async fn a_kind_that_nobody_knows_is_paused_only_where_that_is_said_and_resumed_always() {
    let server = Server::start().await;
    let client = server.client();
    let asked = |allow_unknown_kind| KindPause { reason: Some("a bad release".to_owned()), allow_unknown_kind };
    let error = client.pause_kind("test.fre", &asked(false), None).await.expect_err("a slip");
    let problem = error.problem().expect("a problem");
    assert!(problem.is(Code::UnknownKind) && problem.detail.contains("test.free"), "{problem}");
    let pause = client.pause_kind("test.newer", &asked(true), None).await.expect("paused").value;
    assert_eq!((pause.scope.as_str(), pause.name.as_str()), ("kind", "test.newer"));
    client.pause_kind("test.free", &asked(false), None).await.expect("paused");
    client.pause_queue("mail", &because("x"), None).await.expect("paused");
    let mut names = Vec::new();
    let mut place = "/v1/pauses?limit=1".to_owned();
    loop {
        let page = Told::by(server.request("GET", &place)).await.json();
        names.extend(page["items"].as_array().expect("items").iter().map(|item| item["name"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        place = format!("/v1/pauses?limit=1&cursor={cursor}");
    }
    assert_eq!(names, ["test.free", "test.newer", "mail"]);
    assert_eq!(client.pauses().await.expect("all").items.len(), 3);
    for kind in ["test.newer", "test.free"] {
        let resumed = client.resume_kind(kind, &because("fixed"), None).await.expect("resumed").value;
        assert!(resumed.ended.is_some(), "{kind}");
    }
    let told = acts(&server, "kind", "test.free").await;
    let words: Vec<_> = told.iter().map(|(action, _, _)| action.as_str()).collect();
    assert_eq!(words, ["kind.pause", "kind.resume"]);
    assert_eq!(client.pauses().await.expect("all").items.len(), 1);
}

#[tokio::test]
async fn a_repeated_pause_under_its_key_acts_once_and_another_request_under_it_is_refused() {
    let server = Server::start().await;
    let client = server.client();
    let first = client.pause_queue("mail", &because("x"), Some("k")).await.expect("paused");
    client.resume_queue("mail", &because("y"), None).await.expect("resumed");
    let again = client.pause_queue("mail", &because("x"), Some("k")).await.expect("told again");
    assert!(again.replayed && !first.replayed && again.value == first.value, "{again:?}");
    assert!(client.pauses().await.expect("told").items.is_empty(), "it was not paused again");
    let error = client.pause_queue("mail", &because("z"), Some("k")).await.expect_err("another request");
    assert!(error.problem().is_some_and(|problem| problem.is(Code::IdempotencyKeyReused)), "{error}");
    assert_eq!(acts(&server, "queue", "mail").await.len(), 2);
}

#[tokio::test]
async fn operators_limit_and_pause_and_viewers_see_it() {
    let server = Server::start().await;
    let (_, viewer) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let (_, operator) = server.key(IdentityKind::Person, &[Role::Operator], None, Scopes::default()).await;
    let jobs_only = [Permission::JobsOperate, Permission::QueuesRead];
    let (_, other) = server.key(IdentityKind::Person, &[Role::Admin], Some(&jobs_only), Scopes::default()).await;
    for key in [&viewer, &other] {
        let client = server.client_of(key);
        for error in [
            client.set_limits("mail", &running(1, "x"), None).await.map(drop).expect_err("may not"),
            client.pause_queue("mail", &because("x"), None).await.map(drop).expect_err("may not"),
            client.resume_queue("mail", &because("x"), None).await.map(drop).expect_err("may not"),
            client.pause_kind("test.free", &KindPause::default(), None).await.map(drop).expect_err("may not"),
            client.resume_kind("test.free", &because("x"), None).await.map(drop).expect_err("may not"),
        ] {
            let told = error.problem().is_some_and(|p| p.status == 403 && p.detail.contains("queues.operate"));
            assert!(told, "{error}");
        }
        assert_eq!(client.limits("mail").await.expect("may look").revision, 0);
        assert!(client.pauses().await.expect("may look").items.is_empty());
    }
    let client = server.client_of(&operator);
    client.set_limits("mail", &running(1, "x"), None).await.expect("an operator may");
    client.pause_queue("mail", &because("x"), None).await.expect("an operator may");
}

#[tokio::test]
async fn a_pause_and_a_limit_stand_only_with_their_audit() {
    let server = Server::start().await;
    sqlx::query("alter table audit_events add constraint none check (subject_kind <> 'queue') not valid")
        .execute(server.db.pool())
        .await
        .expect("an audit that fails");
    let client = server.client();
    let error = client.pause_queue("mail", &because("x"), None).await.expect_err("it cannot be audited");
    assert!(error.problem().is_some_and(|p| p.is(Code::Internal)), "{error}");
    client.set_limits("mail", &running(1, "x"), None).await.expect_err("it cannot be audited");
    assert!(client.pauses().await.expect("told").items.is_empty());
    assert_eq!(client.limits("mail").await.expect("told").revision, 0);
}

#[tokio::test]
async fn prometheus_learns_which_queues_are_paused_and_limited() {
    let server = Server::start().await;
    let client = server.client();
    client.pause_queue("mail", &because("x"), None).await.expect("paused");
    client.set_limits("reports", &running(8, "x"), None).await.expect("limited");
    let figures = Told::by(server.request("GET", "/metrics")).await.text;
    for line in [
        "leasehold_queue_paused{queue=\"mail\"} 1",
        "leasehold_queue_paused{queue=\"reports\"} 0",
        "leasehold_queue_running_limit{queue=\"reports\"} 8",
    ] {
        assert!(figures.lines().any(|told| told == line), "{line}: {figures}");
    }
    assert!(!figures.contains("leasehold_queue_running_limit{queue=\"mail\"}"));
}

#[tokio::test]
async fn live_pages_hear_of_pauses_and_limits() {
    let server = Server::start().await;
    let client = server.client();
    let marks = async || {
        let mut conn = server.db.pool().acquire().await.expect("a connection");
        domain::queue::change_marks(&mut conn).await.expect("the marks").jobs
    };
    let mut seen = vec![marks().await];
    client.pause_queue("mail", &because("x"), None).await.expect("paused");
    seen.push(marks().await);
    client.resume_queue("mail", &because("x"), None).await.expect("resumed");
    client.set_limits("mail", &running(1, "x"), None).await.expect("limited");
    seen.push(marks().await);
    client.set_limits("mail", &running(2, "x"), None).await.expect("limited");
    seen.push(marks().await);
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
}
