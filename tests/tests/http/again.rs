//! Running a finished job again over HTTP.

use domain::queue::{Outcome, Settlement};
use serde_json::json;
use tests::api::{Server, Told};
use wire::{Code, JobState, NewJob, Reason};

fn because(text: &str) -> Reason {
    Reason { reason: Some(text.to_owned()) }
}

/// A job that was cancelled before it ran.
async fn ended(server: &Server, job: &NewJob) -> wire::Job {
    let made = server.client().enqueue(job, None).await.expect("enqueued").value;
    server.client().cancel(made.id, &Reason::default(), None).await.expect("cancelled")
}

async fn jobs(server: &Server) -> i64 {
    sqlx::query_scalar("select count(*) from jobs").fetch_one(server.db.pool()).await.expect("a count")
}

#[tokio::test]
async fn a_job_run_again_is_a_new_one_and_the_act_is_audited_with_its_reason() {
    let server = Server::start().await;
    let client = server.client();
    let asked = NewJob { priority: Some(5), tags: vec!["t".to_owned()], ..NewJob::new("test.free", json!({"a": 1})) };
    let old = ended(&server, &asked).await;
    let path = format!("/v1/jobs/{}/run-again", old.id);
    let request = server.request("POST", &path).header("if-match", format!("\"{}\"", old.revision));
    let told = Told::by(request.json(&because("once more"))).await;
    assert_eq!(told.status, 201, "{told:?}");
    let new: wire::Job = serde_json::from_str(&told.text).expect("a job");
    assert_eq!(told.header("location"), Some(format!("/v1/jobs/{}", new.id).as_str()));
    assert_eq!(told.header("etag"), Some("\"1\""));
    assert_eq!((new.state, new.revision, new.attempt), (JobState::Available, 1, 0));
    let shape =
        |job: &wire::Job| (job.kind.clone(), job.queue.clone(), job.args.clone(), job.priority, job.tags.clone());
    assert_eq!(shape(&new), shape(&old));
    assert_ne!(new.id, old.id);
    assert_eq!(client.job(old.id).await.expect("found"), old);
    let acts = client.audit(Some("job"), Some(&old.id.to_string()), None, None).await.expect("the trail").items;
    assert_eq!((acts[0].action.as_str(), acts[0].reason.as_deref()), ("job.run_again", Some("once more")));
    assert_eq!(acts[0].detail["new_job"], json!(new.id));
    let stale = server.request("POST", &path).header("if-match", "\"77\"");
    assert_eq!(Told::by(stale).await.problem(), (412, "stale_revision".to_owned()));
}

#[tokio::test]
async fn a_repeated_call_runs_a_job_again_once() {
    let server = Server::start().await;
    let old = ended(&server, &NewJob::new("test.free", json!({}))).await;
    let call = async || server.client().run_again(old.id, &because("x"), Some("k1"), None).await.expect("answered");
    let (first, second) = (call().await, call().await);
    assert!(first.created && !first.replayed && second.replayed);
    assert_eq!(first.value, second.value);
    assert_eq!(jobs(&server).await, 1);
    let error = server.client().run_again(old.id, &because("y"), Some("k1"), None).await.expect_err("another request");
    assert!(error.problem().is_some_and(|p| p.is(Code::IdempotencyKeyReused)), "{error}");
}

#[tokio::test]
async fn a_live_job_is_not_run_again_and_a_taken_key_is_told_with_its_holder() {
    let server = Server::start().await;
    let client = server.client();
    let unique = NewJob { unique_key: Some("k".to_owned()), ..NewJob::new("test.free", json!({})) };
    let old = ended(&server, &unique).await;
    let holder = client.enqueue(&unique, None).await.expect("enqueued").value;
    let error = client.run_again(holder.id, &Reason::default(), None, None).await.expect_err("it is live");
    let current = |error: &wire::Error| error.problem().and_then(|p| p.current.clone()).expect("the present state");
    assert!(error.problem().is_some_and(|p| p.is(Code::JobConflict) && p.status == 409), "{error}");
    assert_eq!(current(&error)["id"], json!(holder.id));
    let error = client.run_again(old.id, &Reason::default(), None, None).await.expect_err("the key is taken");
    assert!(error.problem().is_some_and(|p| p.is(Code::JobConflict) && p.detail.contains(&holder.id.to_string())));
    assert_eq!(current(&error)["id"], json!(holder.id), "the holder is shown");
    assert_eq!(jobs(&server).await, 1);
    let acts = client.audit(Some("job"), None, None, None).await.expect("the trail").items;
    assert!(acts.iter().all(|act| act.action != "job.run_again"), "a refused act leaves no trace");
}

/// What the door refuses for a new job it refuses here too: the kind may have changed since.
#[tokio::test]
async fn arguments_that_no_longer_fit_and_kinds_of_other_verbs_are_not_run_again() {
    let server = Server::start().await;
    let client = server.client();
    let unfit = ended(&server, &NewJob::new("test.greet", json!({"name": "Ada"}))).await;
    let inner = ended(&server, &NewJob::new("test.free", json!({}))).await;
    let protected = client.enqueue(&NewJob::new("test.protected", json!({})), None).await.expect("enqueued").value;
    for sql in [
        format!("update jobs_finished set args = '{{\"nom\": \"Ada\"}}' where id = '{}'", unfit.id),
        format!("update jobs_finished set kind = 'test.inner' where id = '{}'", inner.id),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(server.db.pool()).await.expect("an older version's job");
    }
    let worker = domain::queue::WorkerSpec {
        worker: domain::ids::WorkerId::generate(),
        queues: vec!["default".parse().expect("a name")],
        kinds: vec![("test.protected".parse().expect("a name"), std::time::Duration::from_secs(30))],
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    let lease = domain::queue::lease_next(&mut conn, &worker, 1, &[]).await.expect("leased")[0].lease;
    let done = Settlement { lease, outcome: Outcome::Completed { result: json!(null) } };
    domain::queue::settle(&mut conn, &[done]).await.expect("settled");
    let code = async |id| {
        let error = client.run_again(id, &Reason::default(), None, None).await.expect_err("refused");
        error.problem().expect("a problem").code.clone()
    };
    assert_eq!(code(unfit.id).await, "validation_failed");
    assert_eq!(code(inner.id).await, "kind_not_public");
    assert_eq!(code(protected.id).await, "job_conflict");
    assert_eq!(jobs(&server).await, 0);
}
