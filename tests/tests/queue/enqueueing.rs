use std::time::Duration;

use domain::ids::JobId;
use domain::queue::{self, Enqueued, Error, JobState, NewJob, policy};
use serde_json::json;
use sqlx::Connection as _;

use crate::support::{LEASE, Queue, completed, failed, job, kind, snoozed};

/// Q-020, I2.
#[tokio::test]
async fn a_rollback_takes_the_job_along_and_a_commit_brings_it() {
    let q = Queue::start().await;
    let (gone, kept) = (job(), job());
    let mut conn = q.conn().await;
    let mut tx = conn.begin().await.expect("a transaction");
    queue::enqueue(&mut tx, &gone).await.expect("enqueued");
    tx.rollback().await.expect("rolled back");
    let mut tx = conn.begin().await.expect("a transaction");
    queue::enqueue(&mut tx, &kept).await.expect("enqueued");
    assert!(q.lease_up_to(10).await.is_empty(), "nobody sees it before the commit");
    tx.commit().await.expect("committed");
    assert!(queue::get(&mut conn, gone.id).await.expect("answers").is_none());
    assert_eq!(q.lease().await.lease.job, kept.id);
}

/// Everything that a job may not be, and the field that is named for it.
fn refused_jobs() -> Vec<(&'static str, NewJob)> {
    let with = |change: &dyn Fn(&mut NewJob)| {
        let mut job = job();
        change(&mut job);
        job
    };
    vec![
        ("priority", with(&|j| j.priority = 101)),
        ("priority", with(&|j| j.priority = -101)),
        ("max_attempts", with(&|j| j.max_attempts = 0)),
        ("max_attempts", with(&|j| j.max_attempts = 1001)),
        ("max_interruptions", with(&|j| j.max_interruptions = 0)),
        ("tags", with(&|j| j.tags = vec!["t".to_owned(); 21])),
        ("tags", with(&|j| j.tags = vec![String::new()])),
        ("unique_key", with(&|j| j.unique_key = Some(String::new()))),
        ("unique_key", with(&|j| j.unique_key = Some("k".repeat(256)))),
        ("deadline", with(&|j| j.deadline = Some(Duration::ZERO))),
        ("args", with(&|j| j.args = json!("x".repeat(policy::MAX_PAYLOAD_BYTES)))),
    ]
}

