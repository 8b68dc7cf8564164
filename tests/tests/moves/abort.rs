//! Aborts: everything that is staged is deleted, twice, and only then has the record no move.

use std::time::Duration;

use domain::audit::Actor;
use domain::ids::MoveId;
use domain::instances::moves::{self, MoveState, Outcome};
use domain::instances::rescue;
use domain::queue;
use sandbox::s3::{Fault, Rule};

use crate::support::{Fleet, HOST, INTERVAL, app, host, ltx};

/// After this no request of an earlier lease can be under way.
const SETTLED: Duration = Duration::from_secs(60);

/// A fleet whose instance has a staged move, which is then given up.
async fn aborting() -> (Fleet, MoveId) {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    assert!(fleet.is_mirrored(HOST));
    abort(&fleet).await;
    (fleet, id)
}

async fn abort(fleet: &Fleet) {
    let done = moves::abort(&mut *fleet.conn().await, &app(), &host(HOST), Actor::System, None).await;
    done.expect("the abort is taken");
}

fn staged(fleet: &Fleet) -> Vec<String> {
    fleet.s3.objects().keys("uk-data", &format!("moves/{HOST}/"))
}

async fn outcome(fleet: &Fleet, id: MoveId) -> Option<Outcome> {
    fleet.read_move(id).await.outcome
}

/// Runs the abort until the move is over.
async fn finish(fleet: &Fleet, id: MoveId) {
    for _ in 0..10 {
        if outcome(fleet, id).await.is_some() {
            return;
        }
        fleet.pass_time(SETTLED).await;
        fleet.run(&fleet.eu).await;
    }
    panic!("the abort does not end: {:?}", fleet.read_move(id).await);
}

#[tokio::test]
async fn an_abort_deletes_everything_of_the_host_and_nothing_else_and_then_clears() {
    // M-082, M-083, M-087, M-088.
    let (fleet, id) = aborting().await;
    let objects = fleet.s3.objects();
    let marker = format!("moves/{HOST}/lock.json");
    objects.put("uk-data", &marker, b"{}");
    let others =
        [format!("moves/{HOST}.au/0000/x"), format!("moves/{}/0000/x", &HOST[1..]), format!("instances/{HOST}/0009/x")];
    for other in &others {
        objects.put("uk-data", other, b"another's");
    }
    let (source, revision) = (fleet.content("eu-data", "instances/"), fleet.record(HOST).await.revision);
    let serial = fleet.serial("eu").await;
    let waited = fleet.run(&fleet.eu).await.snoozed();
    assert!(waited > Duration::from_secs(30), "longer than a lease: {waited:?}");
    assert_eq!(staged(&fleet), Vec::<String>::new(), "what is no part of the replica goes, too");
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.finished_at), (Some(MoveState::Aborting), None), "not cleared yet");
    assert!(fleet.record(HOST).await.moving.is_some());
    fleet.pass_time(waited).await;
    let ran = fleet.run(&fleet.eu).await;
    assert_eq!(ran.result()["outcome"], "aborted");
    let record = fleet.record(HOST).await;
    assert_eq!((record.moving, record.region.as_str()), (None, "eu"));
    assert_eq!((record.revision, fleet.serial("eu").await), (revision.map(|it| it + 1), serial + 1));
    assert_eq!(record.observed_region.flatten().expect("served all the while").as_str(), "eu");
    for other in &others {
        assert!(objects.get("uk-data", other).is_some(), "{other}");
    }
    assert_eq!(fleet.content("eu-data", "instances/"), source, "its own replica is whole");
    let journal = fleet.journal(id).await;
    let steps: Vec<(&str, Option<&str>)> =
        journal.iter().skip(3).map(|step| (step.step.as_str(), step.outcome.as_deref())).collect();
    let sweep = ("sweep_staging", Some("empty"));
    assert_eq!(steps, [sweep, sweep, ("clear", Some("aborted"))], "two sweeps precede the clear");
    let left: i64 =
        sqlx::query_scalar("select count(*) from move_keys").fetch_one(fleet.db.pool()).await.expect("a number");
    assert_eq!(left, 0, "the journal of copies goes with the staging (M-118)");
}

