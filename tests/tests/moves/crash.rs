//! Cuts, landings and aborts that die: at every named point the run is dropped as a killed worker drops it, its lease runs
//! out, and another run goes on. Whatever was under way at the store or on the disk is left as it was.

use std::time::Duration;

use domain::ids::MoveId;
use domain::instances::moves::Outcome;
use domain::queue;
use workers::failpoint;
use workers::node::NodeContext;

use crate::acting::{PATIENCE, activator, rows_of};
use crate::support::{Fleet, HOST, host};

/// Longer than any lease.
const LEASE: Duration = Duration::from_secs(60);

/// The points of the source, in the order in which a cut passes them.
const OF_SOURCE: [&str; 16] = [
    "cut.before_close",
    "cut.after_close",
    "activator.before_stop",
    "activator.after_stop",
    "cut.before_proof",
    "activator.before_sync",
    "activator.before_once",
    "activator.before_listing",
    "activator.before_checkpoint",
    "cut.before_delta",
    "objects.before_copy",
    "cut.before_record",
    "cut.before_purge",
    "activator.before_remove",
    "cut.before_flip",
    "cut.after_flip",
];

/// Those of the target.
const OF_TARGET: [&str; 11] = [
    "land.after_mint",
    "objects.before_copy",
    "objects.before_delete",
    "land.before_restore",
    "activator.before_restore",
    "activator.after_restore",
    "land.before_adopt",
    "activator.before_adopt",
    "activator.before_rename",
    "land.before_serve",
    "land.after_serve",
];

/// The points of a renewal, in their order.
const OF_RENEWAL: [&str; 3] = ["activator.before_renewal", "activator.before_snapshot", "activator.after_snapshot"];

/// Leases the job that is due on a box and runs it until the point; then it is gone, and so is its lease. Whether it came
/// that far.
async fn die_at(fleet: &Fleet, node: &NodeContext, point: &str) -> bool {
    let leased = fleet.lease(node).await.expect("a job is due");
    let lease = leased.lease;
    let gate = failpoint::gate(point, "", 0);
    let snapshots = || fleet.s3.objects().keys("eu-data", &format!("instances/{HOST}/0009/")).len();
    let before = snapshots();
    let dies = async {
        gate.arrived(1).await;
        if point == "activator.before_snapshot" {
            // The daemon works by itself: its worker may be gone for long when the whole database is uploaded.
            tests::wait::until("an upload", PATIENCE, || async { (snapshots() > before).then_some(()) }).await;
        }
    };
    let died = tokio::select! {
        () = dies => true,
        done = fleet.handle(node, leased) => {
            fleet.settle(lease, &done).await;
            false
        }
    };
    drop(gate);
    if died {
        fleet.pass_time(LEASE).await;
        queue::rescue_expired(&mut *fleet.conn().await, 100).await.expect("the database answers");
    }
    died
}

/// Runs the box's jobs until none is due.
async fn go_on(fleet: &Fleet, node: &NodeContext) {
    for _ in 0..10 {
        let Some(leased) = fleet.lease(node).await else { return };
        let lease = leased.lease;
        let done = fleet.handle(node, leased).await;
        fleet.settle(lease, &done).await;
        fleet.pass_time(Duration::from_secs(5)).await;
    }
    panic!("it does not end: {:?}", fleet.open_move().await);
}

async fn ready() -> (Fleet, MoveId, u64) {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    let acknowledged = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    fleet.cut().await;
    (fleet, id, acknowledged)
}