fn refused_field(answer: Result<impl std::fmt::Debug, Error>) -> String {
    match answer {
        Err(Error::Invalid { field, .. }) => field.to_owned(),
        Err(Error::PayloadTooLarge { size_bytes, limit_bytes }) => {
            assert!(size_bytes > limit_bytes);
            "args".to_owned()
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// whatever is refused alone is refused among others, and then nothing of the call is enqueued.
#[tokio::test]
async fn one_job_and_many_obey_the_same_rules() {
    let q = Queue::start().await;
    let mut conn = q.conn().await;
    for (field, bad) in refused_jobs() {
        assert_eq!(refused_field(queue::enqueue(&mut conn, &bad).await), field);
        assert_eq!(refused_field(queue::enqueue_many(&mut conn, &[job(), bad, job()]).await), field);
    }
    assert!(q.lease_up_to(10).await.is_empty(), "nothing was enqueued");
    let whole = |mut job: NewJob| {
        job.priority = -100;
        job.tags = vec!["a".to_owned(), "b \"quoted\", é".to_owned()];
        job.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        job.deadline = None;
        job.max_attempts = 3;
        job
    };
    let (alone, among) = (whole(job()), whole(job()));
    queue::enqueue(&mut conn, &alone).await.expect("valid");
    queue::enqueue_many(&mut conn, &[job(), among.clone()]).await.expect("valid");
    for id in [alone.id, among.id] {
        let kept = q.job(id).await;
        assert_eq!((kept.priority, kept.max_attempts, kept.tags), (-100, 3, alone.tags.clone()));
    }
}

/// the largest payload that fits, and one byte more.
#[tokio::test]
async fn the_largest_payload_is_256_kib_of_json_text() {
    let q = Queue::start().await;
    let mut job = job();
    job.args = json!("x".repeat(policy::MAX_PAYLOAD_BYTES - 2));
    q.enqueue_as(job.clone()).await;
    assert_eq!(q.lease().await.args, job.args);
    job.args = json!("x".repeat(policy::MAX_PAYLOAD_BYTES - 1));
    let refused = queue::enqueue(&mut *q.conn().await, &job).await;
    assert!(
        matches!(refused, Err(Error::PayloadTooLarge { size_bytes, limit_bytes: 262_144 }) if size_bytes == 262_145),
        "{refused:?}"
    );
}

/// over all four live states the key is taken, and free when the job is over.
#[tokio::test]
async fn a_unique_key_is_taken_in_every_live_state_and_free_after() {
    let q = Queue::start().await;
    let mut later = job().unique("k");
    later.run_at = Some(q.db.clock().now().await + Duration::from_secs(60));
    let id = q.enqueue_as(later).await;
    let taken = async |state| {
        assert_eq!(q.job(id).await.state, state);
        let again = queue::enqueue(&mut *q.conn().await, &job().unique("k")).await.expect("answers");
        assert_eq!(again, Enqueued::Existing(id), "{state}");
    };
    taken(JobState::Scheduled).await;
    q.db.clock().advance(Duration::from_secs(61)).await;
    q.stage().await;
    taken(JobState::Available).await;
    let lease = q.lease().await.lease;
    taken(JobState::Running).await;
    q.settle(lease, failed()).await;
    taken(JobState::Retryable).await;

    let mut other_kind = job().unique("k");
    other_kind.kind = domain::ids::Kind::new("test.other").expect("a name");
    let other = queue::enqueue(&mut *q.conn().await, &other_kind).await.expect("answers");
    assert_eq!(other, Enqueued::Created(other_kind.id), "a key is one kind's own");

    q.db.clock().advance(Duration::from_secs(11)).await;
    q.stage().await;
    let lease = q.lease().await.lease;
    q.settle(lease, completed()).await;
    let fresh = job().unique("k");
    let made = queue::enqueue(&mut *q.conn().await, &fresh).await.expect("answers");
    assert_eq!(made, Enqueued::Created(fresh.id));
}

/// a conflict never fails a batch; each item is told what became of it.
#[tokio::test]
async fn a_unique_key_never_fails_a_batch() {
    let q = Queue::start().await;
    let held = q.enqueue_as(job().unique("held")).await;
    let batch = [job(), job().unique("held"), job().unique("new"), job().unique("new"), job()];
    let made = queue::enqueue_many(&mut *q.conn().await, &batch).await.expect("answers");
    use Enqueued::{Created, Existing};
    assert_eq!(
        made,
        [Created(batch[0].id), Existing(held), Created(batch[2].id), Existing(batch[2].id), Created(batch[4].id),]
    );
    assert_eq!(q.lease_up_to(100).await.len(), 4);
}

/// neither a rescue nor the staging of due jobs can meet a conflict, since the key is held all along.
#[tokio::test]
async fn a_unique_key_never_fails_a_rescue_or_the_staging() {
    let q = Queue::start().await;
    for key in ["a", "b"] {
        q.enqueue_as(job().unique(key)).await;
    }
    let held = q.lease_up_to(2).await;
    q.settle(held[1].lease, snoozed(5)).await;
    for key in ["a", "b"] {
        q.enqueue_as(job().unique(key)).await;
    }
    q.db.clock().advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!((q.rescue().await.again, q.stage().await), (1, 1));
    assert_eq!(q.lease_up_to(10).await.len(), 2, "no second job under either key");
}

/// two enqueues at once; the second waits for the first and is told its job, or takes the key when it rolls back.
#[tokio::test]
async fn two_enqueues_of_one_key_at_once_make_one_job() {
    let q = Queue::start().await;
    for commits in [true, false] {
        let (first, second) = (job().unique("k"), job().unique("k"));
        let mut session = q.db.session().await;
        let mut tx = session.begin().await.expect("a transaction");
        queue::enqueue(&mut tx, &first).await.expect("enqueued");
        let waiting = {
            let (pool, second) = (q.db.pool().clone(), second.clone());
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.expect("a connection");
                queue::enqueue(&mut conn, &second).await.expect("answers")
            })
        };
        q.db.until_blocked().await;
        if commits {
            tx.commit().await.expect("committed");
            assert_eq!(waiting.await.expect("done"), Enqueued::Existing(first.id));
        } else {
            tx.rollback().await.expect("rolled back");
            assert_eq!(waiting.await.expect("done"), Enqueued::Created(second.id));
        }
        for leased in q.lease_up_to(10).await {
            q.complete(leased.lease).await;
        }
    }
}

/// Whether a job is due is the database's word, whatever time its caller named, alone, in a batch or under a parent.
#[tokio::test]
async fn an_enqueue_tells_whether_its_job_is_due_at_once() {
    let q = Queue::start().await;
    let mut conn = q.conn().await;
    let now = q.db.clock().now().await;
    let at = |run_at| NewJob { run_at, ..job() };
    let jobs = [None, Some(now - Duration::from_secs(3600)), Some(now + Duration::from_secs(3600))].map(at);
    use Enqueued::{Created, Scheduled};
    let wanted = |jobs: &[NewJob; 3]| [Created(jobs[0].id), Created(jobs[1].id), Scheduled(jobs[2].id)];
    assert_eq!(queue::enqueue_many(&mut conn, &jobs).await.expect("enqueued"), wanted(&jobs));
    let parent = q.lease().await.lease;
    let alone = jobs.clone().map(|job| NewJob { id: JobId::generate(), ..job });
    let children = jobs.map(|job| NewJob { id: JobId::generate(), ..job });
    for n in 0..3 {
        let made = queue::enqueue(&mut conn, &alone[n]).await.expect("enqueued");
        assert_eq!(made, wanted(&alone)[n]);
        // The second time as when the first answer was lost.
        for _ in 0..2 {
            let made = queue::enqueue_child(&mut conn, parent, &children[n]).await.expect("enqueued");
            assert_eq!((made, made.is_new()), (wanted(&children)[n], true));
        }
    }
}

/// Whoever lost the answer counts the child, and tells idle workers of it only where they may take it.
#[tokio::test]
async fn a_repeated_child_is_due_only_while_it_waits_to_be_taken() {
    use Enqueued::{Created, Scheduled};
    let q = Queue::start().await;
    q.enqueue().await;
    let parent = q.lease().await.lease;
    let child = job();
    let repeated = async || queue::enqueue_child(&mut *q.conn().await, parent, &child).await.expect("answers");
    assert_eq!((repeated().await, repeated().await), (Created(child.id), Created(child.id)));
    let lease = q.lease().await.lease;
    assert_eq!((lease.job, repeated().await), (child.id, Scheduled(child.id)), "it runs");
    q.settle(lease, failed()).await;
    assert_eq!(q.job(child.id).await.state, JobState::Retryable);
    assert_eq!(repeated().await, Scheduled(child.id), "it waits for another attempt");
    q.db.clock().advance(Duration::from_secs(11)).await;
    assert_eq!((q.stage().await, repeated().await), (1, Created(child.id)));
    let lease = q.lease().await.lease;
    q.complete(lease).await;
    assert_eq!(repeated().await, Scheduled(child.id), "it has ended");
}

#[tokio::test]
async fn a_job_of_the_future_waits_for_its_time() {
    let q = Queue::start().await;
    let mut later = job();
    later.run_at = Some(q.db.clock().now().await + Duration::from_secs(3600));
    let id = q.enqueue_as(later).await;
    assert_eq!(q.job(id).await.state, JobState::Scheduled);
    assert_eq!((q.stage().await, q.lease_up_to(1).await.len()), (0, 0));
    q.db.clock().advance(Duration::from_secs(3601)).await;
    assert_eq!(q.stage().await, 1);
    assert_eq!(q.lease().await.lease.job, id);
}

/// A child carries its parent, and a child that exists already keeps its own.
#[tokio::test]
async fn a_child_is_enqueued_under_its_parents_lease() {
    let q = Queue::start().await;
    let parent = q.enqueue().await;
    let lease = q.lease().await.lease;
    let child = job().unique("child");
    let made = queue::enqueue_child(&mut *q.conn().await, lease, &child).await.expect("enqueued");
    assert_eq!(made, Enqueued::Created(child.id));
    let again = queue::enqueue_child(&mut *q.conn().await, lease, &job().unique("child")).await.expect("answers");
    assert_eq!(again, Enqueued::Existing(child.id));
    let of: Option<uuid::Uuid> = sqlx::query_scalar("select parent_id from jobs where id = $1")
        .bind(child.id.0)
        .fetch_one(q.db.pool())
        .await
        .expect("the child");
    assert_eq!(of, Some(parent.0));
    assert_eq!(q.job(child.id).await.kind, kind());
}

/// calls in opposite orders wait for each other's keys in one order, and none of them deadlocks.
#[tokio::test]
async fn bulk_calls_wait_for_each_others_keys_in_one_order() {
    let q = Queue::start().await;
    let mut session = q.db.session().await;
    let mut tx = session.begin().await.expect("a transaction");
    queue::enqueue(&mut tx, &job().unique("a")).await.expect("enqueued");
    let pool = q.db.pool().clone();
    let other = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::enqueue_many(&mut conn, &[job().unique("z"), job().unique("a")]).await
    });
    q.db.until_blocked().await;
    let z = queue::enqueue(&mut tx, &job().unique("z")).await.expect("the other waits for a, and holds nothing yet");
    assert!(matches!(z, Enqueued::Created(_)));
    tx.commit().await.expect("committed");
    let made = other.await.expect("done").expect("no deadlock");
    assert!(made.iter().all(|made| matches!(made, Enqueued::Existing(_))), "{made:?}");
}

