//! Dry runs of moves over HTTP: one answer at once, one when the box has looked, and nothing begun.

use domain::authority::{IdentityKind, Role, Scopes};
use serde_json::json;
use tests::api::{Told, of_app};
use tests::fleet::{APP, DOOR, Fleet, HOST, answer_look, box_of, five_objects, new_instance, put_worker, refusal, to};
use tests::keys::{BoxKey, seal};
use wire::{Code, MoveRequest};

fn dry(region: &str) -> MoveRequest {
    MoveRequest { dry_run: true, ..to(region) }
}

/// Everything but what jobs write.
async fn world(fleet: &Fleet) -> Vec<String> {
    let is_of_jobs = |row: &String| row.contains("\"instance.rehearse\"");
    fleet.dump_of_world().await.into_iter().filter(|row| !is_of_jobs(row)).collect()
}

#[tokio::test]
async fn a_dry_run_is_answered_at_once_and_by_the_box_and_begins_nothing() {
    let fleet = Fleet::with_instance().await;
    let (server, client) = (&fleet.server, fleet.client());
    put_worker(server.db.pool(), &fleet.eu).await;
    let before = world(&fleet).await;
    let told = Told::by(server.request("POST", DOOR).json(&dry("uk"))).await;
    assert_eq!(told.status, 200, "{told:?}");
    let answer = told.json();
    let id = answer["look"]["job_id"].as_str().expect("a box looks").to_owned();
    assert_eq!(told.header("location"), Some(format!("{DOOR}/rehearsals/{id}").as_str()));
    assert_eq!((&answer["would_begin"], &answer["from"], &answer["to"]), (&json!(true), &json!("eu"), &json!("uk")));
    let gates = answer["gates"].as_array().expect("gates");
    assert_eq!(gates.len(), 14);
    assert!(gates.iter().all(|gate| gate["verdict"] == "passed" && gate["code"].is_null()), "{gates:?}");
    assert_eq!((&answer["predicted_freeze"], &answer["within_budget"]), (&json!(null), &json!(null)));
    assert_eq!(answer["boxes"][0]["identity"], "box-uk");
    assert_eq!(
        (&answer["boxes"][0]["could_land"], &answer["boxes"][0]["capabilities"]["exec"]),
        (&json!(true), &json!(true))
    );
    let id: uuid::Uuid = id.parse().expect("an id");
    let waiting = client.move_look(APP, HOST, id).await.expect("found");
    assert_eq!((waiting.state.as_str(), waiting.to.as_str(), waiting.report), ("waiting", "uk", None));
    assert_eq!(answer_look(server.db.pool(), &fleet.eu, five_objects(&fleet.eu)).await, id);
    let found = client.move_look(APP, HOST, id).await.expect("found");
    let report = found.report.expect("told");
    assert_eq!((found.state.as_str(), report.identity.as_str()), ("told", "box-eu"));
    assert_eq!((report.source.map(|it| it.keys), report.first_round.map(|it| it.requests)), (Some(5), Some(9)));
    assert_eq!(world(&fleet).await, before, "no record, no serial, no move, no audit: nothing was done");
    client.move_instance(APP, HOST, &to("uk")).await.expect("and a move begins as ever");
}

#[tokio::test]
async fn a_dry_run_tells_every_refusal_at_once_and_the_freeze_in_its_parts_against_the_budget() {
    let fleet = Fleet::with_instance().await;
    let client = fleet.client();
    client.move_instance(APP, HOST, &to("uk")).await.expect("begun");
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), cut_at = '2026-03-14T03:00:00Z',
                    tail_txid = '000000000000a3f1', tail_sha256 = repeat('ab', 32), tail_size = 4096,
                    purge_began_at = lh_now(), finished_at = lh_now(), outcome = 'moved',
                    landed_at = '2026-03-14T03:00:09.5Z', staging_deleted_at = lh_now();
             insert into move_steps (move_id, job_id, fence, step, started_at, ended_at, outcome)
             select m.id, gen_random_uuid(), 7, s, '2026-03-14T03:00:00Z'::timestamptz + b * interval '1 second',
                    '2026-03-14T03:00:00Z'::timestamptz + e * interval '1 second', 'done'
               from moves m, (values ('stop_child', 1, 3), ('restore', 5, 9)) as t (s, b, e);
             update instances set hibernate = false; update regions set armed = false where code = 'uk'",
        )
        .await;
    let told =
        client.rehearse_move(APP, HOST, &MoveRequest { freeze_budget: Some(9), ..to("uk") }).await.expect("told");
    let refused: Vec<&str> = told.gates.iter().filter_map(|gate| gate.code.as_deref()).collect();
    assert_eq!((told.would_begin, refused), (false, vec!["hibernate_required", "region_unarmed"]));
    let freeze = told.predicted_freeze.expect("one cut");
    let parts: Vec<(&str, i64)> = freeze.parts.iter().map(|part| (part.step.as_str(), part.took_ms)).collect();
    assert_eq!((freeze.freeze_ms, freeze.cuts), (9_500, 1));
    assert_eq!(parts, [("stop_child", 2_000), ("restore", 4_000), ("between", 3_500)]);
    assert_eq!((told.freeze_budget, told.within_budget), (Some(9), Some(false)));
    let error = client.move_instance(APP, HOST, &to("uk")).await.expect_err("refused");
    assert_eq!(refusal(&error), (400, Some(Code::HibernateRequired)), "a move is told the first");
    let mars = client.rehearse_move(APP, HOST, &to("mars")).await.expect("told");
    assert_eq!((mars.look, mars.boxes.len(), mars.predicted_freeze), (None, 0, None));
    let unasked = mars.gates.iter().filter(|gate| gate.verdict == "unasked").count();
    assert_eq!((mars.would_begin, unasked), (false, 4), "what had nothing to look at says so: {:?}", mars.gates);
}

