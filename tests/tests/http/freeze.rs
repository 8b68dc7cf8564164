//! The budget of a move's freeze at the doors.

use std::time::Duration;

use serde_json::json;
use tests::api::Told;
use tests::fleet::{APP, DOOR, Fleet, HOST, put_worker, refusal};
use wire::{Code, MoveRequest};

/// A move that is over and froze for 9.5 seconds, and one that is ready.
const NINE_AND_A_HALF: &str = "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at, ready_at,
        cut_at, tail_txid, tail_sha256, tail_size, purge_began_at, finished_at, outcome, landed_at, staging_deleted_at)
    select '01000000-0000-7000-8000-000000000001', id, 'of-old.example', 'eu', 'uk', 'cutting', t, t, t, '000000000000a3f1', repeat('ab', 32), 4096,
           t, t, 'moved', t + interval '9.5 seconds', t + interval '1 minute'
      from instances, (values ('2026-03-14T03:00:00Z'::timestamptz)) as v (t)";

fn within(seconds: u32) -> MoveRequest {
    MoveRequest { region: "uk".to_owned(), freeze_budget: Some(seconds), ..MoveRequest::default() }
}

#[tokio::test]
async fn a_budget_out_of_its_bounds_is_refused_and_changes_nothing() {
    let fleet = Fleet::with_instance().await;
    let before = fleet.dump().await;
    for seconds in [0, 86_401, u32::MAX] {
        let told = Told::by(fleet.server.request("POST", DOOR).json(&within(seconds))).await;
        assert_eq!(told.problem(), (422, "validation_failed".to_owned()), "{seconds}");
        assert_eq!(told.json()["errors"][0]["pointer"], "/freeze_budget", "{told:?}");
    }
    for budget in [json!("10s"), json!(1.5), json!(-1), json!(true)] {
        let body = json!({"region": "uk", "freeze_budget": budget});
        let told = Told::by(fleet.server.request("POST", DOOR).json(&body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{body}");
    }
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn a_cut_over_its_budget_is_409_with_both_numbers_and_the_record_and_goes_by_force() {
    let fleet = Fleet::with_instance().await;
    put_worker(fleet.server.db.pool(), &fleet.eu).await;
    let client = fleet.client();
    client.move_instance(APP, HOST, &within(10)).await.expect("begun");
    let id = client.moves_of(APP, HOST).await.expect("listed").items[0].id;
    assert_eq!(client.get_move(id).await.expect("found").freeze_budget, Some(10));
    fleet.sql("update moves set state = 'ready', ready_at = lh_now()").await;
    let why = async || client.instance_why(APP, HOST).await.expect("an answer").reasons.remove(0);
    let unknown = why().await;
    assert_eq!(unknown.code, "ready");
    assert!(unknown.message.contains("so its budget of 10 s refuses nothing"), "{unknown:?}");
    fleet.sql(NINE_AND_A_HALF).await;
    assert_eq!(why().await.code, "ready", "9.5 s are within 10 s");
    fleet.sql("update moves set freeze_budget_seconds = 9 where finished_at is null").await;
    let over = why().await;
    assert_eq!(over.code, "freeze_over_budget");
    assert!(over.todo.as_deref().is_some_and(|todo| todo.contains("--force")), "{over:?}");

    let before = fleet.dump().await;
    let error = client.cut_move(APP, HOST).await.expect_err("over its budget");
    assert_eq!(refusal(&error), (409, Some(Code::FreezeOverBudget)), "{error}");
    let problem = error.problem().expect("a problem");
    assert!(problem.detail.contains("9.500 s") && problem.detail.contains("budget of 9 s"), "{problem}");
    assert_eq!(problem.current.as_ref().map(|it| &it["move"]["state"]), Some(&json!("ready")));
    let cut = format!("{DOOR}/cut");
    let told = Told::by(fleet.server.request("POST", &cut).json(&json!({"force": false}))).await;
    assert_eq!(told.problem(), (409, "freeze_over_budget".to_owned()));
    for body in [json!({"force": "yes"}), json!({"forced": true}), json!([])] {
        let told = Told::by(fleet.server.request("POST", &cut).json(&body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{body}");
    }
    let nobody = format!("/v1/apps/{APP}/instances/nobody.example/move/cut");
    let told = Told::by(fleet.server.request("POST", &nobody).json(&json!({"forced": true}))).await;
    assert_eq!(told.problem(), (404, "not_found".to_owned()), "whether it exists comes before the body");
    assert_eq!(fleet.dump().await, before, "a refused call changes nothing");

    assert_eq!(client.force_cut(APP, HOST).await.expect("forced").state, "cutting");
    let cut = client.get_move(id).await.expect("found");
    assert_eq!((cut.freeze_budget, cut.predicted_freeze_ms, cut.cut_forced), (Some(9), Some(9_500), true));
    let acts = fleet.server.client().audit(Some("instance"), Some(HOST), None, None).await.expect("the trail").items;
    assert_eq!((&acts[0].action, &acts[0].detail["forced"]), (&"instance.move.cut".to_owned(), &json!(true)));
    assert_eq!(acts[0].detail["predicted_freeze_ms"], 9_500);
    fleet.server.db.clock().advance(Duration::from_secs(4)).await;
    fleet
        .sql(
            "update moves set tail_txid = '000000000000a3f1', tail_sha256 = repeat('ab', 32), tail_size = 4096,
                    purge_began_at = lh_now(), finished_at = lh_now(), outcome = 'moved',
                    landed_at = cut_at + interval '4 seconds' where finished_at is null",
        )
        .await;
    let receipt = client.move_receipt(id).await.expect("the receipt");
    assert_eq!(receipt.frozen_ms, Some(4_000));
    assert_eq!((receipt.moved.predicted_freeze_ms, receipt.moved.freeze_budget), (Some(9_500), Some(9)));
}
