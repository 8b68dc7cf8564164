//! The verbs on a move in flight: which state takes which, what each writes, and who wins.

use domain::audit::{self, Actor};
use domain::ids::MoveId;
use domain::instances::moves::{self, Accepted, MoveState};
use domain::instances::{self, Refusal, RefusalClass};
use domain::queue;
use serde_json::json;

use crate::support::{Fleet, HOST, INTERVAL, app, host, region};

/// A verb of the door.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Move,
    Cut,
    Abort,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Move, Self::Cut, Self::Abort];

    async fn call(self, fleet: &Fleet) -> Result<(), instances::Error> {
        let mut conn = fleet.conn().await;
        match self {
            Self::Move => fleet.start_move(HOST).await.map(|_| ()),
            Self::Cut => moves::cut(&mut conn, &app(), &host(HOST), Actor::System, None).await.map(|_| ()),
            Self::Abort => moves::abort(&mut conn, &app(), &host(HOST), Actor::System, None).await.map(|_| ()),
        }
    }
}

/// Brings the one move into a state, as if its box had.
async fn bring_into(fleet: &Fleet, state: MoveState) {
    sqlx::query(
        "update moves set state = $1, finished_at = null, outcome = null, ready_at = coalesce(ready_at, lh_now())",
    )
    .bind(state.as_str())
    .execute(fleet.db.pool())
    .await
    .expect("the state is set");
}

async fn cut(fleet: &Fleet) -> Result<Accepted, instances::Error> {
    moves::cut(&mut *fleet.conn().await, &app(), &host(HOST), Actor::System, None).await
}

async fn abort(fleet: &Fleet) -> Result<Accepted, instances::Error> {
    moves::abort(&mut *fleet.conn().await, &app(), &host(HOST), Actor::System, None).await
}

#[tokio::test]
async fn a_move_whose_target_could_not_land_it_now_is_not_cut_until_that_can() {
    // M-016, M-115: what is cut goes forward, and nobody would serve it.
    let (fleet, id) = ready().await;
    for (broken, mended, code) in [
        (
            "update regions set armed = false where code = 'uk'",
            "update regions set armed = true where code = 'uk'",
            Refusal::RegionUnarmed(region("uk")),
        ),
        (
            "update nodes set seen_at = seen_at - interval '1 hour' where region = 'uk'",
            "update nodes set seen_at = seen_at + interval '1 hour' where region = 'uk'",
            Refusal::RegionCannotHost(region("uk")),
        ),
        (
            "update instances set env = '{\"KEY\": \"age:x\"}'",
            "update instances set env = '{}'",
            Refusal::RegionHoldsNoKey(region("uk")),
        ),
    ] {
        fleet.sql(broken).await;
        let before = fleet.dump().await;
        let refused = cut(&fleet).await;
        assert!(matches!(&refused, Err(instances::Error::Refused(found)) if *found == code), "{code}: {refused:?}");
        assert_eq!(fleet.dump().await, before, "{code}");
        fleet.sql(mended).await;
    }
    cut(&fleet).await.expect("it can again");
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Cutting));
}

/// A fleet whose instance has a ready move.
async fn ready() -> (Fleet, MoveId) {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    (fleet, id)
}

#[tokio::test]
async fn each_verb_is_taken_in_the_states_that_the_table_says_and_refused_without_a_trace_in_all_others() {
    // M-018, M-026, M-029, M-030, M-110: four states and none, three verbs.
    let taken = |state: Option<MoveState>, verb: Verb| -> Result<(), &str> {
        match (state, verb) {
            (None, Verb::Move) | (Some(MoveState::Ready), Verb::Cut) => Ok(()),
            (Some(MoveState::Preparing | MoveState::Ready), Verb::Abort) => Ok(()),
            (None, Verb::Cut | Verb::Abort) => Err("no_move"),
            (Some(MoveState::Preparing), Verb::Cut) => Err("move_not_ready"),
            (Some(_), _) => Err("move_in_flight"),
        }
    };
    let mut cells = 0;
    for state in [None].into_iter().chain(MoveState::ALL.map(Some)) {
        let fleet = Fleet::with_instance().await;
        if let Some(state) = state {
            fleet.start_move(HOST).await.expect("the move begins");
            bring_into(&fleet, state).await;
        }
        for verb in Verb::ALL {
            cells += 1;
            let before = fleet.dump().await;
            match (taken(state, verb), verb.call(&fleet).await) {
                (Ok(()), Ok(())) => {
                    fleet.sql("delete from move_steps; delete from moves; delete from jobs").await;
                    if let Some(state) = state {
                        fleet.start_move(HOST).await.expect("the move begins anew");
                        bring_into(&fleet, state).await;
                    }
                }
                (Err(code), Err(instances::Error::Refused(refusal))) => {
                    assert_eq!((refusal.code(), refusal.class()), (code, RefusalClass::Conflict), "{state:?} {verb:?}");
                    assert_eq!(fleet.dump().await, before, "{state:?} {verb:?}: a refused call changes nothing");
                }
                (expected, found) => panic!("{state:?} {verb:?}: {expected:?}, not {found:?}"),
            }
        }
    }
    assert_eq!(cells, 15);
}

