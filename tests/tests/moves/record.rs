//! The record and its `move`.

use std::collections::BTreeSet;
use std::path::Path;

use domain::instances::moves::MoveState;
use domain::instances::{Record, RecordMove};
use serde_json::{Value, json};

use crate::support::{Fleet, HOST};

#[test]
fn records_of_every_age_round_trip_byte_identical() {
    // M-002, M-012: what a version did not know yet stays absent, what this one does not know comes last, sorted.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/moves/golden");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the golden files") {
        let path = entry.expect("a golden file").path();
        let text = std::fs::read_to_string(&path).expect("a golden file");
        let record: Record = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let again = serde_json::to_string_pretty(&record).expect("a record is JSON") + "\n";
        assert_eq!(again, text, "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 10, "the golden files are there: {seen}");
}

#[test]
fn fields_are_written_in_one_order_however_they_came() {
    let text = r#"{"zebra":1,"region":"eu","move":{"state":"ready","ready_at":"2026-03-14T02:31:44Z",
        "requested_at":"2026-03-14T02:29:14Z","to":"uk"},"aa":{"b":1,"a":2},"kind":"instance","app":"acme","host":"a.b"}"#;
    let record: Record = serde_json::from_str(text).expect("a record");
    assert_eq!(
        serde_json::to_string(&record).expect("JSON"),
        r#"{"host":"a.b","app":"acme","kind":"instance","region":"eu","move":{"to":"uk","state":"ready","requested_at":"2026-03-14T02:29:14Z","ready_at":"2026-03-14T02:31:44Z"},"aa":{"a":2,"b":1},"zebra":1}"#
    );
}

#[test]
fn a_move_on_the_wire_has_exactly_four_fields_and_four_states() {
    // M-003, M-004.
    let schema = schemars::schema_for!(RecordMove).to_value();
    let fields: BTreeSet<&str> =
        schema["properties"].as_object().expect("an object's schema").keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(["to", "state", "requested_at", "ready_at"]));
    let required: BTreeSet<&str> =
        schema["required"].as_array().expect("required fields").iter().filter_map(Value::as_str).collect();
    assert_eq!(required, BTreeSet::from(["to", "state", "requested_at"]), "ready_at is absent before ready");
    let words: Vec<&str> = MoveState::ALL.into_iter().map(MoveState::as_str).collect();
    assert_eq!(words, ["preparing", "ready", "cutting", "aborting"]);
}

#[tokio::test]
async fn the_states_in_the_database_are_the_states_of_the_program() {
    let fleet = Fleet::start().await;
    let rule: String =
        sqlx::query_scalar("select pg_get_constraintdef(oid) from pg_constraint where conname = 'moves_state_check'")
            .fetch_one(fleet.db.pool())
            .await
            .expect("the constraint");
    let words: BTreeSet<&str> = rule.split('\'').skip(1).step_by(2).collect();
    assert_eq!(words, MoveState::ALL.into_iter().map(MoveState::as_str).collect());
}

#[tokio::test]
async fn a_record_shows_its_move_only_while_one_is_in_flight() {
    // M-001, M-005, M-006, M-007, M-019, M-034.
    let fleet = Fleet::with_instance().await;
    let shown = async || serde_json::to_value(fleet.record(HOST).await).expect("JSON");
    let before = shown().await;
    assert!(before.get("move").is_none(), "{before}");
    let started = fleet.start_move(HOST).await.expect("the move begins");
    let preparing = shown().await;
    let requested_at = preparing["move"]["requested_at"].clone();
    assert_eq!(preparing["move"], json!({"to": "uk", "state": "preparing", "requested_at": requested_at}));
    assert_eq!(preparing["move"], json!(started.moving), "the answer of the verb is what the record shows");
    assert_eq!(preparing["region"], "eu");
    fleet.run(&fleet.eu).await;
    let ready = shown().await;
    assert_eq!(ready["move"]["state"], "ready");
    assert_eq!(ready["move"]["requested_at"], requested_at, "fixed for the move");
    let ready_at = ready["move"]["ready_at"].clone();
    assert!(ready_at.is_string());
    assert_eq!(ready["region"], "eu", "the source until a cut completes");
    fleet.next_round(&fleet.eu).await;
    assert_eq!(shown().await["move"], ready["move"], "later rounds change nothing of it");
    fleet.sql("update moves set state = 'cutting'").await;
    assert_eq!(shown().await["move"]["ready_at"], ready_at, "kept in cutting");
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    assert!(shown().await.get("move").is_none());
}

