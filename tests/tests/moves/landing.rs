//! Landings: what is taken, what is refused and put aside, and what is left until it can be deleted.

use domain::audit::Actor;
use domain::instances::landing;
use domain::instances::moves::{self, MoveState, Outcome, Wish};
use sandbox::s3::{Fault, Rule};
use workers::node::NodeContext;

use crate::acting::{activator, rows_of};
use crate::support::{Fleet, HOST, INTERVAL, app, host, ltx};

/// What holds the landing of the instance up.
async fn held(fleet: &Fleet) -> Option<(String, bool)> {
    let row: Option<serde_json::Value> = sqlx::query_scalar("select held from routes where host = $1")
        .bind(HOST)
        .fetch_one(fleet.db.pool())
        .await
        .expect("a route");
    row.map(|held| (held["code"].as_str().expect("a code").to_owned(), held["permanent"] == true))
}

/// A fleet whose instance was cut, and is about to land in uk.
async fn flipped() -> (Fleet, domain::ids::MoveId) {
    let fleet = Fleet::writing().await;
    let id = fleet.make_ready().await;
    fleet.cut().await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    (fleet, id)
}

fn staged(fleet: &Fleet) -> Vec<String> {
    fleet.s3.objects().keys("uk-data", &format!("moves/{HOST}/"))
}

