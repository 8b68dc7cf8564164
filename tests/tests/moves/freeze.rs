//! The budget of a move's freeze: held against cuts that were, and told beside what this one took.

use std::time::Duration;

use domain::audit::Actor;
use domain::ids::MoveId;
use domain::instances::freeze::BETWEEN;
use domain::instances::moves::{self, Accepted, CutWish, MoveState, Wish};
use domain::instances::{self, Refusal};
use workers::failpoint;

use crate::support::{Fleet, HOST, INTERVAL, app, host, region};

impl Fleet {
    async fn start_within(&self, to: &str, wish: Wish) -> MoveId {
        let started = moves::start_if(&mut *self.conn().await, &app(), &host(HOST), to, Actor::System, wish).await;
        started.expect("the move begins").id
    }

    async fn cut_if(&self, force: bool) -> Result<Accepted, instances::Error> {
        let wish = CutWish { force, ..CutWish::default() };
        moves::cut_if(&mut *self.conn().await, &app(), &host(HOST), Actor::System, wish).await
    }

    /// A move from eu to uk that is over, whose cut froze so long.
    async fn put_past_cut(&self, froze: Duration) {
        sqlx::query(
            "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at, ready_at, cut_at,
                                tail_txid, tail_sha256, tail_size, purge_began_at, finished_at, outcome, landed_at,
                                staging_deleted_at)
             select $1, id, 'of-old.example', 'eu', 'uk', 'cutting', '2026-03-14T03:00:00Z', '2026-03-14T03:00:00Z',
                    '2026-03-14T03:00:00Z', '000000000000a3f1', repeat('ab', 32), 4096, '2026-03-14T03:00:00Z',
                    '2026-03-14T03:00:00Z', 'moved', '2026-03-14T03:00:00Z'::timestamptz + $2 * interval '1 second',
                    '2026-03-14T03:10:00Z'
               from instances",
        )
        .bind(MoveId::generate().0)
        .bind(froze.as_secs_f64())
        .execute(self.db.pool())
        .await
        .expect("a move of old");
    }
}

/// What nobody can bear is refused before anything stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_over_its_budget_is_refused_unless_forced_and_the_receipt_tells_predicted_budget_and_actual() {
    let fleet = Fleet::writing().await;
    fleet.until_replica().await;
    let second = |seconds| Some(Duration::from_secs(seconds));
    let (eu, uk) = (region("eu"), region("uk"));
    // The first cut between the two: nothing predicts it, so its budget refuses nothing. It takes six seconds and more.
    let first = fleet.start_within("uk", Wish { freeze_budget: second(1), ..Wish::default() }).await;
    fleet.until_ready(&fleet.eu, first).await;
    fleet.cut_if(false).await.expect("nothing predicts it");
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    fleet.pass_time(Duration::from_secs(6)).await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    let first = fleet.read_move(first).await;
    assert_eq!((first.freeze_budget, first.predicted_freeze, first.cut_forced), (second(1), None, false));
    let froze = (first.landed_at.expect("landed") - first.cut_at.expect("cut")).to_std().expect("forwards");
    assert!(froze >= Duration::from_secs(6), "{froze:?}");

    // What is predicted is that cut, and its parts are that cut's steps.
    let predicted = instances::predict(&mut *fleet.conn().await, &eu, &uk).await.expect("an answer").expect("one cut");
    assert_eq!((predicted.freeze, predicted.cuts, predicted.as_of), (froze, 1, first.id));
    assert_eq!(predicted.parts.iter().map(|part| part.took).sum::<Duration>(), froze);
    let took = |step: &str| predicted.parts.iter().find(|part| part.step == step).map(|part| part.took);
    for step in ["stop_child", "prove_tail", "final_delta", "restore"] {
        assert!(took(step).is_some_and(|took| took > Duration::ZERO), "{step}: {predicted:?}");
    }
    assert!(took(BETWEEN) >= second(6), "the wait for the target's box: {predicted:?}");
    let back = instances::predict(&mut *fleet.conn().await, &uk, &eu).await.expect("an answer");
    assert_eq!(back, None, "the other way is another way");

    // Back, by a budget that nothing predicts, and once more there.
    let there = fleet.start_within("eu", Wish::default()).await;
    fleet.until_ready(&fleet.uk, there).await;
    fleet.cut_if(false).await.expect("without a budget");
    assert_eq!(fleet.run(&fleet.uk).await.result()["outcome"], "moved");
    assert_eq!(fleet.run(&fleet.eu).await.result()["landed"], true);
    let again = fleet.start_within("uk", Wish { freeze_budget: second(3), ..Wish::default() }).await;
    fleet.until_ready(&fleet.eu, again).await;
    let before = fleet.dump().await;
    let refused = fleet.cut_if(false).await;
    let Err(instances::Error::Refused(over @ Refusal::FreezeOverBudget { .. })) = refused else {
        panic!("refused, not {refused:?}");
    };
    assert_eq!(over, Refusal::FreezeOverBudget { to: uk.clone(), predicted: froze, budget: Duration::from_secs(3) });
    assert_eq!(fleet.dump().await, before, "a refused cut changes nothing");
    fleet.cut_if(true).await.expect("somebody wants it all the same");
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    let receipt = instances::receipt_of(&mut *fleet.conn().await, again).await.expect("an answer").expect("the move");
    let moved = receipt.moved;
    let millis = |span: Duration| Duration::from_millis(span.as_millis().try_into().expect("a span"));
    assert_eq!((moved.freeze_budget, moved.predicted_freeze, moved.cut_forced), (second(3), Some(millis(froze)), true));
    let actual = (moved.landed_at.expect("landed") - moved.cut_at.expect("cut")).to_std().expect("forwards");
    assert!(actual > Duration::ZERO && actual < froze, "{actual:?} is its own");
}