#[tokio::test]
async fn a_dry_run_is_asked_by_whoever_may_move_and_its_look_is_read_by_who_sees_the_instance() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let before = fleet.dump_of_world().await;
    let (_, instance) = server.key(IdentityKind::Instance, &[], None, of_app(APP)).await;
    let (_, viewer) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    for key in [&instance, &viewer] {
        let error = server.client_of(key).rehearse_move(APP, HOST, &to("uk")).await.expect_err("not its door");
        assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)));
    }
    let (_, other) = server.key(IdentityKind::App, &[], None, of_app("other")).await;
    for error in [
        server.client_of(&other).rehearse_move(APP, HOST, &to("uk")).await.expect_err("not its application"),
        fleet.client().rehearse_move(APP, "nobody.example", &to("uk")).await.expect_err("no such host"),
    ] {
        assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    }
    let told = Told::by(server.request("POST", DOOR).json(&json!({"region": "uk", "dry_run": "yes"}))).await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()));
    let stale = server.request("POST", DOOR).header("if-match", "\"999\"").json(&dry("uk"));
    assert_eq!(Told::by(stale).await.problem(), (412, "stale_revision".to_owned()));
    assert_eq!(fleet.dump_of_world().await, before, "a refused call changes nothing, and enqueues no look");

    let look = fleet.client().rehearse_move(APP, HOST, &to("uk")).await.expect("told").look.expect("a box looks");
    server.client_of(&viewer).move_look(APP, HOST, look.job_id).await.expect("who sees the instance");
    let error = server.client_of(&other).move_look(APP, HOST, look.job_id).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let job = fleet.client().moves_of(APP, HOST).await.expect("listed").items[0].job_id.expect("its job");
    for id in [job, uuid::Uuid::nil()] {
        let error = fleet.client().move_look(APP, HOST, id).await.expect_err("no look");
        assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    }
}

#[tokio::test]
async fn a_dry_run_of_sealed_values_names_the_boxes_that_open_them() {
    // M-115.
    let fleet = Fleet::start().await;
    let key = BoxKey::generate();
    let mut conn = fleet.server.db.session().await;
    let mut spec = box_of("eu");
    spec.capabilities.config_key = vec![key.recipient.clone()];
    domain::nodes::register(&mut conn, &spec).await.expect("the box starts again with a key");
    let mut new = new_instance(HOST, "eu");
    new.env.insert("TENANT_KEY".to_owned(), seal("hunter2", &[&key]));
    fleet.create(&new).await;
    let told = fleet.client().rehearse_move(APP, HOST, &to("uk")).await.expect("told");
    let refused: Vec<&str> =
        told.gates.iter().filter(|it| it.verdict == "refused").map(|it| it.gate.as_str()).collect();
    assert_eq!((told.would_begin, refused), (false, vec!["region_key"]));
    assert_eq!((told.boxes[0].live, told.boxes[0].could_land), (true, false), "no box there opens them");

    spec = box_of("uk");
    spec.identity = "box-uk-2".to_owned();
    spec.capabilities.config_key = vec![key.recipient.clone()];
    domain::nodes::register(&mut conn, &spec).await.expect("a box with a key");
    let told = fleet.client().rehearse_move(APP, HOST, &to("uk")).await.expect("told");
    let boxes: Vec<(&str, bool)> = told.boxes.iter().map(|it| (it.identity.as_str(), it.could_land)).collect();
    assert_eq!((told.would_begin, boxes), (true, vec![("box-uk", false), ("box-uk-2", true)]));
    let edges = Told::by(fleet.server.request("GET", "/v1/edges/uk")).await.json();
    for (told, edge) in told.boxes.iter().zip(edges["boxes"].as_array().expect("boxes")) {
        assert_eq!(json!(told.capabilities), edge["capabilities"], "in the words of the edges document");
    }
    assert_eq!(told.boxes[1].capabilities["config_key"], json!([key.recipient]));
}