#[tokio::test]
async fn a_cut_writes_the_state_with_its_serial_its_nudge_and_its_audit_and_nothing_else() {
    // M-027, M-028 (nobody asks whether the writes are frozen), M-035.
    let (fleet, id) = ready().await;
    fleet.put(HOST, &crate::support::ltx(0, 15, 15), b"written after ready, and not frozen");
    let touched = ["moves", "instances", "regions", "jobs", "audit_events"];
    let before = fleet.dump_without(&touched).await;
    let (revision, serial) = (fleet.record(HOST).await.revision.expect("a revision"), fleet.serial("eu").await);
    let ready_at = fleet.read_move(id).await.ready_at;
    let done = cut(&fleet).await.expect("a ready move is cut");
    assert_eq!((done.id, done.moving.state.as_str(), done.moving.ready_at), (id, "cutting", ready_at));
    assert_eq!(fleet.dump_without(&touched).await, before);
    let record = fleet.record(HOST).await;
    assert_eq!((record.region.as_str(), record.revision), ("eu", Some(revision + 1)), "still the source's (M-007)");
    assert_eq!((fleet.serial("eu").await, record.moving.map(|it| it.ready_at)), (serial + 1, Some(ready_at)));
    let found = fleet.read_move(id).await;
    assert_eq!((found.tail, found.purge_began_at, found.finished_at), (None, None, None));
    let job = queue::get(&mut *fleet.conn().await, found.job.expect("a job")).await.expect("an answer").expect("it");
    assert_eq!((job.state, done.queue), (queue::JobState::Available, Some(job.queue)), "its box looks now");
    let filter = audit::Filter { subject: Some(HOST.to_owned()), ..audit::Filter::default() };
    let events = audit::list(&mut *fleet.conn().await, &filter, 1).await.expect("an answer");
    assert_eq!(events[0].action, "instance.move.cut");
    assert_eq!(events[0].detail, json!({"move_id": id, "from": "eu", "to": "uk", "was": "ready"}));
}

#[tokio::test]
async fn an_abort_keeps_the_record_its_move_and_its_ready_moment_until_the_box_has_cleared_it() {
    // M-029: the door sets the state, it does not clear.
    let (fleet, id) = ready().await;
    let ready_at = fleet.read_move(id).await.ready_at;
    let done = abort(&fleet).await.expect("a ready move is given up");
    assert_eq!((done.moving.state.as_str(), done.moving.ready_at), ("aborting", ready_at));
    let found = fleet.read_move(id).await;
    assert_eq!((found.finished_at, found.aborted_at.is_some()), (None, true));
    assert!(fleet.is_mirrored(HOST), "the door deletes nothing");
}