#[tokio::test]
async fn what_a_late_request_stages_after_the_first_sweep_is_deleted_by_the_second() {
    // M-084: S3 knows no fence.
    let (fleet, id) = aborting().await;
    let waited = fleet.run(&fleet.eu).await.snoozed();
    let late = format!("moves/{HOST}/{}", ltx(0, 11, 11));
    fleet.s3.objects().put("uk-data", &late, b"of a worker that lost its lease");
    fleet.pass_time(waited - Duration::from_secs(1)).await;
    assert!(fleet.lease(&fleet.eu).await.is_none(), "not a moment earlier");
    fleet.pass_time(Duration::from_secs(1)).await;
    fleet.run(&fleet.eu).await;
    assert_eq!(staged(&fleet), Vec::<String>::new());
    assert_eq!(outcome(&fleet, id).await, Some(Outcome::Aborted));
}

#[tokio::test]
async fn an_abort_waits_as_long_as_a_copy_may_take_where_a_round_or_a_final_delta_did_not_end() {
    // M-084: a copy that its worker did not await may still arrive.
    for open in [false, true] {
        let fleet = Fleet::with_instance().await;
        let id = fleet.start_move(HOST).await.expect("the move begins").id;
        fleet.run(&fleet.eu).await;
        fleet.cut().await;
        let leased = fleet.lease(&fleet.eu).await.expect("the cut is due");
        if open {
            let conn = &mut *fleet.conn().await;
            let step = moves::begin_step(conn, leased.lease, id, MoveState::Cutting, "final_delta").await;
            assert!(matches!(step, Ok(moves::Cas::Set(_))), "and its worker dies in it");
        }
        fleet.settle(leased.lease, &Ok(workers::jobs::Done::Snooze { after: Duration::ZERO })).await;
        let (app, host) = (app(), host(HOST));
        let taken = rescue::unstick(&mut *fleet.conn().await, (&app, &host), Actor::System, "it hangs", None).await;
        taken.expect("nothing was purged yet");
        fleet.run(&fleet.eu).await.snoozed();
        let swept = moves::swept(&mut *fleet.conn().await, id).await.expect("an answer");
        assert_eq!(swept.map(|swept| swept.loose), Some(open));
    }
}

#[tokio::test]
async fn no_round_runs_once_the_abort_was_taken_and_one_that_runs_is_stopped() {
    // M-084, M-036.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let mut held = fleet.s3.faults().hold("CopyObject", HOST);
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    let lease = leased.lease;
    let context = fleet.context(leased.clone());
    let run = fleet.handle_in(&fleet.eu, leased, context);
    let verb = async {
        assert!(held.reached().await);
        abort(&fleet).await;
    };
    let (done, ()) = tokio::join!(run, verb);
    fleet.settle(lease, &done).await;
    assert_eq!(staged(&fleet), Vec::<String>::new(), "the same run went on with the abort");
    let outcomes: Vec<(String, Option<String>)> =
        fleet.journal(id).await.into_iter().map(|step| (step.step, step.outcome)).collect();
    assert!(outcomes.iter().any(|(step, _)| step == "sweep_staging"), "{outcomes:?}");
    let copies = fleet.s3.faults().counts().get("CopyObject").copied();
    finish(&fleet, id).await;
    assert_eq!(fleet.s3.faults().counts().get("CopyObject").copied(), copies, "no copy during or after the delete");
}

