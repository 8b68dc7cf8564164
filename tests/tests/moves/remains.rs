//! What moves leave behind, and what operators may do at night.

use std::time::Duration;

use domain::audit::{self, Actor};
use domain::ids::MoveId;
use domain::instances::moves::Outcome;
use domain::instances::{self, Refusal, rescue, residency};
use workers::node::NodeContext;

use crate::acting::{activator, rows_of};
use crate::support::{Fleet, HOST, INTERVAL, app, host, region};

/// After this nothing of an earlier lease can be under way.
const SETTLED: Duration = Duration::from_secs(60);
/// How long the old replica is kept.
const UNDO: Duration = Duration::from_secs(24 * 3600);

async fn moved() -> (Fleet, MoveId) {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    (fleet, id)
}

async fn landed() -> (Fleet, MoveId) {
    let (fleet, id) = moved().await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    (fleet, id)
}

fn old(fleet: &Fleet) -> usize {
    fleet.content("eu-data", &format!("instances/{HOST}/")).len()
}

/// How many purges a sweep finds due.
async fn due(fleet: &Fleet) -> usize {
    residency::requeue_purges(&mut *fleet.conn().await).await.expect("an answer").len()
}

async fn purge(fleet: &Fleet, node: &NodeContext) -> serde_json::Value {
    for _ in 0..4 {
        let ran = fleet.run(node).await;
        if matches!(ran.done, Ok(workers::jobs::Done::Complete(_))) {
            return ran.result().clone();
        }
        fleet.pass_time(ran.snoozed()).await;
    }
    panic!("the purge does not end: {:?}", fleet.s3.faults().record().into_iter().rev().take(5).collect::<Vec<_>>());
}

async fn point(fleet: &Fleet, to: &str) -> Result<rescue::Pointed, instances::Error> {
    let mut conn = fleet.conn().await;
    rescue::set_region(&mut conn, (&app(), &host(HOST)), to, Actor::System, "the night of the test", None).await
}