#[tokio::test]
async fn the_verbs_are_gated_by_the_record_as_the_move_is_and_by_the_revision() {
    // M-020 to M-025 hold for all three verbs.
    let (fleet, _) = ready().await;
    let refused = |result: Result<Accepted, instances::Error>| match result {
        Err(instances::Error::Refused(refusal)) => refusal,
        other => panic!("refused, not {other:?}"),
    };
    let mut conn = fleet.conn().await;
    let nowhere = host("nowhere.acme.example");
    for result in [
        moves::cut(&mut conn, &app(), &nowhere, Actor::System, None).await,
        moves::abort(&mut conn, &app(), &nowhere, Actor::System, None).await,
    ] {
        assert_eq!(refused(result), Refusal::NotFound);
    }
    let found = fleet.record(HOST).await.revision.expect("a revision");
    for result in [
        moves::cut(&mut conn, &app(), &host(HOST), Actor::System, Some(found - 1)).await,
        moves::abort(&mut conn, &app(), &host(HOST), Actor::System, Some(found - 1)).await,
    ] {
        assert_eq!(refused(result), Refusal::Stale { expected: found - 1, found });
    }
    for (column, code) in [
        ("kind = 'unit'", "kind_not_movable"),
        ("backing = 'wasm'", "backing_not_movable"),
        ("role = 'replica'", "replica"),
        ("placement = 'fleet'", "fleet_not_movable"),
        ("pool = 'gpu'", "pool_not_movable"),
        ("hibernate = false", "hibernate_required"),
    ] {
        let mut tx = fleet.db.pool().begin().await.expect("a transaction");
        let sql = format!("update instances set {column}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.expect("the record is changed");
        let cut = moves::cut(&mut tx, &app(), &host(HOST), Actor::System, None).await;
        assert_eq!(refused(cut).code(), code);
        let abort = moves::abort(&mut tx, &app(), &host(HOST), Actor::System, None).await;
        assert_eq!(refused(abort).code(), code);
        tx.rollback().await.expect("rolled back");
    }
}

#[tokio::test]
async fn of_a_cut_and_an_abort_at_once_exactly_one_wins_a_thousand_times() {
    // M-031.
    let (fleet, id) = ready().await;
    let mut cuts = 0;
    for trial in 0..1_000 {
        let (cut, abort) = tokio::join!(cut(&fleet), abort(&fleet));
        let expected = match (&cut, &abort) {
            (Ok(_), Err(instances::Error::Refused(Refusal::InFlight { .. }))) => MoveState::Cutting,
            (Err(instances::Error::Refused(Refusal::InFlight { .. })), Ok(_)) => MoveState::Aborting,
            both => panic!("trial {trial}: exactly one wins, not {both:?}"),
        };
        cuts += usize::from(expected == MoveState::Cutting);
        assert_eq!(fleet.read_move(id).await.state.known(), Some(expected), "trial {trial}");
        bring_into(&fleet, MoveState::Ready).await;
    }
    assert!((1..1_000).contains(&cuts), "both were first at times: {cuts} cuts");
}

#[tokio::test]
async fn an_abort_that_meets_the_promotion_ends_in_aborting() {
    // M-032, M-061.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let lease = fleet.lease(&fleet.eu).await.expect("its job").lease;
    let mut promotions = 0;
    for trial in 0..200 {
        let mut conn = fleet.conn().await;
        let (promoted, aborted) = tokio::join!(moves::promote(&mut conn, lease, id, 1), abort(&fleet));
        aborted.expect("taken in preparing and in ready alike");
        let found = fleet.read_move(id).await;
        assert_eq!(found.state.known(), Some(MoveState::Aborting), "trial {trial}");
        let promoted = matches!(promoted.expect("an answer"), moves::Cas::Set(_));
        promotions += usize::from(promoted);
        assert_eq!(found.ready_at.is_some(), promoted, "trial {trial}: what was stamped stays");
        fleet.sql("update moves set state = 'preparing', ready_at = null").await;
    }
    assert!((1..200).contains(&promotions), "both were first at times: {promotions} promotions");
}

#[tokio::test]
async fn a_verb_that_comes_while_a_round_runs_is_seen_right_after_it() {
    // M-036, M-124: a nudge of a running job is not lost, and two of them are one.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.run(&fleet.eu).await;
    let lease = fleet.lease_next_round().await;
    cut(&fleet).await.expect("taken while a round runs");
    for _ in 0..2 {
        let nudged = queue::nudge(&mut *fleet.conn().await, "instance.move", &id.to_string()).await;
        assert!(nudged.expect("an answer").is_some());
    }
    fleet.settle(lease, &Ok(workers::jobs::Done::Snooze { after: INTERVAL })).await;
    let next = fleet.lease(&fleet.eu).await.expect("it is due at once");
    assert_eq!(next.lease.job, lease.job);
    fleet.settle(next.lease, &Ok(workers::jobs::Done::Snooze { after: INTERVAL })).await;
    assert!(fleet.lease(&fleet.eu).await.is_none(), "once, not for ever");
}