#[tokio::test]
async fn an_abort_of_many_keys_names_those_that_the_store_keeps_and_goes_on() {
    // M-085: more than 1,000 keys, and an answer of 200 with errors for some of them.
    let (fleet, id) = aborting().await;
    for txid in 100..1_400 {
        fleet.s3.objects().put("uk-data", &format!("moves/{HOST}/{}", ltx(0, txid, txid)), b"more");
    }
    let stubborn = format!("moves/{HOST}/{}", ltx(0, 1_234, 1_234));
    fleet.s3.faults().add(Rule::on("DeleteObjects", Fault::KeyError("AccessDenied")).key(&stubborn).times(2));
    for _ in 0..2 {
        fleet.run(&fleet.eu).await.snoozed();
        assert_eq!(staged(&fleet), std::slice::from_ref(&stubborn), "all the others are gone");
        let found = fleet.read_move(id).await;
        let obstacle = found.status.obstacle.expect("held up");
        assert_eq!((obstacle.code.as_str(), obstacle.permanent), ("delete_refused", true));
        assert!(obstacle.message.contains(&stubborn) && obstacle.message.contains("AccessDenied"), "{obstacle:?}");
        assert_eq!(found.outcome, None);
        fleet.pass_time(INTERVAL).await;
    }
    finish(&fleet, id).await;
    assert_eq!(staged(&fleet), Vec::<String>::new());
    assert_eq!(fleet.obstacle(id).await, None, "nothing holds up what is over");
}

#[tokio::test]
async fn an_abort_that_cannot_see_the_staging_clears_nothing() {
    // M-083: an unreachable store is not an empty one.
    let (fleet, id) = aborting().await;
    fleet.s3.faults().add(Rule::on("ListObjectsV2", Fault::SlowDown));
    for _ in 0..3 {
        fleet.run(&fleet.eu).await.snoozed();
        assert_eq!(fleet.obstacle(id).await, Some(("sweep_failed".to_owned(), false)));
        fleet.pass_time(SETTLED).await;
    }
    assert_eq!(outcome(&fleet, id).await, None);
    fleet.s3.faults().clear();
    finish(&fleet, id).await;
    assert_eq!(staged(&fleet), Vec::<String>::new());
}

#[tokio::test]
async fn an_abort_whose_box_lost_its_lease_writes_nothing_and_its_successor_finishes() {
    // M-086.
    let (fleet, id) = aborting().await;
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    fleet.pass_time(SETTLED).await;
    queue::rescue_expired(&mut *fleet.conn().await, 10).await.expect("an answer");
    let before = fleet.dump_without(&["fenced_writes"]).await;
    let done = fleet.handle(&fleet.eu, leased).await;
    assert!(matches!(done, Err(workers::jobs::JobError::LeaseLost)), "{done:?}");
    assert_eq!(fleet.dump_without(&["fenced_writes"]).await, before);
    finish(&fleet, id).await;
    assert_eq!(staged(&fleet), Vec::<String>::new());
}

#[tokio::test]
async fn an_abort_of_a_move_that_staged_nothing_is_over_at_once() {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    abort(&fleet).await;
    fleet.s3.faults().reset_record();
    fleet.run(&fleet.eu).await;
    fleet.run(&fleet.eu).await;
    assert_eq!(outcome(&fleet, id).await, Some(Outcome::Aborted));
    assert_eq!(fleet.s3.faults().record(), [], "nothing was asked of any store");
}

#[tokio::test]
async fn after_an_abort_another_move_begins_with_an_empty_staging() {
    // M-089, M-090: what an aborted move had staged is nothing that a later one could land.
    let (fleet, id) = aborting().await;
    finish(&fleet, id).await;
    fleet.s3.objects().delete("eu-data", &format!("instances/{HOST}/{}", ltx(0, 14, 14)));
    let second = fleet.start_move(HOST).await.expect("another move begins").id;
    assert_ne!(second, id);
    fleet.run(&fleet.eu).await;
    assert!(fleet.is_mirrored(HOST), "what the source pruned meanwhile is not staged");
    assert_eq!(fleet.read_move(second).await.state.known(), Some(MoveState::Ready));
}
