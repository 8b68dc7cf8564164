//! Who wrote what of a move.

use domain::audit::{self, Actor};
use domain::authority;
use domain::instances::moves::{self, MoveState};
use domain::instances::record::Record;

use crate::support::{Fleet, HOST, app, host};

/// The acts on the instance, oldest first: what, whether by a person's key, and of which job.
async fn acts(fleet: &Fleet) -> Vec<(String, bool, bool)> {
    let filter = audit::Filter { subject: Some(HOST.to_owned()), ..audit::Filter::default() };
    let mut events = audit::list(&mut *fleet.conn().await, &filter, 100).await.expect("an answer");
    events.reverse();
    let told = events
        .into_iter()
        .filter(|event| event.action.starts_with("instance.move") || event.action == "instance.landed");
    told.map(|event| (event.action, event.identity.is_some(), event.detail.get("fence").is_some())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_are_written_by_their_caller_the_rest_by_the_source_box_and_nothing_by_the_target() {
    // M-009.
    let fleet = Fleet::writing().await;
    let made = authority::bootstrap(&mut *fleet.conn().await).await.expect("a first key");
    let caller = Actor::Key { identity: made.identity, key: made.id };
    fleet.until_replica().await;
    let begin = async || moves::start(&mut *fleet.conn().await, &app(), &host(HOST), "uk", caller).await;
    // One that is given up, one that is cut.
    let first = begin().await.expect("the move begins").id;
    fleet.until_ready(&fleet.eu, first).await;
    moves::abort(&mut *fleet.conn().await, &app(), &host(HOST), caller, None).await.expect("it is taken");
    while fleet.read_move(first).await.finished_at.is_none() {
        fleet.pass_time(crate::support::INTERVAL * 3).await;
        fleet.run(&fleet.eu).await;
    }
    let id = begin().await.expect("the move begins").id;
    fleet.until_ready(&fleet.eu, id).await;
    moves::cut(&mut *fleet.conn().await, &app(), &host(HOST), caller, None).await.expect("it is taken");
    let cutting = fleet.record(HOST).await;
    assert_eq!(cutting.moving.as_ref().map(|moving| moving.state.clone()), Some(MoveState::Cutting.into()));
    assert_eq!(fleet.run(&fleet.eu).await.result()["outcome"], "moved");
    let flipped = fleet.record(HOST).await;
    assert_eq!(fleet.run(&fleet.uk).await.result()["landed"], true);
    // The target's landing is seen where the record is observed, and nowhere else of it.
    let landed = fleet.record(HOST).await;
    assert_eq!(Record { observed_region: flipped.observed_region.clone(), ..landed }, flipped);

    let (verb, own) = ((true, false), (false, true));
    let acted = |action: &str, by: (bool, bool)| (action.to_owned(), by.0, by.1);
    let expected = [
        acted("instance.move", verb),
        acted("instance.move.ready", own),
        acted("instance.move.abort", verb),
        acted("instance.move.aborted", own),
        acted("instance.move", verb),
        acted("instance.move.ready", own),
        acted("instance.move.cut", verb),
        acted("instance.move.flip", own),
        acted("instance.landed", own),
    ];
    let told = acts(&fleet).await;
    assert_eq!(told[told.len() - expected.len()..], expected);
}
