//! The queues' pages: what they say, and the forms that pause, resume and limit.

use domain::authority::{IdentityKind, Role, Scopes};
use domain::queue;
use tests::api::{Server, Told};

use crate::support::{Visitor, enqueue, hidden, job, number, plain, worker};

/// The token of the forms on a page.
async fn token(visitor: &mut Visitor<'_>, path: &str) -> String {
    hidden(&visitor.get(path).await.text, "csrf").to_owned()
}

async fn pauses(server: &Server) -> Vec<queue::Pause> {
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    queue::pauses_after(&mut conn, None, 10).await.expect("the pauses")
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed_by_forms_without_script_and_every_page_says_so() {
    let server = Server::start().await;
    worker(&server, &["mail"]).await;
    let held = job("mail");
    enqueue(&server, std::slice::from_ref(&held)).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/queues").await;
    assert!(page.text.contains("href=\"/queues/mail\"") && plain(&page.text).contains("1 queue, all of them open."));
    let csrf = token(&mut visitor, "/queues/mail").await;
    let form = [("csrf", csrf.as_str()), ("reason", "relay maintenance")];
    let told = visitor.post("/queues/mail/pause", &form).await;
    assert_eq!((told.status, told.header("location")), (303, Some("/queues/mail")), "{told:?}");
    assert_eq!(pauses(&server).await[0].reason, "relay maintenance");
    for path in ["/queues/mail", "/queues", "/"] {
        let text = plain(&visitor.get(path).await.text);
        assert!(text.contains("paused") && text.contains("administrator"), "{path}: {text}");
        assert!(text.contains("relay maintenance"), "{path}: {text}");
    }
    assert!(plain(&visitor.get("/jobs").await.text).contains("its queue is paused"));
    let of_job = plain(&visitor.get(&format!("/jobs/{}", held.id)).await.text);
    assert!(of_job.contains("The queue mail is paused by administrator since"), "{of_job}");
    let told = visitor.post("/queues/mail/resume", &form).await;
    assert_eq!((told.status, told.header("location")), (303, Some("/queues/mail")));
    assert!(pauses(&server).await.is_empty());
    let sql = "select count(*) from audit_events where subject = 'mail' and reason = 'relay maintenance' and key_id is not null";
    assert_eq!(number(&server, sql).await, 2);
}

#[tokio::test]
async fn a_kind_is_paused_and_resumed_by_forms() {
    let server = Server::start().await;
    enqueue(&server, &[job("mail")]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let csrf = token(&mut visitor, "/queues").await;
    let form = |kind| [("csrf", csrf.as_str()), ("reason", "a bad release"), ("kind", kind)];
    let told = visitor.post("/kinds/pause", &form("test.unknown")).await;
    assert_eq!(told.status, 400, "the form offers known kinds alone");
    let told = visitor.post("/kinds/pause", &form("test.free")).await;
    assert_eq!((told.status, told.header("location")), (303, Some("/queues#kinds")), "{told:?}");
    let page = plain(&visitor.get("/queues").await.text);
    assert!(page.contains("a bad release") && page.contains("Resume a kind"), "{page}");
    assert!(plain(&visitor.get("/").await.text).contains("Kind test.free is paused by administrator."));
    let told = visitor.post("/kinds/resume", &form("test.free")).await;
    assert_eq!(told.status, 303, "{told:?}");
    assert!(pauses(&server).await.is_empty());
}

#[tokio::test]
async fn limits_are_set_by_a_form_and_never_over_what_somebody_else_set_meanwhile() {
    let server = Server::start().await;
    enqueue(&server, &[job("mail")]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let csrf = token(&mut visitor, "/queues/mail").await;
    let send = async |visitor: &mut Visitor<'_>, revision, running, starts, span| -> Told {
        let form = [
            ("csrf", csrf.as_str()),
            ("reason", "the relay's quota"),
            ("revision", revision),
            ("running", running),
            ("running_per_key", ""),
            ("starts", starts),
            ("span_seconds", span),
        ];
        visitor.post("/queues/mail/limits", &form).await
    };
    let told = send(&mut visitor, "0", "8", "10", "60").await;
    assert_eq!((told.status, told.header("location")), (303, Some("/queues/mail")), "{told:?}");
    let page = visitor.get("/queues/mail").await;
    let text = plain(&page.text);
    assert!(text.contains("8 at once; 10 starts of a key in 1 min 0 s"), "{text}");
    assert!(text.contains("0 of 8") && text.contains("by administrator"), "{text}");
    assert!(hidden(&page.text, "revision") == "1" && page.text.contains("name=\"starts\" type=\"number\""));
    // The same form again: it was opened before.
    let told = send(&mut visitor, "0", "9", "", "").await;
    assert_eq!(told.status, 412);
    assert!(told.text.contains("stale_revision") && told.text.contains("Nothing was changed here"), "{}", told.text);
    for (running, starts, span) in [("0", "", ""), ("many", "", ""), ("", "10", "")] {
        assert_eq!(send(&mut visitor, "1", running, starts, span).await.status, 400, "{running} {starts} {span}");
    }
    assert_eq!(number(&server, "select running::bigint from queue_limits").await, 8);
    assert_eq!(send(&mut visitor, "1", "", "", "").await.status, 303, "empty fields are no limits");
    assert!(plain(&visitor.get("/queues/mail").await.text).contains("Limitsnone"), "none again");
}

#[tokio::test]
async fn a_form_without_its_sessions_token_a_reason_or_the_permission_changes_nothing() {
    let server = Server::start().await;
    enqueue(&server, &[job("mail")]).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let mut other = Visitor::signed_in(&server).await;
    let csrf = token(&mut other, "/queues/mail").await;
    for (path, more) in [
        ("/queues/mail/pause", vec![]),
        ("/queues/mail/resume", vec![]),
        ("/kinds/pause", vec![("kind", "test.free")]),
        ("/kinds/resume", vec![("kind", "test.free")]),
        (
            "/queues/mail/limits",
            vec![("revision", "0"), ("running", "1"), ("running_per_key", ""), ("starts", ""), ("span_seconds", "")],
        ),
    ] {
        let form = |csrf, reason| [vec![("csrf", csrf), ("reason", reason)], more.clone()].concat();
        // Another session's token is none of this one.
        for forged in ["", "x", csrf.as_str()] {
            let told = visitor.post(path, &form(forged, "x")).await;
            assert_eq!(told.status, 403, "{path}: {told:?}");
            assert!(told.text.contains("form_token_mismatch"), "{}", told.text);
        }
        for unsaid in [" ", "\u{2060}"] {
            assert_eq!(other.post(path, &form(&csrf, unsaid)).await.status, 400, "{path} without a reason");
        }
        let told = Visitor::of(&server).post(path, &form(&csrf, "x")).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/login?next=/")), "{path} by a stranger");
        let told = other.get(path).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/queues")), "{path} is no page");
    }
    let (_, key) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let mut viewer = Visitor::signed_in_as(&server, &key).await;
    for path in ["/queues", "/queues/mail"] {
        let page = viewer.get(path).await;
        assert_eq!(page.status, 200);
        assert!(!page.text.contains("name=\"reason\""), "{path} offers no form to who may not send it");
    }
    // The form of signing out carries the session's token.
    let csrf = token(&mut viewer, "/").await;
    let told = viewer.post("/queues/mail/pause", &[("csrf", &csrf), ("reason", "x")]).await;
    assert_eq!(told.status, 403);
    assert!(told.text.contains("queues.operate"), "{}", told.text);
    assert!(pauses(&server).await.is_empty());
    assert_eq!(number(&server, "select count(*) from queue_limits").await, 0);
    assert_eq!(viewer.get("/queues/a%20b").await.status, 404);
    assert_eq!(viewer.get("/queues/unheard").await.status, 200, "it can be limited before its first job");
}
