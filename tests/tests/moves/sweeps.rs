//! What a box finds again after a crash: moves without a job, records without a route.

use std::sync::Arc;
use std::time::Duration;

use domain::instances::moves::MoveState;
use domain::nodes;
use domain::queue;
use domain::queue::hints::{CHANNEL, Hint};
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;
use workers::node::{Kept, keep, sweep};
use workers::seam::PgLeaseStore;

use crate::support::{Fleet, HOST};

#[tokio::test]
async fn an_open_move_without_a_job_gets_one_again_and_only_one() {
    // A protected job is never discarded by the queue; whoever deletes its row by hand loses nothing.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let swept = async || sweep(fleet.db.pool(), fleet.eu.id()).await.expect("an answer");
    let nothing = Kept { known: true, ..Kept::default() };
    assert_eq!(swept().await, nothing, "nothing is missing");
    fleet.sql("delete from jobs where kind = 'instance.move'").await;
    assert_eq!(fleet.read_move(id).await.job, None);
    let kept = swept().await;
    assert_eq!((kept.moves, kept.landings, kept.due.due_for(&fleet.eu.queues())), (1, 0, 1), "{kept:?}");
    assert_eq!(swept().await, nothing, "once");
    fleet.run(&fleet.eu).await;
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'; delete from jobs").await;
    assert_eq!(swept().await.moves, 0, "a move that is over needs none");
}

#[tokio::test]
async fn two_sweeps_at_once_enqueue_one_job() {
    let fleet = Fleet::with_instance().await;
    fleet.start_move(HOST).await.expect("the move begins");
    fleet.create("waits.acme.example").await;
    fleet.sql("delete from jobs").await;
    let sweeps = (0..8).map(|_| sweep(fleet.db.pool(), fleet.eu.id()));
    let kept = futures::future::try_join_all(sweeps).await.expect("answers");
    assert_eq!(kept.iter().map(|k| k.moves).sum::<usize>(), 1);
    assert_eq!(kept.iter().map(|k| k.landings).sum::<usize>(), 1);
}

#[tokio::test]
async fn a_record_that_no_box_serves_gets_a_landing_again() {
    let fleet = Fleet::start().await;
    fleet.create(HOST).await;
    fleet.sql("delete from jobs").await;
    let kept = sweep(fleet.db.pool(), fleet.uk.id()).await.expect("an answer");
    assert_eq!(kept.landings, 1, "any box may sweep for any region");
    assert!(fleet.lease(&fleet.uk).await.is_none());
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    assert_eq!(sweep(fleet.db.pool(), fleet.uk.id()).await.expect("an answer").landings, 0);
}

/// after the commit, to whoever serves the queues, as every other enqueue.
#[tokio::test]
async fn what_a_box_enqueues_again_is_told_to_idle_workers() {
    let fleet = Fleet::with_instance().await;
    fleet.start_move(HOST).await.expect("the move begins");
    fleet.sql("delete from jobs").await;
    let mut listener = PgListener::connect(fleet.db.url()).await.expect("the database answers");
    listener.listen(CHANNEL).await.expect("it listens");
    let (store, stop) = (Arc::new(PgLeaseStore::new(fleet.db.pool())), CancellationToken::new());
    let keeping = tokio::spawn(keep(fleet.db.pool().clone(), fleet.eu.clone(), store, stop.clone()));
    let heard = tokio::time::timeout(Duration::from_secs(20), listener.recv()).await.expect("it is told");
    let (_, hint) = Hint::read(heard.expect("heard").payload()).expect("a hint");
    assert_eq!(hint.due_for(&fleet.eu.queues()), 1);
    stop.cancel();
    keeping.await.expect("it ends");
}

#[tokio::test]
async fn a_finished_move_ends_its_job() {
    let fleet = Fleet::with_instance().await;
    let started = fleet.start_move(HOST).await.expect("the move begins");
    fleet.run(&fleet.eu).await;
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    let ran = fleet.next_round(&fleet.eu).await;
    assert_eq!(ran.result()["outcome"], "aborted");
    let job = queue::get(&mut *fleet.conn().await, started.job).await.expect("an answer").expect("the job");
    assert_eq!(job.state, queue::JobState::Completed);
}

#[tokio::test]
async fn a_box_that_beats_lives_and_one_that_was_never_registered_is_told() {
    let fleet = Fleet::start().await;
    fleet.db.clock().advance(nodes::SILENT_AFTER + Duration::from_secs(1)).await;
    let live =
        async || nodes::get(&mut *fleet.conn().await, fleet.eu.id()).await.expect("an answer").expect("the box").live;
    assert!(!live().await, "silent");
    assert!(sweep(fleet.db.pool(), fleet.eu.id()).await.expect("an answer").known);
    assert!(live().await);
    assert!(!sweep(fleet.db.pool(), domain::ids::NodeId::generate()).await.expect("an answer").known);
}