#[tokio::test]
async fn a_state_that_this_version_does_not_know_is_shown_and_nobody_acts_on_it() {
    // M-004: a newer version wrote a word that this one does not know.
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    fleet.sql("alter table moves drop constraint moves_state_check; update moves set state = 'hovering'").await;
    assert_eq!(json!(fleet.record(HOST).await)["move"]["state"], "hovering");
    fleet.s3.faults().reset_record();
    let before = fleet.dump_without(&["jobs", "job_attempts", "lease_batches", "moves"]).await;
    let ran = fleet.run(&fleet.eu).await;
    assert_eq!(ran.snoozed(), 4 * crate::support::INTERVAL);
    assert_eq!(fleet.s3.faults().record(), [], "no request to any store");
    assert_eq!(
        fleet.dump_without(&["jobs", "job_attempts", "lease_batches", "moves"]).await,
        before,
        "no write but the status"
    );
    assert_eq!(fleet.obstacle(id).await, Some(("state_unknown".to_owned(), true)));
    assert_eq!(fleet.read_move(id).await.state.as_str(), "hovering");
    let refusal = Fleet::refusal(fleet.start_move(HOST).await);
    assert_eq!(refusal.code(), "move_in_flight");
}

#[tokio::test]
async fn a_state_whose_verbs_do_not_exist_yet_is_left_alone() {
    let fleet = Fleet::with_instance().await;
    let id = fleet.start_move(HOST).await.expect("the move begins").id;
    for state in ["cutting", "aborting"] {
        sqlx::query("update moves set ready_at = lh_now(), state = $1")
            .bind(state)
            .execute(fleet.db.pool())
            .await
            .expect("set");
        fleet.s3.faults().reset_record();
        fleet.pass_time(4 * crate::support::INTERVAL).await;
        fleet.run(&fleet.eu).await.snoozed();
        assert_eq!(fleet.s3.faults().record(), [], "{state}");
        assert_eq!(fleet.read_move(id).await.state.as_str(), state);
    }
}

#[tokio::test]
async fn fields_that_this_version_does_not_know_survive_a_whole_move() {
    // M-012.
    let fleet = Fleet::with_instance().await;
    let extra = json!({"zebra": "last", "aa": {"zz": {"y": 1.5, "x": "é"}, "b": 2}, "x": [1, {"b": null, "a": true}]});
    sqlx::query("update instances set extra = $1").bind(&extra).execute(fleet.db.pool()).await.expect("set");
    fleet.start_move(HOST).await.expect("the move begins");
    for _ in 0..3 {
        fleet.run(&fleet.eu).await;
        fleet.pass_time(crate::support::INTERVAL).await;
    }
    let text = serde_json::to_string(&fleet.record(HOST).await).expect("JSON");
    let end = r#","aa":{"b":2,"zz":{"x":"é","y":1.5}},"x":[1,{"a":true,"b":null}],"zebra":"last"}"#;
    assert!(text.ends_with(end), "{text}");
    assert!(text.contains(r#""state":"ready""#), "{text}");
}

#[tokio::test]
async fn an_edit_of_the_environment_survives_every_write_of_a_move() {
    // M-010: each write names its own columns; an edit that commits between any two of them stays.
    let fleet = Fleet::with_instance().await;
    let edit = async |value: &str| {
        sqlx::query("update instances set env = jsonb_build_object('EDIT', $1::text), revision = revision + 1")
            .bind(value)
            .execute(fleet.db.pool())
            .await
            .expect("the edit");
    };
    let assert_kept = async |value: &str| {
        let record = fleet.record(HOST).await;
        assert_eq!(json!(record.env), json!({"EDIT": value}));
        record.revision.expect("a revision")
    };
    edit("before the verb").await;
    fleet.start_move(HOST).await.expect("the move begins");
    let after_verb = assert_kept("before the verb").await;
    // The round is held at its first copy: its beginning is written, its end and the promotion are not.
    let mut hold = fleet.s3.faults().hold("CopyObject", "");
    let leased = fleet.lease(&fleet.eu).await.expect("a job is due");
    let lease = leased.lease;
    let ((), done) = tokio::join!(
        async {
            hold.reached().await;
            edit("during the round").await;
            hold.release();
        },
        fleet.handle(&fleet.eu, leased)
    );
    fleet.settle(lease, &done).await;
    let after_ready = assert_kept("during the round").await;
    assert_eq!(after_ready, after_verb + 2, "the edit and the promotion count once each");
    assert_eq!(json!(fleet.record(HOST).await)["move"]["state"], "ready");
    edit("after ready").await;
    fleet.next_round(&fleet.eu).await;
    assert_eq!(assert_kept("after ready").await, after_ready + 1, "a round changes no record");
}