/// A move that nobody watches does not freeze its instance for longer than it may.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_cuts_by_itself_stays_ready_until_its_predicted_freeze_is_within_its_budget() {
    let fleet = Fleet::with_instance().await;
    fleet.put_past_cut(Duration::from_millis(9_500)).await;
    let wish = Wish { cut_auto: true, freeze_budget: Some(Duration::from_secs(9)), ..Wish::default() };
    let id = fleet.start_within("uk", wish).await;
    fleet.run(&fleet.eu).await.snoozed();
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    let mut since = None;
    for rounds in 2..=4 {
        assert_eq!(fleet.next_round(&fleet.eu).await.snoozed(), INTERVAL);
        let found = fleet.read_move(id).await;
        assert_eq!(found.state.known(), Some(MoveState::Ready), "it is not cut");
        assert_eq!(found.round, rounds, "rounds go on");
        let obstacle = found.status.obstacle.expect("held up");
        assert_eq!((obstacle.code.as_str(), obstacle.permanent), ("freeze_over_budget", false));
        assert!(obstacle.message.contains("9.500 s") && obstacle.message.contains("budget of 9 s"), "{obstacle:?}");
        let stands = found.status.obstacle_since.expect("since when");
        assert_eq!(*since.get_or_insert(stands), stands, "since the first time");
    }
    let why = instances::why_of(&mut *fleet.conn().await, &app(), &host(HOST)).await.expect("an answer").expect("it");
    let codes: Vec<&str> = why.reasons.iter().map(|reason| reason.code.as_str()).collect();
    assert_eq!(codes[codes.len() - 2..], ["freeze_over_budget", "cuts_by_itself"]);
    assert!(why.reasons.iter().all(|reason| !reason.message.contains("at its next pass")), "{why:?}");

    // Of two in the middle the longer counts; newer cuts were shorter, and now it fits.
    fleet.put_past_cut(Duration::from_secs(2)).await;
    fleet.next_round(&fleet.eu).await.snoozed();
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    fleet.put_past_cut(Duration::from_secs(2)).await;
    fleet.next_round(&fleet.eu).await.snoozed();
    let found = fleet.read_move(id).await;
    assert_eq!(found.state.known(), Some(MoveState::Cutting));
    assert_eq!((found.predicted_freeze, found.cut_forced), (Some(Duration::from_secs(2)), false));
    let code = fleet.obstacle(id).await.map(|(code, _)| code);
    assert_ne!(code.as_deref(), Some("freeze_over_budget"), "that holds it up no longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_cuts_itself_waits_for_a_target_that_could_land_it() {
    const CANNOT: &str = "update nodes set capabilities = capabilities || '{\"exec\": false}' where region = 'uk'";
    const CAN: &str = "update nodes set capabilities = capabilities || '{\"exec\": true}' where region = 'uk'";
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_within("uk", Wish { cut_auto: true, ..Wish::default() }).await;
    fleet.sql(CANNOT).await;
    fleet.run(&fleet.eu).await.snoozed();
    for rounds in 2..=3 {
        assert_eq!(fleet.next_round(&fleet.eu).await.snoozed(), INTERVAL);
        let found = fleet.read_move(id).await;
        assert_eq!(
            (found.state.known(), found.round),
            (Some(MoveState::Ready), rounds),
            "rounds go on, and it is served"
        );
        assert_eq!(fleet.obstacle(id).await, Some(("target_cannot_host".to_owned(), false)));
    }
    fleet.sql(CAN).await;
    fleet.next_round(&fleet.eu).await.snoozed();
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Cutting), "by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_disarmed_while_the_move_becomes_ready_holds_its_cut() {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_within("uk", Wish { cut_auto: true, ..Wish::default() }).await;
    let gate = failpoint::gate_next("move.after_promote", HOST);
    let disarm = async {
        gate.arrived(1).await;
        fleet.sql("update regions set armed = false where code = 'uk'").await;
        gate.allow(1);
    };
    let (done, ()) = tokio::join!(fleet.run(&fleet.eu), disarm);
    done.snoozed();
    assert_eq!(fleet.read_move(id).await.state.known(), Some(MoveState::Ready));
    assert_eq!(fleet.obstacle(id).await, Some(("target_unarmed".to_owned(), true)), "no failure of its job");
}
