//! Races between real processes, made at a gate inside a statement: it has read, and not yet written.

use domain::queue::{self, Cancelled, Error, JobState};
use serde_json::{Value, json};
use tests::gate::Gate;
use tests::wait::until;

use crate::support::{Bench, LEASE, PATIENCE, Puppet, rows};

/// A job whose lease has expired under a living holder, and a process whose rescue has just read that it has.
async fn rescue_at_the_gate(bench: &Bench, gate: &Gate) -> (Puppet, domain::lease::Lease, Puppet, usize) {
    let (holder, rescuer) = (bench.puppet("holder"), bench.puppet_at("rescuer", gate.url()));
    bench.enqueue("test.tick", json!({})).await;
    let lease = holder.lease_one().await;
    bench.db.clock().advance(LEASE * 2).await;
    gate.shut().await;
    let sweep = rescuer.order(&json!({"do": "sweep"}));
    gate.until_reached().await;
    (holder, lease, rescuer, sweep)
}

/// Lets the rescue go on: it must have taken nothing and noted nothing.
async fn takes_nothing(bench: &Bench, gate: &Gate, rescuer: &Puppet, sweep: usize) {
    let before = rows(&bench.db).await;
    gate.open().await;
    assert_eq!(rescuer.answer(sweep).await, json!(0));
    assert_eq!(rows(&bench.db).await, before, "not a row has changed");
}

/// Case (j): rescue reads, the job completes, rescue writes.
#[tokio::test]
async fn a_rescue_that_read_before_the_completion_takes_nothing() {
    let bench = Bench::start().await;
    let gate = Gate::build(&bench.db).await;
    let (holder, lease, rescuer, sweep) = rescue_at_the_gate(&bench, &gate).await;
    assert_eq!(holder.settle("complete").await, ["completed"]);
    takes_nothing(&bench, &gate, &rescuer, sweep).await;
    assert_eq!(bench.job(lease.job).await.state, JobState::Completed);
}

/// Case (j), where the holder renews between the rescue's look and its write: it is alive, and keeps its job.
#[tokio::test]
async fn a_rescue_that_read_before_the_renewal_takes_nothing() {
    let bench = Bench::start().await;
    let gate = Gate::build(&bench.db).await;
    let (holder, lease, rescuer, sweep) = rescue_at_the_gate(&bench, &gate).await;
    assert!(holder.write("renew").await);
    takes_nothing(&bench, &gate, &rescuer, sweep).await;
    assert_eq!(bench.lease_of(lease.job).await.map(|held| held.fence), Some(lease.fence));
    assert_eq!(holder.settle("complete").await, ["completed"]);
}

/// Case (j), where the job was handed back and leased again between the rescue's look and its write: the new lease is
/// not the one that had expired.
#[tokio::test]
async fn a_rescue_that_read_before_the_next_lease_takes_nothing() {
    let bench = Bench::start().await;
    let gate = Gate::build(&bench.db).await;
    let (holder, lease, rescuer, sweep) = rescue_at_the_gate(&bench, &gate).await;
    assert_eq!(holder.settle("snooze").await, ["available"]);
    let next = bench.puppet("next");
    let fresh = next.lease_one().await;
    assert!(fresh.job == lease.job && fresh.fence > lease.fence);
    takes_nothing(&bench, &gate, &rescuer, sweep).await;
    assert_eq!(next.settle("complete").await, ["completed"]);
}

/// Case (k): the completion has deleted the live row and has not committed; the cancel waits for it and is refused.
#[tokio::test]
async fn a_cancel_that_meets_a_completion_in_flight_is_refused() {
    let bench = Bench::start().await;
    let gate = Gate::build(&bench.db).await;
    let holder = bench.puppet_at("holder", gate.url());
    bench.enqueue("test.tick", json!({})).await;
    let lease = holder.lease_one().await;
    gate.shut().await;
    let completion = holder.order(&json!({"do": "settle", "outcome": "complete"}));
    gate.until_reached().await;
    let pool = bench.db.pool().clone();
    let cancel = tokio::spawn(async move {
        let mut conn = pool.acquire().await.expect("a connection");
        queue::cancel(&mut conn, lease.job, "too late", None).await
    });
    bench.db.until_blocked().await;
    gate.open().await;
    assert_eq!(holder.answer(completion).await, json!(["completed"]));
    let told = cancel.await.expect("the cancel ends");
    assert!(matches!(told, Err(Error::Conflict { state: JobState::Completed, .. })), "{told:?}");
}

/// Case (k), the other way: the cancel has asked and has not committed when the process completes. What was done is done,
/// whether its short way met the cancel or the longer one, which it takes around rows that others hold.
#[tokio::test]
async fn a_completion_that_meets_a_cancel_in_flight_completes() {
    let bench = Bench::start().await;
    let holder = bench.puppet("holder");
    for waits_in in ["delete from jobs", "for update"] {
        bench.enqueue("test.tick", json!({})).await;
        let lease = holder.lease_one().await;
        let mut tx = bench.db.pool().begin().await.expect("a transaction");
        assert_eq!(queue::cancel(&mut tx, lease.job, "please", None).await.expect("asked"), Cancelled::Requested);
        let completion = holder.order(&json!({"do": "settle", "outcome": "complete"}));
        until(&format!("the completion waits in {waits_in}"), PATIENCE, || async {
            let waiting: Vec<String> = sqlx::query_scalar(
                "select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_all(bench.db.pool())
            .await
            .expect("the database answers");
            waiting.iter().any(|query| query.contains(waits_in)).then_some(())
        })
        .await;
        assert_eq!(holder.answered(completion), None::<Value>, "it waits");
        tx.commit().await.expect("committed");
        assert_eq!(holder.answer(completion).await, json!(["completed"]));
        assert_eq!(bench.job(lease.job).await.state, JobState::Completed);
        holder.ask(json!({"do": "forget"})).await;
    }
}
