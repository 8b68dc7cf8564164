//! What is said of a real move on its way, and of what it left.

use domain::instances::moves::Outcome;
use domain::instances::why::Why;
use domain::instances::{self, Receipt};

use crate::acting::PATIENCE;
use crate::support::{Fleet, HOST, app, host};

async fn why(fleet: &Fleet) -> Why {
    let why = instances::why_of(&mut *fleet.conn().await, &app(), &host(HOST)).await;
    why.expect("the database answers").expect("the record exists")
}

/// The phase, and the last reason: what goes on. These boxes have no worker that beats, which is told before it.
async fn goes_on(fleet: &Fleet) -> (String, String) {
    let why = why(fleet).await;
    let last = why.reasons.last().expect("at least one").code.clone();
    (why.phase.as_str().to_owned(), last)
}

#[tokio::test(flavor = "multi_thread")]
async fn why_follows_a_real_move_from_its_first_round_to_what_it_left() {
    let fleet = Fleet::writing().await;
    let told = |phase: &str, code: &str| (phase.to_owned(), code.to_owned());
    assert_eq!(goes_on(&fleet).await, told("serving", "serving"));
    fleet.until_replica().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    assert_eq!(goes_on(&fleet).await, told("preparing", "first_round"));
    fleet.until_ready(&fleet.eu, id).await;
    assert_eq!(goes_on(&fleet).await, told("ready", "ready"));
    fleet.cut().await;
    assert_eq!(goes_on(&fleet).await, told("cutting", "cutting"));
    assert!(why(&fleet).await.frozen_since.is_some());
    tests::wait::until("the cut is done", PATIENCE, || async {
        if fleet.read_move(id).await.outcome.is_none() {
            fleet.run(&fleet.eu).await;
        }
        (fleet.read_move(id).await.outcome == Some(Outcome::Moved)).then_some(())
    })
    .await;
    assert_eq!(goes_on(&fleet).await, told("landing", "landing"));
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert_eq!(goes_on(&fleet).await, told("serving", "serving"));
    assert!(why(&fleet).await.predicted_freeze.is_some(), "the next cut between the two is predicted from it");

    let receipt = instances::receipt_of(&mut *fleet.conn().await, id).await.expect("an answer").expect("the move");
    let Receipt { moved, old_replica, steps } = receipt;
    assert_eq!(moved.tail, fleet.read_move(id).await.tail);
    let old = old_replica.expect("kept in eu");
    assert_eq!((old.region.as_str(), old.bucket.name.as_str(), old.purged_at), ("eu", "eu-data", None));
    assert!(old.keep_until > moved.landed_at, "for a while after it serves");
    let names: Vec<&str> = steps.iter().map(|step| step.step.as_str()).collect();
    assert!(!names.contains(&"round"), "{names:?}");
    assert_eq!(names[names.len() - 4..], ["flip", "mirror_in", "restore", "delete_staging"], "{names:?}");
}