/// A handler's words are bounded by name: progress beyond 16 KiB and a step beyond 64 KiB are refused and change nothing.
#[tokio::test]
async fn progress_and_steps_beyond_their_bounds_are_refused() {
    let q = Queue::start().await;
    q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut conn = q.conn().await;
    let before = q.dump().await;
    let progress = queue::Progress { message: "m".repeat(policy::MAX_PROGRESS_BYTES), ..queue::Progress::default() };
    assert_eq!(refused_field(queue::set_progress(&mut conn, lease, &progress).await), "progress");
    let large = json!("x".repeat(policy::MAX_STEP_BYTES));
    assert_eq!(refused_field(queue::append_step(&mut conn, lease, "s", &large, &json!({})).await), "step");
    assert_eq!(refused_field(queue::append_step(&mut conn, lease, "s", &json!({}), &large).await), "step");
    assert_eq!(q.dump().await, before);
    let most = queue::Progress { message: "m".repeat(policy::MAX_PROGRESS_BYTES / 2), ..queue::Progress::default() };
    queue::set_progress(&mut conn, lease, &most).await.expect("within its bound");
}

/// PostgreSQL's text has no NUL: a line that carries one is kept, and shows where it was.
#[tokio::test]
async fn a_log_line_with_a_nul_is_kept() {
    let q = Queue::start().await;
    let id = q.enqueue().await;
    let lease = q.lease().await.lease;
    let mut conn = q.conn().await;
    queue::append_log(&mut conn, lease, "info", "before\0after").await.expect("a line");
    assert_eq!(queue::logs(&mut conn, id).await.expect("the log")[0].line, "before\u{fffd}after");
}