async fn land(fleet: &Fleet, node: &NodeContext) -> u64 {
    assert_eq!(fleet.run(node).await.result()["landed"], true);
    rows_of(&fleet.database(node)).expect("a database")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staging_that_is_not_the_one_of_the_cut_is_never_served_and_is_kept() {
    // M-097, M-128: damaged, or an older state that restores with every check passed.
    for damage in ["corrupt", "truncated", "older"] {
        let (fleet, id) = flipped().await;
        let objects = fleet.s3.objects();
        let newest = staged(&fleet).into_iter().rfind(|key| key.contains("/0000/")).expect("raw files");
        let whole = objects.get("uk-data", &newest).expect("an object");
        if damage == "corrupt" {
            objects.corrupt("uk-data", &newest, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle..].fill(0);
            });
        } else if damage == "truncated" {
            objects.corrupt("uk-data", &newest, |bytes| bytes.truncate(bytes.len() / 2));
        } else {
            objects.delete("uk-data", &newest);
        }
        fleet.run(&fleet.uk).await.snoozed();
        let (code, permanent) = held(&fleet).await.expect("held up, and it says why");
        let expected = if damage == "older" { "staging_differs" } else { "restore_failed" };
        assert_eq!((code.as_str(), permanent), (expected, true));
        assert!(!fleet.database(&fleet.uk).exists(), "{damage}: no database");
        assert!(activator(&fleet.uk).running(&host(HOST)).is_none(), "{damage}: nothing runs");
        assert!(!staged(&fleet).is_empty(), "{damage}: the staging is kept");
        assert!(!fleet.content("eu-data", &format!("instances/{HOST}/")).is_empty(), "so is the source's replica");
        assert!(fleet.read_move(id).await.landed_at.is_none());
        objects.put("uk-data", &newest, &whole);
        fleet.pass_time(INTERVAL * 4).await;
        assert!(land(&fleet, &fleet.uk).await >= 30, "{damage}: repaired, it lands");
        assert_eq!(held(&fleet).await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_that_finds_nothing_begins_no_fresh_database() {
    // Nothing staged is an error, and empties nothing of the own prefix.
    let (fleet, _) = flipped().await;
    let own = format!("instances/{HOST}/{}", ltx(9, 1, 5));
    fleet.s3.objects().put("uk-data", &own, b"of an earlier life");
    for key in staged(&fleet) {
        fleet.s3.objects().delete("uk-data", &key);
    }
    fleet.run(&fleet.uk).await.snoozed();
    assert_eq!(held(&fleet).await, Some(("staging_missing".to_owned(), true)));
    assert!(fleet.s3.objects().get("uk-data", &own).is_some(), "an empty staging empties nothing");
    assert!(!fleet.database(&fleet.uk).exists());

    // A record that was served before, and of which nothing is left anywhere.
    let fleet = Fleet::writing().await;
    activator(&fleet.eu).stop(&host(HOST)).await.expect("stopped");
    activator(&fleet.eu).purge(&host(HOST)).await.expect("the box lost its disk");
    for key in fleet.s3.objects().keys("eu-data", &format!("instances/{HOST}/")) {
        fleet.s3.objects().delete("eu-data", &key);
    }
    fleet.sql("delete from routes").await;
    domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("a landing is enqueued");
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(held(&fleet).await, Some(("nothing_to_restore".to_owned(), true)));
    assert!(!fleet.database(&fleet.eu).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_that_lost_its_disk_lands_its_own_replica_and_one_that_kept_it_lands_its_database() {
    // M-093, M-094, M-096.
    let fleet = Fleet::writing().await;
    activator(&fleet.eu).stop(&host(HOST)).await.expect("stopped, and everything is uploaded");
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    let parked = fleet.place_parked().await;
    let again = async || {
        fleet.sql("delete from routes").await;
        domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("a landing is enqueued");
    };
    again().await;
    assert_eq!(land(&fleet, &fleet.eu).await, rows, "its own database");
    let database = fleet.database(&fleet.eu);
    let bytes = std::fs::read(&database).expect("the file");
    let mut damaged = bytes.clone();
    damaged[4_096..].fill(7);
    std::fs::write(&database, damaged).expect("damaged");
    again().await;
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(held(&fleet).await, Some(("database_damaged".to_owned(), true)), "it is checked, and not served");
    activator(&fleet.eu).purge(&host(HOST)).await.expect("the box lost its disk");
    fleet.pass_time(INTERVAL * 4).await;
    assert_eq!(land(&fleet, &fleet.eu).await, rows, "its own replica");
    drop(parked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staging_that_cannot_be_deleted_fails_no_landing_and_is_deleted_later() {
    // M-098.
    let (fleet, id) = flipped().await;
    let rule = fleet.s3.faults().add(Rule::on("DeleteObjects", Fault::KeyError("AccessDenied")).key("moves/"));
    fleet.run(&fleet.uk).await.snoozed();
    let found = fleet.read_move(id).await;
    assert!(found.landed_at.is_some() && found.staging_deleted_at.is_none(), "it serves: {found:?}");
    assert!(activator(&fleet.uk).running(&host(HOST)).is_some());
    fleet.pass_time(INTERVAL * 4).await;
    fleet.run(&fleet.uk).await.snoozed();
    fleet.s3.faults().remove(rule);
    // Its job is lost, too: the sweep brings it back.
    fleet.sql("delete from jobs").await;
    domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("a landing is enqueued");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    assert_eq!(staged(&fleet), Vec::<String>::new());
    assert!(fleet.read_move(id).await.staging_deleted_at.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_to_cut_by_itself_does_as_soon_as_it_is_ready() {
    // M-127, M-109: nothing beside the replica is touched.
    let fleet = Fleet::writing().await;
    let objects = fleet.s3.objects();
    for bucket in ["eu-data", "uk-data"] {
        objects.put(bucket, &format!("uploads/{HOST}/picture"), b"of the tenant");
    }
    fleet.until_replica().await;
    let wish = Wish { cut_auto: true, ..Wish::default() };
    let started = moves::start_if(&mut *fleet.conn().await, &app(), &host(HOST), "uk", Actor::System, wish).await;
    let id = started.expect("the move begins").id;
    let before = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    loop {
        fleet.run(&fleet.eu).await;
        let found = fleet.read_move(id).await;
        if found.finished_at.is_some() {
            break;
        }
        assert_eq!(found.state.known(), Some(MoveState::Preparing), "no wait lies between ready and the cut");
        fleet.pass_time(INTERVAL).await;
    }
    assert_eq!(fleet.read_move(id).await.outcome, Some(Outcome::Moved));
    assert!(land(&fleet, &fleet.uk).await >= before);
    for bucket in ["eu-data", "uk-data"] {
        assert_eq!(objects.keys(bucket, "uploads/").len(), 1);
    }
    let calls = fleet.s3.faults().record();
    assert!(!calls.iter().any(|call| call.mentions("uploads/")), "uploads are nobody's business");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_a_child_from_the_close_of_the_route_to_the_landing() {
    // M-091, M-116: whoever asks, the one gate says no.
    let fleet = Fleet::writing().await;
    fleet.make_ready().await;
    let may = async |node: &NodeContext| {
        domain::instances::may_start(&mut *fleet.conn().await, node.id(), &host(HOST)).await.expect("an answer")
    };
    assert!(may(&fleet.eu).await && !may(&fleet.uk).await);
    fleet.cut().await;
    let lease = fleet.lease(&fleet.eu).await.expect("a job is due").lease;
    let id = fleet.record(HOST).await.moving.map(|_| ()).and(fleet.open_move().await).expect("in flight");
    moves::close_route(&mut *fleet.conn().await, lease, id, fleet.eu.id()).await.expect("closed");
    assert!(!may(&fleet.eu).await && !may(&fleet.uk).await, "from the first step on");
    fleet.settle(lease, &Ok(workers::jobs::Done::Snooze { after: std::time::Duration::ZERO })).await;
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    assert!(!may(&fleet.eu).await && !may(&fleet.uk).await, "between the boxes");
    let leased = fleet.lease(&fleet.uk).await.expect("a landing is due");
    let id = serde_json::from_value(leased.args["instance_id"].clone()).expect("an id");
    let taken = landing::land(&mut *fleet.conn().await, leased.lease, id, fleet.uk.id()).await.expect("an answer");
    assert!(matches!(taken, landing::Landing::Begun(_)));
    assert!(!may(&fleet.eu).await && !may(&fleet.uk).await, "while it lands");
    let done = fleet.handle(&fleet.uk, leased.clone()).await;
    fleet.settle(leased.lease, &done).await;
    assert!(!may(&fleet.eu).await && may(&fleet.uk).await, "once it serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_record_never_takes_over_what_another_instance_of_its_host_left() {
    // M-121: whose data that is nobody knows; it is neither served nor deleted.
    for prefix in ["instances", "moves"] {
        let fleet = Fleet::acting().await;
        let key = format!("{prefix}/{HOST}/{}", ltx(9, 1, 5));
        fleet.s3.objects().put("eu-data", &key, b"another account's");
        fleet.create(HOST).await;
        fleet.run(&fleet.eu).await.snoozed();
        assert_eq!(held(&fleet).await, Some(("prefix_occupied".to_owned(), true)));
        assert!(!fleet.database(&fleet.eu).exists() && activator(&fleet.eu).running(&host(HOST)).is_none());
        assert!(fleet.s3.objects().get("eu-data", &key).is_some());
        fleet.s3.objects().delete("eu-data", &key);
        fleet.pass_time(INTERVAL * 4).await;
        assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true, "once it is gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stayed_behind_its_replica_is_not_served() {
    // M-094: another box wrote meanwhile, and this one still has what it had.
    let fleet = Fleet::writing().await;
    let parked = fleet.place_parked().await;
    let stop = async || activator(&fleet.eu).stop(&host(HOST)).await.expect("stopped, and everything is uploaded");
    stop().await;
    let names = ["app.db", ".app.db-litestream"];
    let aside = tempfile::tempdir().expect("a folder");
    names.iter().for_each(|name| copy(&fleet.file("eu-1", name), &aside.path().join(name)));
    let before = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    parked.wake(&fleet).await;
    fleet.until_rows(&fleet.eu, before + 20).await;
    let parked = fleet.place_parked().await;
    stop().await;
    activator(&fleet.eu).purge(&host(HOST)).await.expect("what it has now is gone");
    names.iter().for_each(|name| copy(&aside.path().join(name), &fleet.file("eu-1", name)));
    fleet.sql("delete from routes").await;
    domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("a landing is enqueued");
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(held(&fleet).await, Some(("database_behind".to_owned(), true)));
    assert_eq!(rows_of(&fleet.database(&fleet.eu)), Some(before), "and it is left as it is");
    activator(&fleet.eu).purge(&host(HOST)).await.expect("put aside");
    fleet.pass_time(INTERVAL * 4).await;
    assert!(land(&fleet, &fleet.eu).await >= before + 20, "the replica is restored");
    drop(parked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staging_that_is_all_that_is_left_is_landed_and_then_deleted() {
    // M-095: no move is pending; somebody put the replica there by hand.
    let fleet = Fleet::writing().await;
    activator(&fleet.eu).stop(&host(HOST)).await.expect("stopped, and everything is uploaded");
    let rows = rows_of(&fleet.database(&fleet.eu)).expect("a database");
    let parked = fleet.place_parked().await;
    activator(&fleet.eu).purge(&host(HOST)).await.expect("the box lost its disk");
    let objects = fleet.s3.objects();
    for (suffix, bytes) in fleet.content("eu-data", &format!("instances/{HOST}/")) {
        objects.put("eu-data", &format!("moves/{HOST}/{suffix}"), &bytes);
        objects.delete("eu-data", &format!("instances/{HOST}/{suffix}"));
    }
    fleet.sql("delete from routes").await;
    domain::instances::requeue_landings(&mut *fleet.conn().await).await.expect("a landing is enqueued");
    assert_eq!(land(&fleet, &fleet.eu).await, rows);
    assert_eq!(objects.keys("eu-data", &format!("moves/{HOST}/")), Vec::<String>::new());
    drop(parked);
}

/// Copies a file, or a folder with all that is in it.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        std::fs::copy(from, to).expect("a copy");
    }
}