/// The move is over: the target has every row, the source nothing, and one box alone runs it.
async fn assert_moved(fleet: &Fleet, id: MoveId, acknowledged: u64, point: &str) {
    let found = fleet.read_move(id).await;
    assert_eq!(found.outcome, Some(Outcome::Moved), "{point}");
    assert!(found.landed_at.is_some() && found.staging_deleted_at.is_some(), "{point}: {found:?}");
    let rows = rows_of(&fleet.database(&fleet.uk)).expect("a database");
    assert!(rows >= acknowledged, "{point}: {rows} of {acknowledged} rows");
    assert!(!fleet.database(&fleet.eu).exists(), "{point}");
    assert!(activator(&fleet.eu).running(&host(HOST)).is_none(), "{point}");
    let flips = fleet.journal(id).await.into_iter().filter(|step| step.step == "flip").count();
    assert_eq!(flips, 1, "{point}: one flip");
    assert_eq!(fleet.content("uk-data", &format!("moves/{HOST}/")), [], "{point}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_dies_at_any_point_ends_flipped_with_every_row() {
    // M-074, M-075, M-076, M-077, M-078.
    let mut died = 0;
    for point in OF_SOURCE {
        let (fleet, id, acknowledged) = ready().await;
        if die_at(&fleet, &fleet.eu, point).await {
            died += 1;
            if !point.ends_with("before_close") && !point.ends_with("after_flip") {
                let may = domain::instances::may_start(&mut *fleet.conn().await, fleet.eu.id(), &host(HOST)).await;
                assert!(!may.expect("an answer"), "{point}: it is never started again");
            }
        }
        go_on(&fleet, &fleet.eu).await;
        go_on(&fleet, &fleet.uk).await;
        assert_moved(&fleet, id, acknowledged, point).await;
    }
    // A busy writer leaves something to copy at nearly every cut, and not at each.
    assert!(died >= OF_SOURCE.len() - 1, "{died} points were passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_of_a_replica_that_dies_at_any_point_is_made_again() {
    for point in OF_RENEWAL {
        let (fleet, id, acknowledged) = ready().await;
        let objects = fleet.s3.objects();
        for key in objects.keys("eu-data", &format!("instances/{HOST}/")) {
            objects.corrupt("eu-data", &key, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle..].fill(0);
            });
        }
        assert!(die_at(&fleet, &fleet.eu, point).await, "{point} is never passed");
        go_on(&fleet, &fleet.eu).await;
        go_on(&fleet, &fleet.uk).await;
        assert_moved(&fleet, id, acknowledged, point).await;
        let journal = fleet.journal(id).await;
        let proven = journal.iter().rfind(|step| step.step == "prove_tail").expect("journalled");
        assert!(proven.evidence["whole"]["why"].is_string(), "{point}: it says what was wrong, whoever found it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_dies_at_any_point_ends_with_the_right_data_served() {
    // M-099.
    let mut died = 0;
    for point in OF_TARGET {
        let (fleet, id, acknowledged) = ready().await;
        go_on(&fleet, &fleet.eu).await;
        died += usize::from(die_at(&fleet, &fleet.uk, point).await);
        domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("an answer");
        go_on(&fleet, &fleet.uk).await;
        assert_moved(&fleet, id, acknowledged, point).await;
    }
    assert_eq!(died, OF_TARGET.len(), "every point is passed");
}

#[tokio::test]
async fn an_abort_that_dies_at_any_point_is_finished_by_another_run() {
    // M-086.
    for point in [
        "abort.before_sweep",
        "objects.before_delete",
        "objects.after_delete",
        "abort.after_sweep",
        "abort.before_clear",
        "abort.after_clear",
    ] {
        let fleet = Fleet::with_instance().await;
        let id = fleet.start_move(HOST).await.expect("the move begins").id;
        fleet.run(&fleet.eu).await;
        fleet.abort().await;
        if point.ends_with("_clear") {
            fleet.run(&fleet.eu).await;
            fleet.pass_time(LEASE * 2).await;
        }
        assert!(die_at(&fleet, &fleet.eu, point).await, "{point} is passed");
        for _ in 0..3 {
            fleet.pass_time(LEASE * 2).await;
            go_on(&fleet, &fleet.eu).await;
        }
        assert_eq!(fleet.read_move(id).await.outcome, Some(Outcome::Aborted), "{point}");
        assert_eq!(fleet.content("uk-data", &format!("moves/{HOST}/")), [], "{point}");
    }
}
