//! Signing in and out: who gets a session, what it opens, when it ends.

use std::time::Duration;

use domain::authority::{self, IdentityKind, Permission, Role, Scopes};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tests::api::{Server, Told, of_app};

use crate::support::{Visitor, hidden, number};

const COOKIE: &str = "lh_session";

#[tokio::test]
async fn every_page_leads_a_stranger_to_the_door_and_back() {
    let server = Server::start().await;
    let mut visitor = Visitor::of(&server);
    for (path, door) in [
        ("/", "/login?next=/"),
        ("/jobs?state=running", "/login?next=/jobs%3Fstate%3Drunning"),
        ("/jobs/019cea2d-2905-7337-8b7d-8d292f8873d4", "/login?next=/jobs/019cea2d-2905-7337-8b7d-8d292f8873d4"),
    ] {
        let told = visitor.get(path).await;
        assert_eq!((told.status, told.header("location")), (303, Some(door)));
        assert_eq!(visitor.get_live(path).await.status, 401, "a script is told, not led");
    }
    let form = visitor.get("/login?next=/jobs%3Fstate%3Drunning").await;
    assert_eq!(hidden(&form.text, "next"), "/jobs?state=running");
    let told = visitor.sign_in(server.admin.expose_secret(), "/jobs?state=running").await;
    assert_eq!((told.status, told.header("location")), (303, Some("/jobs?state=running")));
    assert_eq!(visitor.get("/jobs?state=running").await.status, 200);
}

#[tokio::test]
async fn a_key_that_does_not_work_gets_one_answer_whatever_is_wrong_with_it() {
    let server = Server::start().await;
    let (revoked, key) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    authority::revoke_key(&mut conn, revoked).await.expect("revoked");
    drop(conn);
    let admin = server.admin.expose_secret();
    let other_secret = format!("{}{}", &admin[..admin.len() - 4], "0000");
    let unknown = format!("lh_{}_{}", "0".repeat(32), "0".repeat(64));
    let mut visitor = Visitor::of(&server);
    let mut answers = Vec::new();
    for wrong in ["", "nonsense", &other_secret, &unknown, key.expose_secret()] {
        let told = visitor.sign_in(wrong, "/").await;
        assert_eq!(told.status, 401, "{told:?}");
        assert!(told.text.contains("That key does not work."), "{}", told.text);
        assert!(!visitor.cookies.contains_key(COOKIE));
        answers.push(told.text);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "nobody learns what was wrong");
    assert!(!answers[0].contains(&unknown[40..]), "what was typed is not shown again");
    assert_eq!(number(&server, "select count(*) from sessions").await, 0);
}

#[tokio::test]
async fn the_cookie_is_hidden_from_scripts_and_other_sites_and_bound_to_tls_where_there_is_some() {
    for secure in [false, true] {
        let server = Server::start_with(api::Config { secure_cookies: secure, ..Server::config() }).await;
        let mut visitor = Visitor::of(&server);
        let told = visitor.sign_in(server.admin.expose_secret(), "/").await;
        let name = if secure { "__Host-lh_session" } else { COOKIE };
        let cookies: Vec<&str> = told.headers.get_all("set-cookie").iter().filter_map(|c| c.to_str().ok()).collect();
        let cookie = cookies.iter().find(|cookie| cookie.starts_with(&format!("{name}="))).expect("a session");
        for wanted in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"] {
            assert!(cookie.contains(wanted), "{cookie}");
        }
        assert_eq!(cookie.contains("; Secure"), secure, "{cookie}");
        assert!(!cookie.contains("Domain"), "{cookie}");
        assert_eq!(visitor.get("/").await.status, 200, "the browser's own cookie is taken");
    }
}

