//! What the API tells idle workers, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ids::QueueName;
use domain::queue::hints::{CHANNEL, Hint};
use domain::queue::{self, NewJob};
use serde_json::json;
use sqlx::Connection as _;
use sqlx::postgres::PgListener;
use tests::api::Server;
use tests::db::Database;
use tests::fleet::{DOOR, Fleet, to};
use wire::{Batch, Reason};

async fn listener(db: &Database) -> PgListener {
    let mut listener = PgListener::connect(db.url()).await.expect("the database answers");
    listener.listen(CHANNEL).await.expect("it listens");
    listener
}

async fn heard(listener: &mut PgListener) -> Hint {
    let limit = Duration::from_secs(20);
    let heard = tokio::time::timeout(limit, listener.recv()).await.expect("a hint comes").expect("heard");
    Hint::read(heard.payload()).expect("a hint of ours").1
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

fn due(hint: &Hint, name: &str) -> u32 {
    hint.due_for(&[queue_name(name)])
}

/// A job of `test.free` on a queue.
fn on(queue: &str) -> wire::NewJob {
    wire::NewJob { queue: Some(queue.to_owned()), ..wire::NewJob::new("test.free", json!({})) }
}

#[tokio::test]
async fn every_verb_that_makes_a_job_due_tells_its_queue_after_the_commit() {
    let server = Server::start().await;
    let client = server.client();
    let mut listener = listener(&server.db).await;

    let made = client.enqueue(&on("one"), None).await.expect("enqueued").value;
    assert_eq!(due(&heard(&mut listener).await, "one"), 1);
    client.cancel(made.id, &Reason::default(), None).await.expect("cancelled");
    client.retry(made.id, &Reason::default(), None).await.expect("due again");
    assert_eq!(due(&heard(&mut listener).await, "one"), 1, "a cancel tells nothing, a retry does");

    client.cancel(made.id, &Reason::default(), None).await.expect("cancelled");
    client.run_again(made.id, &Reason::default(), None, None).await.expect("runs again");
    assert_eq!(due(&heard(&mut listener).await, "one"), 1);

    let jobs = ["two", "two", "three"].map(on).to_vec();
    client.enqueue_batch(&Batch { jobs }, None).await.expect("enqueued");
    let hint = heard(&mut listener).await;
    assert_eq!((due(&hint, "two"), due(&hint, "three"), due(&hint, "one")), (2, 1, 0), "one hint for all of them");
}

/// The clock is the database's: whoever names a time that is over, or that his own clock has ahead, waits for no poll.
#[tokio::test]
async fn a_job_whose_time_is_past_is_told_as_one_without_a_time() {
    let server = Server::start().await;
    let client = server.client();
    let mut listener = listener(&server.db).await;
    let past = |name| wire::NewJob { run_at: Some("2000-01-01T00:00:00Z".parse().expect("a time")), ..on(name) };
    client.enqueue(&past("alone"), None).await.expect("enqueued");
    client.enqueue_batch(&Batch { jobs: vec![past("many"), past("many")] }, None).await.expect("enqueued");
    client.enqueue(&on("last"), None).await.expect("enqueued");
    let mut told = BTreeMap::new();
    while told.get("last").is_none_or(|jobs| *jobs == 0) {
        let hint = heard(&mut listener).await;
        for name in ["alone", "many", "last"] {
            *told.entry(name).or_insert(0) += due(&hint, name);
        }
    }
    assert_eq!(told, BTreeMap::from([("alone", 1), ("many", 2), ("last", 1)]));
}

#[tokio::test]
async fn refused_repeated_and_future_jobs_are_told_to_nobody() {
    let server = Server::start().await;
    let client = server.client();
    let first = client.enqueue(&on("one"), Some("k1")).await.expect("enqueued").value;
    // A listener hears what is told from now on; the first job's hint may be on its way still.
    let mut listener = listener(&server.db).await;
    let again = client.enqueue(&on("one"), Some("k1")).await.expect("answered");
    assert!(again.replayed && again.value.id == first.id);
    let future = wire::NewJob { run_at: Some("9000-01-01T00:00:00Z".parse().expect("a time")), ..on("future") };
    client.enqueue(&future, None).await.expect("enqueued");
    let broken = wire::NewJob { priority: Some(1000), ..on("broken") };
    client.enqueue_batch(&Batch { jobs: vec![on("refused"), broken] }, None).await.expect_err("refused whole");

    client.enqueue(&on("last"), None).await.expect("enqueued");
    let mut told = BTreeMap::new();
    loop {
        let hint = heard(&mut listener).await;
        for name in ["one", "future", "refused", "broken"] {
            *told.entry(name).or_insert(0) += due(&hint, name);
        }
        if due(&hint, "last") > 0 {
            break;
        }
    }
    assert!(told["one"] <= 1, "{told:?}");
    assert_eq!((told["future"], told["refused"], told["broken"]), (0, 0, 0));
}

/// The notification stands in no transaction that enqueues: with 8,000 bytes of anything else it could fail an insert, and
/// commits of all sessions would stand in one line.
#[tokio::test]
async fn no_transaction_that_enqueues_notifies() {
    let db = Database::start().await;
    let mut listener = listener(&db).await;
    let mut conn = db.session().await;
    let spec = &tests::api::kinds()[1];
    let job = || NewJob::new(spec, json!({}));
    let mut tx = conn.begin().await.expect("a transaction");
    queue::enqueue(&mut tx, &job()).await.expect("enqueued");
    tx.rollback().await.expect("rolled back");
    queue::enqueue(&mut conn, &job()).await.expect("enqueued");
    queue::enqueue_many(&mut conn, &[job(), job()]).await.expect("enqueued");
    let triggers: i64 = sqlx::query_scalar(
        "select count(*) from pg_trigger t join pg_class c on c.oid = t.tgrelid where not t.tgisinternal
            and c.relname in ('jobs', 'jobs_finished', 'lease_batches')",
    )
    .fetch_one(&mut conn)
    .await
    .expect("the database answers");
    assert_eq!(triggers, 0);
    queue::tell(&mut conn, "1 the-end=1").await.expect("told");
    assert_eq!(due(&heard(&mut listener).await, "the-end"), 1, "the first that was told");
}

#[tokio::test]
async fn a_move_tells_the_queue_of_its_box() {
    let fleet = Fleet::with_instance().await;
    let mut listener = listener(&fleet.server.db).await;
    let told = tests::api::Told::by(fleet.server.request("POST", DOOR).json(&to("uk"))).await;
    assert_eq!(told.status, 202, "{told:?}");
    let queue: String = sqlx::query_scalar("select queue from jobs where kind = 'instance.move'")
        .fetch_one(fleet.server.db.pool())
        .await
        .expect("the move's job");
    let told = async { while due(&heard(&mut listener).await, &queue) == 0 {} };
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("it is told");
}
