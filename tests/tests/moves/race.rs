//! Races, made: a second session changes a row and holds it, the verb waits on it, the second session commits.

use domain::instances::Refusal;
use domain::instances::moves::{self, Cas, MoveState, StoredState};
use sqlx::Connection as _;

use crate::support::{Fleet, HOST};

#[tokio::test]
async fn of_two_concurrent_starts_one_wins_and_the_other_is_told_of_the_move_in_flight() {
    // M-033: the first has written and not committed; the second waits on the record, then reads again.
    let fleet = Fleet::with_instance().await;
    let mut first = fleet.db.session().await;
    let mut tx = first.begin().await.expect("a transaction");
    let app = crate::support::app();
    let host = crate::support::host(HOST);
    let won = moves::start(&mut tx, &app, &host, "uk", domain::audit::Actor::System).await.expect("the first begins");
    let (second, ()) = tokio::join!(fleet.start_move(HOST), async {
        fleet.db.until_blocked().await;
        tx.commit().await.expect("the first commits");
    });
    let refusal = Fleet::refusal(second);
    let Refusal::InFlight { to, state } = refusal else { panic!("{refusal}") };
    assert_eq!((to.as_str(), state), ("uk", StoredState::Known(MoveState::Preparing)));
    let open: Vec<uuid::Uuid> =
        sqlx::query_scalar("select id from moves").fetch_all(fleet.db.pool()).await.expect("the moves");
    assert_eq!(open, [won.id.0]);
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs where kind = 'instance.move'")
        .fetch_one(fleet.db.pool())
        .await
        .expect("the jobs");
    assert_eq!(jobs, 1, "the loser enqueued nothing");
}

#[tokio::test]
async fn a_start_that_meets_the_hosts_one_place_is_told_of_the_move_in_flight() {
    // M-033: whoever holds the place did not lock the record, so only the unique index stands between two moves.
    let fleet = Fleet::with_instance().await;
    let mut other = fleet.db.session().await;
    let mut tx = other.begin().await.expect("a transaction");
    sqlx::query(
        "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at)
         select gen_random_uuid(), id, host, 'eu', 'uk', 'preparing', lh_now() from instances",
    )
    .execute(&mut *tx)
    .await
    .expect("the place is taken");
    let (second, ()) = tokio::join!(fleet.start_move(HOST), async {
        fleet.db.until_blocked().await;
        tx.commit().await.expect("committed");
    });
    assert_eq!(Fleet::refusal(second).code(), "move_in_flight");
}

#[tokio::test]
async fn a_start_whose_rival_rolled_back_begins_after_all() {
    let fleet = Fleet::with_instance().await;
    let mut first = fleet.db.session().await;
    let mut tx = first.begin().await.expect("a transaction");
    let (app, host) = (crate::support::app(), crate::support::host(HOST));
    moves::start(&mut tx, &app, &host, "uk", domain::audit::Actor::System).await.expect("the first begins");
    let (second, ()) = tokio::join!(fleet.start_move(HOST), async {
        fleet.db.until_blocked().await;
        tx.rollback().await.expect("the first gives up");
    });
    second.expect("decided again on what it read again");
}

#[tokio::test]
async fn a_promotion_that_lost_its_race_promotes_nothing_and_is_told_the_present_state() {
    // M-011, M-061: an abort holds the record when the promotion comes.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let lease = fleet.lease(&fleet.eu).await.expect("a job is due").lease;
    let mut abort = fleet.db.session().await;
    let mut tx = abort.begin().await.expect("a transaction");
    sqlx::query("update instances set revision = revision + 1").execute(&mut *tx).await.expect("the record is held");
    sqlx::query("update moves set state = 'aborting'").execute(&mut *tx).await.expect("the abort");
    let mut conn = fleet.conn().await;
    let (lost, ()) = tokio::join!(moves::promote(&mut conn, lease, id, 1), async {
        fleet.db.until_blocked().await;
        tx.commit().await.expect("the abort commits");
    });
    let serial = fleet.serial("eu").await;
    assert_eq!(lost.expect("an answer"), Cas::Lost(Some(MoveState::Aborting.into())));
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.ready_at), (Some(MoveState::Aborting), None));
    assert!(fleet.journal(id).await.is_empty(), "nothing in the journal");
    // Decided again on what it reads, the job's next pass leaves the state to those who know it.
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    assert_eq!(moves::promote(&mut conn, lease, id, 1).await.expect("an answer"), Cas::Lost(None));
    assert_eq!(fleet.serial("eu").await, serial, "a lost compare-and-set raises no serial");
}

#[tokio::test]
async fn an_abort_during_the_promoting_round_ends_aborting() {
    // M-011, M-061: the abort commits between the round's last listing and its promotion.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    let lease = leased.lease;
    let mut hold = fleet.s3.faults().hold("DeleteObjects", "");
    fleet.s3.objects().put("uk-data", &format!("moves/{HOST}/{}", crate::support::ltx(0, 3, 3)), b"stale");
    let ((), done) = tokio::join!(
        async {
            assert!(hold.reached().await);
            fleet.sql("update moves set state = 'aborting'").await;
            hold.release();
        },
        fleet.handle(&fleet.eu, leased)
    );
    fleet.settle(lease, &done).await;
    let found = fleet.read_move(id).await;
    assert_eq!((found.state.known(), found.ready_at), (Some(MoveState::Aborting), None));
    let steps: Vec<String> = fleet.journal(id).await.into_iter().map(|step| step.step).collect();
    assert_eq!(steps, ["pin_target", "round", "sweep_staging"], "no promotion: it decided again");
}