#[tokio::test]
async fn behind_tls_a_cookie_that_a_neighbouring_host_can_plant_opens_nothing() {
    let server = Server::start_with(api::Config { secure_cookies: true, ..Server::config() }).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let token = visitor.cookies.remove("__Host-lh_session").expect("a session");
    visitor.cookies.insert(COOKIE.to_owned(), token.clone());
    assert_eq!(visitor.get("/").await.status, 303, "not a page");
    assert_eq!(visitor.get("/v1/events").await.status, 401, "not the stream");
    visitor.cookies.insert("__Host-lh_session".to_owned(), token);
    assert_eq!(visitor.get("/").await.status, 200, "the host's own is taken beside it");
    // Nor does a planted form sign anybody in.
    let mut victim = Visitor::of(&server);
    let form = "ab".repeat(32);
    victim.cookies.insert("lh_form".to_owned(), form.clone());
    let key = server.admin.expose_secret();
    let told = victim.post("/login", &[("csrf", &form), ("next", "/"), ("key", key)]).await;
    assert!(told.status == 403 && told.text.contains("form_token_mismatch"), "{told:?}");
}

#[tokio::test]
async fn only_a_hash_of_a_session_is_kept() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let secret = hex::decode(&visitor.cookies[COOKIE]).expect("hexadecimal");
    let kept: Vec<u8> =
        sqlx::query_scalar("select token_hash from sessions").fetch_one(server.db.pool()).await.expect("one session");
    assert_eq!(kept, Sha256::digest(&secret).to_vec());
    let whole: String =
        sqlx::query_scalar("select s::text from sessions s").fetch_one(server.db.pool()).await.expect("one session");
    assert!(!whole.contains(&visitor.cookies[COOKIE]), "{whole}");
}

#[tokio::test]
async fn a_forged_form_opens_no_session_and_ends_none() {
    let server = Server::start().await;
    let mut visitor = Visitor::of(&server);
    let key = server.admin.expose_secret().to_owned();
    let token = "0".repeat(64);
    // Without the form's cookie, as another site would send it.
    assert_eq!(visitor.post("/login", &[("csrf", &token), ("next", "/"), ("key", &key)]).await.status, 403);
    visitor.get("/login").await;
    assert_eq!(visitor.post("/login", &[("csrf", &token), ("next", "/"), ("key", &key)]).await.status, 403);
    assert_eq!(number(&server, "select count(*) from sessions").await, 0);
    let mut visitor = Visitor::signed_in(&server).await;
    let told = visitor.post("/logout", &[("csrf", &token)]).await;
    assert_eq!(told.status, 403);
    assert!(told.text.contains("form_token_mismatch"), "{}", told.text);
    assert_eq!(visitor.get("/").await.status, 200, "the session lives");
}

#[tokio::test]
async fn signing_out_ends_the_session_for_whoever_kept_its_cookie_and_both_acts_are_audited() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let stolen = visitor.cookies[COOKIE].clone();
    let page = visitor.get("/").await;
    let told = visitor.post("/logout", &[("csrf", hidden(&page.text, "csrf"))]).await;
    assert_eq!((told.status, told.header("location")), (303, Some("/login")));
    assert!(!visitor.cookies.contains_key(COOKIE));
    visitor.cookies.insert(COOKIE.to_owned(), stolen);
    assert_eq!(visitor.get("/").await.status, 303);
    let acts: Vec<String> = sqlx::query_scalar(
        "select a.action from audit_events a join identities i on i.id = a.identity_id
          where a.subject_kind = 'session' order by a.id",
    )
    .fetch_all(server.db.pool())
    .await
    .expect("audited");
    assert_eq!(acts, ["session.begin", "session.end"]);
}

#[tokio::test]
async fn a_sign_out_that_the_database_fails_is_not_told_as_done() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/").await;
    let csrf = hidden(&page.text, "csrf").to_owned();
    let rename = async |from: &str, to: &str| {
        let rename = format!("alter table api_keys rename column {from} to {to}");
        sqlx::query(sqlx::AssertSqlSafe(rename)).execute(server.db.pool()).await.expect("renamed");
    };
    rename("scopes", "lost").await;
    let told = visitor.post("/logout", &[("csrf", &csrf)]).await;
    assert_eq!(told.status, 500, "the session was not ended");
    rename("lost", "scopes").await;
    assert_eq!(visitor.get("/").await.status, 200, "the session lives");
    assert_eq!(visitor.post("/logout", &[("csrf", &csrf)]).await.status, 303);
    assert_eq!(number(&server, "select count(*) from sessions").await, 0);
}

