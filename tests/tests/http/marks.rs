//! `If-Match` on everything that changes something with a revision.

use api::door::access::TABLE;
use domain::authority::{IdentityKind, Role, Scopes};
use serde_json::json;
use tests::api::Told;
use tests::fleet::{APP, DOOR, Fleet, HOST, region};

/// What creates has no revision before.
const CREATES: [&str; 9] = [
    "/v1/jobs",
    "/v1/jobs/batch",
    "/v1/apps/{app}/instances",
    "/v1/keys",
    "/v1/nodes",
    "/v1/nodes/{id}/enrolment-tokens",
    "/v1/enrolments",
    "/v1/nodes/{id}/nonces",
    "/v1/nodes/{id}/sessions",
];
/// What is on or off has no revision: a call that finds it so changes nothing.
const SWITCHES: [&str; 7] = [
    "/v1/queues/{name}/pause",
    "/v1/queues/{name}/resume",
    "/v1/kinds/{kind}/pause",
    "/v1/kinds/{kind}/resume",
    "/v1/apps/{app}/instances/{host}/park",
    "/v1/apps/{app}/instances/{host}/wake",
    // The outstanding token is there or not; the record is as before.
    "/v1/nodes/{id}/enrolment-tokens/revoke",
];
/// What carries its own order in its body.
const ORDERED: [&str; 1] = ["/v1/nodes/{id}/report"];

#[tokio::test]
async fn every_change_of_what_has_a_revision_refuses_a_stale_one_and_changes_nothing() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let new = wire::NewJob::new("test.free", json!({}));
    let enqueued = async || server.client().enqueue(&new, None).await.expect("enqueued").value;
    let (one, other, third) = (enqueued().await, enqueued().await, enqueued().await);
    for ended in [other.id, third.id] {
        server.client().cancel(ended, &wire::Reason::default(), None).await.expect("cancelled");
    }
    let (key, _) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let uk = server.client().regions().await.expect("the regions").items;
    let serial = uk.iter().find(|region| region.code == "uk").and_then(|region| region.serial).expect("declared");
    let record = fleet.client().instance(APP, HOST).await.expect("found").revision;
    let limits = wire::LimitsRequest { running: Some(5), reason: Some("x".to_owned()), ..Default::default() };
    server.client().set_limits("mail", &limits, None).await.expect("set");
    let night = json!({"host": HOST, "reason": "x"});
    // Each route with something to change, its body, and its revision.
    let changes = [
        ("/v1/jobs/{id}/cancel", format!("/v1/jobs/{}/cancel", one.id), json!({}), 1),
        ("/v1/jobs/{id}/retry", format!("/v1/jobs/{}/retry", other.id), json!({}), 2),
        ("/v1/jobs/{id}/run-again", format!("/v1/jobs/{}/run-again", third.id), json!({}), 2),
        ("/v1/queues/{name}/limits", "/v1/queues/mail/limits".to_owned(), json!(limits), 1),
        (
            "/v1/apps/{app}/instances/{host}/env",
            format!("/v1/apps/{APP}/instances/{HOST}/env"),
            json!({"env": {"MODE": "quiet"}}),
            record,
        ),
        (
            "/v1/apps/{app}/instances/{host}/restart",
            format!("/v1/apps/{APP}/instances/{HOST}/restart"),
            json!({}),
            record + 1,
        ),
        ("POST /v1/apps/{app}/instances/{host}/move", DOOR.to_owned(), json!({"region": "uk"}), record + 2),
        ("DELETE /v1/apps/{app}/instances/{host}/move", DOOR.to_owned(), json!({}), record + 3),
        ("/v1/apps/{app}/instances/{host}/move/cut", format!("{DOOR}/cut"), json!({}), record + 4),
        ("/v1/apps/{app}/instances/{host}/move/unstick", format!("{DOOR}/unstick"), night.clone(), record + 5),
        (
            "/v1/apps/{app}/instances/{host}/region",
            format!("/v1/apps/{APP}/instances/{HOST}/region"),
            json!({"region": "uk", "host": HOST, "reason": "x"}),
            record + 6,
        ),
        ("/v1/regions/{code}", "/v1/regions/uk".to_owned(), json!(region("uk")), serial + 1),
        ("/v1/keys/{id}/revoke", format!("/v1/keys/{key}/revoke"), json!({}), 1),
    ];
    let revised = |route: &str| ![&CREATES[..], &SWITCHES, &ORDERED].concat().contains(&route);
    let routes = TABLE.iter().filter(|(method, route, _)| *method != "GET" && revised(route));
    let mut walked = 0;
    for (method, route, _) in routes {
        walked += 1;
        let both = format!("{method} {route}");
        let tried = changes.iter().find(|change| change.0 == *route || change.0 == both);
        let (_, place, body, revision) = tried.unwrap_or_else(|| panic!("{both} is not tried here"));
        if route.ends_with("/cut") {
            // The abort before it took the move out of the one state in which it may be cut.
            fleet.sql("update moves set state = 'ready', ready_at = lh_now()").await;
        }
        if route.ends_with("/region") {
            fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'; delete from routes").await;
        }
        let call = async |mark: i64| {
            let request = server.request(method, place).header("if-match", format!("\"{mark}\""));
            Told::by(request.json(body)).await
        };
        let world = fleet.dump().await;
        for stale in [revision - 1, revision + 1] {
            let told = call(stale).await;
            assert_eq!(told.problem(), (412, "stale_revision".to_owned()), "{method} {route}");
            let current = &told.json()["current"];
            let shown = current["revision"].as_i64().or(current["serial"].as_i64());
            assert_eq!(shown, Some(*revision), "{method} {route} tells the present state: {told:?}");
        }
        let malformed = server.request(method, place).header("if-match", "7").json(body);
        assert_eq!(Told::by(malformed).await.problem().0, 400, "{method} {route}");
        assert_eq!(fleet.dump().await, world, "{method} {route}");
        let told = call(*revision).await;
        assert!((200..300).contains(&told.status), "{method} {route}: {told:?}");
        // What the change made anew is marked as its first revision.
        let mark = if told.status == 201 { 1 } else { revision + 1 };
        assert_eq!(told.header("etag"), Some(format!("\"{mark}\"").as_str()), "{method} {route}");
    }
    assert_eq!(walked, changes.len());
    // A revoked key stays as it is, and says so by its mark.
    let again = Told::by(server.request("POST", &format!("/v1/keys/{key}/revoke"))).await;
    assert_eq!((again.status, again.header("etag")), (200, Some("\"2\"")));
}