#[tokio::test]
async fn a_box_that_lost_its_lease_writes_nothing_of_a_move() {
    // I1: every write of a box is refused under a stale fence, and changes nothing.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let stale = fleet.lease(&fleet.eu).await.expect("a job is due").lease;
    let mut conn = fleet.conn().await;
    let round = match moves::begin_round(&mut conn, stale, id).await.expect("still held") {
        Cas::Set(round) => round,
        Cas::Lost(state) => panic!("{state:?}"),
    };
    fleet.db.clock().advance(std::time::Duration::from_secs(31)).await;
    domain::queue::rescue_expired(&mut conn, 10).await.expect("rescued");
    fleet.lease(&fleet.eu).await.expect("another takes it over");
    let before = fleet.dump().await;
    let bucket = crate::support::bucket("uk");
    let key = moves::CopiedKey { key: "k".into(), src_etag: "s".into(), size: 1, copied_etag: "t".into() };
    let obstacle = moves::Obstacle::passing("busy", "busy");
    let end = moves::RoundEnd {
        outcome: "in_sync",
        numbers: Some(moves::RoundNumbers::default()),
        evidence: serde_json::json!({}),
        obstacle: None,
        bearing: moves::policy::Bearing::Good,
    };
    let record = fleet.read_move(id).await.instance;
    let refused = [
        moves::pin_target(&mut conn, stale, id, &bucket).await.err(),
        moves::begin_round(&mut conn, stale, id).await.err(),
        moves::end_round(&mut conn, stale, id, round, &end).await.err(),
        moves::note_obstacle(&mut conn, stale, id, obstacle).await.err(),
        moves::promote(&mut conn, stale, id, 1).await.err(),
        moves::record_keys(&mut conn, stale, id, 0, &[key]).await.err(),
        moves::forget_keys(&mut conn, stale, id, 0, &["k".to_owned()]).await.err(),
        domain::instances::land(&mut conn, stale, record, fleet.eu.id()).await.err(),
    ];
    for (index, error) in refused.into_iter().enumerate() {
        assert!(matches!(error, Some(domain::instances::Error::LeaseLost(_))), "write {index}: {error:?}");
    }
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn a_handler_whose_lease_is_taken_over_stops_and_promotes_nothing() {
    // The round is held at its first copy until another worker owns the job.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    let mut hold = fleet.s3.faults().hold("CopyObject", "");
    let (successor, done) = tokio::join!(
        async {
            assert!(hold.reached().await);
            fleet.pass_time(std::time::Duration::from_secs(31)).await;
            domain::queue::rescue_expired(&mut *fleet.conn().await, 10).await.expect("rescued");
            let successor = fleet.lease(&fleet.eu).await.expect("another takes it over");
            hold.release();
            successor
        },
        fleet.handle(&fleet.eu, leased)
    );
    assert!(matches!(done, Err(workers::jobs::JobError::LeaseLost)), "{done:?}");
    let found = fleet.read_move(id).await;
    assert_eq!(found.state.known(), Some(MoveState::Preparing));
    let journal = fleet.journal(id).await;
    assert_eq!(journal.last().and_then(|step| step.ended_at), None, "the round of the lost lease stays open");
    // The successor begins it anew and finishes.
    let lease = successor.lease;
    let done = fleet.handle(&fleet.eu, successor).await;
    fleet.settle(lease, &done).await;
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    assert!(fleet.is_mirrored(HOST));
}

#[tokio::test]
async fn a_pass_that_is_cut_at_any_effect_ends_in_the_same_state() {
    // I4: the handler dies at each point; the next lease finishes, and nothing is done twice that must be done once.
    for point in [
        "move.after_pin",
        "move.after_begin",
        "objects.before_copy",
        "objects.after_copy",
        "move.before_end",
        "move.before_promote",
        "move.after_promote",
    ] {
        let fleet = Fleet::with_instance().await;
        let id = fleet.start_move(HOST).await.expect("the move begins").id;
        let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
        let gate = workers::failpoint::gate(point, HOST, 0);
        tokio::select! {
            done = fleet.handle(&fleet.eu, leased) => panic!("{point} was not reached: {done:?}"),
            () = gate.arrived(1) => {}
        }
        // The handler is dropped where it stood: the worker died.
        drop(gate);
        fleet.pass_time(std::time::Duration::from_secs(31)).await;
        domain::queue::rescue_expired(&mut *fleet.conn().await, 10).await.expect("rescued");
        fleet.run(&fleet.eu).await;
        let found = fleet.read_move(id).await;
        assert_eq!(found.state.known(), Some(MoveState::Ready), "{point}");
        assert!(fleet.is_mirrored(HOST), "{point}");
        let count = async |step: &str| fleet.journal(id).await.iter().filter(|s| s.step == step).count();
        assert_eq!((count("pin_target").await, count("ready").await), (1, 1), "{point}");
        assert_eq!(fleet.record(HOST).await.revision, Some(3), "{point}: created, moved, ready");
    }
}