#[tokio::test]
async fn a_revoked_key_ends_its_sessions_at_once() {
    let server = Server::start().await;
    let (id, key) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let mut visitor = Visitor::signed_in_as(&server, &key).await;
    let mut other = Visitor::signed_in(&server).await;
    assert_eq!(visitor.get("/").await.status, 200);
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    authority::revoke_key(&mut conn, id).await.expect("revoked");
    drop(conn);
    assert_eq!(visitor.get("/").await.status, 303);
    assert_eq!(visitor.get("/v1/events").await.status, 401);
    assert_eq!(other.get("/").await.status, 200, "another key's session lives");
}

#[tokio::test]
async fn a_session_ends_after_twelve_hours_and_the_next_sign_in_sweeps_it_away() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    server.db.clock().advance(Duration::from_secs(12 * 3600 - 60)).await;
    assert_eq!(visitor.get("/").await.status, 200);
    server.db.clock().advance(Duration::from_secs(60)).await;
    assert_eq!(visitor.get("/").await.status, 303);
    Visitor::signed_in(&server).await;
    assert_eq!(number(&server, "select count(*) from sessions").await, 1);
}

#[tokio::test]
async fn a_key_has_at_most_twenty_sessions_and_the_oldest_give_way() {
    let server = Server::start().await;
    let mut first = Visitor::signed_in(&server).await;
    let mut second = Visitor::signed_in(&server).await;
    for _ in 0..19 {
        Visitor::signed_in(&server).await;
    }
    assert_eq!(number(&server, "select count(*) from sessions").await, 20);
    assert_eq!(first.get("/").await.status, 303);
    assert_eq!(second.get("/").await.status, 200);
}

#[tokio::test]
async fn the_cookie_opens_the_stream_of_events_and_no_other_route_of_the_api() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let stream = visitor.request("GET", "/v1/events").send().await.expect("an answer");
    assert_eq!(stream.status().as_u16(), 200);
    for (method, path) in
        [("GET", "/v1/jobs"), ("GET", "/v1/workers"), ("POST", "/v1/jobs"), ("POST", "/v1/keys"), ("GET", "/v1/audit")]
    {
        let told = Told::by(visitor.request(method, path)).await;
        assert_eq!(told.problem(), (401, "unauthenticated".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_key_that_may_not_see_a_page_is_told_which_permission_it_lacks() {
    let server = Server::start().await;
    let permissions = [Permission::JobsRead, Permission::WorkersRead, Permission::InstancesRead];
    let (_, key) = server.key(IdentityKind::Person, &[Role::Admin], Some(&permissions), Scopes::default()).await;
    let mut visitor = Visitor::signed_in_as(&server, &key).await;
    for path in ["/", "/jobs", "/jobs/019cea2d-2905-7337-8b7d-8d292f8873d4"] {
        let told = visitor.get(path).await;
        assert_eq!(told.status, 403, "{path}");
        assert!(told.text.contains("queues.read") && told.text.contains("permission_denied"), "{}", told.text);
    }
}

#[tokio::test]
async fn a_key_with_scopes_is_told_what_the_pages_leave_out_for_it_and_hears_no_hints() {
    let server = Server::start().await;
    let (_, key) = server.key(IdentityKind::Person, &[Role::Admin], None, of_app("acme")).await;
    let mut visitor = Visitor::signed_in_as(&server, &key).await;
    for path in ["/", "/jobs", "/jobs/019cea2d-2905-7337-8b7d-8d292f8873d4"] {
        let told = visitor.get(path).await;
        assert_eq!(told.status, 403, "{path}");
        assert!(told.text.contains("Left out for it are the jobs, queues, workers"), "{}", told.text);
    }
    let told = visitor.get("/v1/events").await;
    assert_eq!(told.problem(), (403, "permission_denied".to_owned()));
}

#[tokio::test]
async fn the_way_back_from_the_door_leads_nowhere_else() {
    let server = Server::start().await;
    for evil in ["//evil.example", "https://evil.example", "/\\evil.example", "jobs", "/a\r\nx: y"] {
        let told = Visitor::of(&server).sign_in(server.admin.expose_secret(), evil).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/")), "{evil:?}");
    }
}