fn refused<T: std::fmt::Debug>(result: Result<T, instances::Error>) -> Refusal {
    match result {
        Err(instances::Error::Refused(refusal)) => refusal,
        other => panic!("refused, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_replica_is_kept_for_its_time_and_then_purged_with_a_receipt() {
    let (fleet, id) = landed().await;
    fleet.s3.objects().put("eu-data", &format!("instances/{HOST}.au/0009/x"), b"another's");
    let kept = old(&fleet);
    assert!(kept > 0);
    fleet.pass_time(UNDO - Duration::from_secs(60)).await;
    assert_eq!(due(&fleet).await, 0, "not a minute earlier");
    fleet.pass_time(Duration::from_secs(60)).await;
    assert_eq!((due(&fleet).await, old(&fleet)), (1, kept));
    assert_eq!(due(&fleet).await, 0, "one purge at a time");
    let result = purge(&fleet, &fleet.eu).await;
    assert_eq!(result["purged"], true);
    assert_eq!(old(&fleet), 0);
    assert!(fleet.s3.objects().get("eu-data", &format!("instances/{HOST}.au/0009/x")).is_some(), "no other host's");
    let left = residency::of_move(&mut *fleet.conn().await, id).await.expect("an answer");
    let receipt = left[0].receipt.clone().expect("a receipt");
    assert_eq!((receipt["bucket"].as_str(), receipt["versions"].as_str()), (Some("eu-data"), Some("never")));
    assert_eq!(receipt["deleted_keys"], kept, "over all runs of the purge");
    assert_eq!(left[0].deleted.keys, u64::try_from(kept).expect("a number"));
    assert!(left[0].purged_at.is_some());
    let filter = audit::Filter { subject: Some(HOST.to_owned()), ..audit::Filter::default() };
    let events = audit::list(&mut *fleet.conn().await, &filter, 1).await.expect("an answer");
    assert_eq!(events[0].action, "instance.remains.purged");
    assert_eq!(due(&fleet).await, 0);
    assert!(rows_of(&fleet.database(&fleet.uk)).is_some_and(|rows| rows >= 30), "and the instance lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_replica_stays_while_the_landing_does_not_serve_or_the_instance_comes_back() {
    let (fleet, id) = moved().await;
    fleet.pass_time(UNDO * 2).await;
    assert_eq!(due(&fleet).await, 0, "nobody serves it yet: no time runs");
    // Even a purge that somebody enqueued deletes nothing.
    let job = domain::instances::jobs::purge_job(id, &region("eu"));
    domain::queue::enqueue(&mut *fleet.conn().await, &job).await.expect("enqueued");
    let kept = old(&fleet);
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(old(&fleet), kept);
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    // Its time is over, and the instance is on its way back.
    let back = fleet.start_move_to(HOST, "eu").await.expect("the way back begins").id;
    fleet.until_ready(&fleet.uk, back).await;
    fleet.pass_time(UNDO * 2).await;
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(old(&fleet), kept, "a move back is in flight");
    fleet.pass_time(INTERVAL).await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["outcome"], "moved");
    let rows = loop {
        let ran = fleet.run(&fleet.eu).await;
        if matches!(&ran.done, Ok(workers::jobs::Done::Complete(result)) if result["landed"] == true) {
            break rows_of(&fleet.database(&fleet.eu)).expect("a database");
        }
    };
    assert!(rows >= 30);
    fleet.pass_time(UNDO * 2).await;
    let left = residency::of_move(&mut *fleet.conn().await, id).await.expect("an answer");
    assert_eq!((left[0].superseded_by, left[0].purged_at), (Some(back), None), "it is over, and nothing was purged");
    assert!(old(&fleet) > 0, "the prefix is the instance's own again");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_move_to_a_region_begins_while_what_is_left_there_is_being_purged() {
    let (fleet, _) = landed().await;
    fleet.pass_time(UNDO).await;
    assert_eq!(due(&fleet).await, 1);
    fleet.run(&fleet.eu).await.snoozed();
    let before = fleet.dump().await;
    assert_eq!(Fleet::refusal(fleet.start_move_to(HOST, "eu").await), Refusal::Purging(region("eu")));
    assert_eq!(fleet.dump().await, before);
    // Were it in flight all the same, its landing would wait: nothing that it copies is deleted.
    fleet.pass_time(SETTLED).await;
    purge(&fleet, &fleet.eu).await;
    let back = fleet.start_move_to(HOST, "eu").await.expect("the way back begins").id;
    fleet.until_ready(&fleet.uk, back).await;
    fleet.sql("update remains set purged_at = null, receipt = null, purge_began_at = lh_now()").await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["outcome"], "moved");
    let leased = fleet.lease(&fleet.eu).await.expect("a landing is due");
    let lease = leased.lease;
    let done = fleet.handle(&fleet.eu, leased).await;
    fleet.settle(lease, &done).await;
    assert!(matches!(done, Ok(workers::jobs::Done::Snooze { .. })), "{done:?}");
    assert_eq!(old(&fleet), 0, "it touches nothing meanwhile");
    fleet.sql("update remains set purged_at = lh_now(), receipt = '{}'").await;
    fleet.pass_time(SETTLED).await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.eu)).is_some_and(|rows| rows >= 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_pointed_back_is_restored_from_the_sources_last_checkpoint() {
    // M-100: the target cannot land, and an operator points the record back.
    let (fleet, id) = moved().await;
    let found = fleet.read_move(id).await;
    assert!(found.is_landing() && found.given_up_at.is_none(), "{found:?}");
    let tail = found.tail.expect("proven");
    let staged = fleet.s3.objects().keys("uk-data", &format!("moves/{HOST}/"));
    let newest = staged.into_iter().rfind(|key| key.contains("/0000/")).expect("raw files");
    fleet.s3.objects().delete("uk-data", &newest);
    fleet.run(&fleet.uk).await.snoozed();
    let pointed = point(&fleet, "eu").await.expect("nobody serves it");
    assert_eq!(pointed.given_up, Some((id, tail.txid.clone())), "what would be lost is told");
    let found = fleet.read_move(id).await;
    assert!(!found.is_landing() && found.given_up_at.is_some(), "whoever waits for its landing learns it: {found:?}");
    let filter = audit::Filter { subject: Some(HOST.to_owned()), ..audit::Filter::default() };
    let events = audit::list(&mut *fleet.conn().await, &filter, 1).await.expect("an answer");
    assert_eq!(
        (events[0].action.as_str(), events[0].reason.as_deref()),
        ("instance.region", Some("the night of the test"))
    );
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    assert!(rows_of(&fleet.database(&fleet.eu)).is_some_and(|rows| rows >= 30));
    assert!(activator(&fleet.eu).running(&host(HOST)).is_some());
    // The landing that was given up finds its record elsewhere, and its staging is purged.
    fleet.pass_time(SETTLED).await;
    while let Some(leased) = fleet.lease(&fleet.uk).await {
        let lease = leased.lease;
        let done = fleet.handle(&fleet.uk, leased).await;
        fleet.settle(lease, &done).await;
    }
    assert_eq!(due(&fleet).await, 1);
    purge(&fleet, &fleet.uk).await;
    assert_eq!(fleet.content("uk-data", &format!("moves/{HOST}/")), []);
    assert!(fleet.read_move(id).await.staging_deleted_at.is_some(), "its receipt says so");
    assert!(old(&fleet) > 0, "what the source keeps is its own again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_pointed_by_hand_only_while_nobody_can_write_it() {
    let fleet = Fleet::writing().await;
    assert!(matches!(refused(point(&fleet, "uk").await), Refusal::Serves(_)), "a box that lives serves it");
    let parked = fleet.place_parked().await;
    assert!(matches!(refused(point(&fleet, "uk").await), Refusal::Serves(_)), "its child may still end, or start");
    parked.wake(&fleet).await;
    assert!(matches!(refused(point(&fleet, "eu").await), Refusal::SameRegion(_)));
    assert!(matches!(refused(point(&fleet, "mars").await), Refusal::RegionUnknown(_)));
    let id = fleet.make_ready().await;
    assert!(matches!(refused(point(&fleet, "uk").await), Refusal::InFlight { .. }));
    fleet.abort().await;
    for _ in 0..3 {
        fleet.pass_time(SETTLED).await;
        if fleet.read_move(id).await.finished_at.is_none() {
            fleet.run(&fleet.eu).await;
        }
    }
    // The box is dead: it was not heard for long.
    fleet.db.clock().advance(Duration::from_secs(120)).await;
    domain::nodes::seen(&mut *fleet.conn().await, fleet.uk.id()).await.expect("an answer");
    let pointed = point(&fleet, "uk").await.expect("nobody lives who serves it");
    assert_eq!((pointed.from.as_str(), pointed.to.as_str()), ("eu", "uk"));
    // Nothing of it is in uk: it is held, and nothing begins anew.
    fleet.run(&fleet.uk).await.snoozed();
    assert!(!fleet.database(&fleet.uk).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_hangs_is_taken_back_before_its_purge_and_never_after() {
    let fleet = Fleet::acting().await;
    fleet.place_with(&[("TENANT_HANG", "1"), ("TENANT_WRITES", "1")]).await;
    fleet.until_rows(&fleet.eu, 30).await;
    let id = fleet.make_ready().await;
    let unstick = async || {
        let mut conn = fleet.conn().await;
        rescue::unstick(&mut conn, (&app(), &host(HOST)), Actor::System, "it hangs", None).await
    };
    assert!(matches!(refused(unstick().await), Refusal::NotCutting(_)), "a ready move is aborted instead");
    fleet.cut().await;
    fleet.run(&fleet.eu).await.snoozed();
    unstick().await.expect("taken back");
    let may = instances::may_start(&mut *fleet.conn().await, fleet.eu.id(), &host(HOST)).await.expect("an answer");
    assert!(may, "the source serves again");
    for _ in 0..3 {
        if fleet.read_move(id).await.finished_at.is_none() {
            fleet.run(&fleet.eu).await;
            fleet.pass_time(SETTLED).await;
        }
    }
    assert_eq!(fleet.read_move(id).await.outcome, Some(Outcome::Aborted));

    let (fleet, _) = (Fleet::with_instance().await, ());
    fleet.start_move(HOST).await.expect("the move begins");
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), purge_began_at = lh_now(),
                              tail_txid = repeat('0', 15) || '1', tail_sha256 = repeat('a', 64), tail_size = 1",
        )
        .await;
    let before = fleet.dump().await;
    let late = rescue::unstick(&mut *fleet.conn().await, (&app(), &host(HOST)), Actor::System, "late", None).await;
    assert_eq!(refused(late), Refusal::PastRecall);
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_begins_only_where_the_instance_is_served_and_never_while_it_lands() {
    let (fleet, _) = moved().await;
    // The source's route is there until somebody retires it: the record has left it.
    let before = fleet.dump().await;
    assert_eq!(Fleet::refusal(fleet.start_move_to(HOST, "eu").await), Refusal::NotPlaced);
    assert_eq!(fleet.dump().await, before);
    // A landing that is held up has its route, and what it lands may be old or half there.
    let staged = fleet.s3.objects().keys("uk-data", &format!("moves/{HOST}/"));
    let whole: Vec<_> =
        staged.iter().map(|key| (key, fleet.s3.objects().get("uk-data", key).expect("an object"))).collect();
    for key in &staged {
        fleet.s3.objects().delete("uk-data", key);
    }
    fleet.run(&fleet.uk).await.snoozed();
    let before = fleet.dump().await;
    assert_eq!(Fleet::refusal(fleet.start_move_to(HOST, "eu").await), Refusal::NotPlaced);
    assert_eq!(fleet.dump().await, before);
    for (key, bytes) in whole {
        fleet.s3.objects().put("uk-data", key, &bytes);
    }
    fleet.pass_time(SETTLED).await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    fleet.start_move_to(HOST, "eu").await.expect("it is served, and may move");
}
