//! Operators' verbs: preconditions, conflicts, and the audit trail.

use serde_json::json;
use tests::api::{Server, Told};
use wire::{Code, JobState, NewJob, Reason};

fn because(text: &str) -> Reason {
    Reason { reason: Some(text.to_owned()) }
}

async fn enqueued(server: &Server) -> wire::Job {
    server.client().enqueue(&NewJob::new("test.free", json!({})), None).await.expect("enqueued").value
}

#[tokio::test]
async fn a_cancelled_job_ends_at_once_and_the_act_is_audited_with_its_reason() {
    let server = Server::start().await;
    let client = server.client();
    let job = enqueued(&server).await;
    let ended = client.cancel(job.id, &because("not needed"), Some(1)).await.expect("cancelled");
    assert_eq!((ended.state, ended.revision), (JobState::Cancelled, 2));
    assert!(ended.finished_at.is_some());
    let back = client.retry(job.id, &because("needed after all"), Some(2)).await.expect("brought back");
    assert_eq!((back.state, back.revision), (JobState::Available, 3));
    let acts = client.audit(Some("job"), Some(&job.id.to_string()), None, None).await.expect("the trail").items;
    let told: Vec<_> = acts.iter().map(|act| (act.action.as_str(), act.reason.as_deref())).collect();
    assert_eq!(told, [("job.retry", Some("needed after all")), ("job.cancel", Some("not needed"))]);
    assert!(acts.iter().all(|act| act.identity.as_deref() == Some("administrator") && act.key_id.is_some()));
}

#[tokio::test]
async fn a_stale_revision_is_refused_with_the_present_state_and_changes_nothing() {
    let server = Server::start().await;
    let client = server.client();
    let job = enqueued(&server).await;
    let error = client.cancel(job.id, &because("x"), Some(7)).await.expect_err("it is at revision 1");
    let problem = error.problem().expect("a problem");
    assert!(problem.is(Code::StaleRevision) && problem.status == 412, "{problem}");
    let current = problem.current.as_ref().expect("the present state");
    assert_eq!((current["revision"].as_i64(), current["state"].as_str()), (Some(1), Some("available")));
    assert_eq!(client.job(job.id).await.expect("found"), job);
    let acts = client.audit(Some("job"), None, None, None).await.expect("the trail").items;
    assert!(acts.is_empty(), "a refused act leaves no trace as if it had been done");
}

#[tokio::test]
async fn a_conflict_of_state_is_told_with_the_state() {
    let server = Server::start().await;
    let client = server.client();
    let job = enqueued(&server).await;
    let error = client.retry(job.id, &Reason::default(), None).await.expect_err("it is due already");
    assert!(
        error
            .problem()
            .is_some_and(|p| p.is(Code::JobConflict)
                && p.current.as_ref().is_some_and(|current| current["state"] == "available")),
        "{error}"
    );
    client.cancel(job.id, &Reason::default(), None).await.expect("cancelled");
    let error = client.cancel(job.id, &Reason::default(), None).await.expect_err("it is over");
    assert!(error.problem().is_some_and(|p| p.is(Code::JobConflict) && p.status == 409), "{error}");
    let protected = client.enqueue(&NewJob::new("test.protected", json!({})), None).await.expect("enqueued").value;
    let error = client.cancel(protected.id, &Reason::default(), None).await.expect_err("its own verb ends it");
    assert!(error.problem().is_some_and(|p| p.is(Code::JobConflict) && p.detail.contains("protected")), "{error}");
}

#[tokio::test]
async fn a_running_job_is_asked_to_end_and_says_so() {
    let server = Server::start().await;
    let job = enqueued(&server).await;
    let worker = domain::queue::WorkerSpec {
        worker: domain::ids::WorkerId::generate(),
        queues: vec!["default".parse().expect("a name")],
        kinds: vec![("test.free".parse().expect("a name"), std::time::Duration::from_secs(30))],
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    let leased = domain::queue::lease_next(&mut conn, &worker, 1, &[]).await.expect("leased");
    let told = Told::by(server.request("POST", &format!("/v1/jobs/{}/cancel", job.id))).await;
    assert_eq!(told.status, 202, "{told:?}");
    let shown = told.json();
    assert_eq!((shown["state"].as_str(), shown["cancel_requested"].as_bool()), (Some("running"), Some(true)));
    assert_eq!(shown["lease"]["fence"].as_i64(), Some(leased[0].lease.fence.0));
    assert_eq!(shown["lease"]["worker_id"].as_str(), Some(worker.worker.to_string().as_str()));
}

#[tokio::test]
async fn a_reason_is_bounded_and_its_body_is_strict() {
    let server = Server::start().await;
    let job = enqueued(&server).await;
    let place = format!("/v1/jobs/{}/cancel", job.id);
    let told = Told::by(server.request("POST", &place).json(&json!({"reason": "x".repeat(1001)}))).await;
    assert_eq!((told.problem().0, told.pointers()), (422, vec!["/reason".to_owned()]));
    let told = Told::by(server.request("POST", &place).json(&json!({"why": "x"}))).await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()));
    assert_eq!(server.client().job(job.id).await.expect("found"), job);
}

#[tokio::test]
async fn the_act_and_its_audit_stand_or_fall_together() {
    let server = Server::start().await;
    let job = enqueued(&server).await;
    sqlx::query("alter table audit_events add constraint none check (action <> 'job.cancel') not valid")
        .execute(server.db.pool())
        .await
        .expect("an audit that fails");
    let error = server.client().cancel(job.id, &because("x"), None).await.expect_err("it cannot be audited");
    assert!(error.problem().is_some_and(|p| p.is(Code::Internal)), "{error}");
    assert_eq!(server.client().job(job.id).await.expect("found"), job, "so it was not done");
}
