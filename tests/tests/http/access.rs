//! Every route asks for a key and for its permission.

use std::collections::BTreeSet;

use api::door::access::{Access, TABLE};
use domain::authority::{IdentityKind, Permission, Role, Scopes};
use secrecy::ExposeSecret as _;
use tests::api::{Server, Told, of_app};

/// A path of this route with something in each of its places that does not exist.
fn path(route: &str) -> String {
    route
        .replace("{id}", &uuid::Uuid::nil().to_string())
        .replace("{name}", "nothing")
        .replace("{kind}", "nothing")
        .replace("{app}", "nothing")
        .replace("{host}", "nothing.example")
        .replace("{region}", "xx")
        .replace("{code}", "xx")
}

#[tokio::test]
async fn every_route_refuses_no_key_a_wrong_key_a_revoked_key_and_a_key_without_the_permission() {
    let server = Server::start().await;
    let (revoked_id, revoked) = server.key(IdentityKind::Person, &[Role::Admin], None, Scopes::default()).await;
    server.client().revoke_key(revoked_id.0, &wire::Reason::default()).await.expect("the key is revoked");
    let good = server.admin.expose_secret();
    let wrong = format!("{}{}", &good[..good.len() - 8], "0".repeat(8));
    let mut guarded = 0;
    for (method, route, access) in TABLE {
        let Some((permission, _)) = access.needed() else { continue };
        guarded += 1;
        let place = path(route);
        let told = async |key: Option<&str>| {
            let request = server.bare(method, &place);
            Told::by(match key {
                Some(key) => request.bearer_auth(key),
                None => request,
            })
            .await
        };
        let others: Vec<Permission> = Permission::ALL.into_iter().filter(|other| *other != permission).collect();
        let (_, lacking) = server.key(IdentityKind::Person, &[Role::Admin], Some(&others), Scopes::default()).await;
        for key in [None, Some("nonsense"), Some(wrong.as_str()), Some(revoked.expose_secret())] {
            let told = told(key).await;
            assert_eq!(told.problem(), (401, "unauthenticated".to_owned()), "{method} {route} with {key:?}");
            assert!(told.header("www-authenticate").is_some_and(|text| text.starts_with("Bearer")));
        }
        let refused = told(Some(lacking.expose_secret())).await;
        assert_eq!(refused.problem(), (403, "permission_denied".to_owned()), "{method} {route}");
        assert!(refused.text.contains(permission.as_str()), "the answer names the permission: {}", refused.text);
        // The refusals above are worth something only if a key with exactly this permission comes further.
        let (_, enough) =
            server.key(IdentityKind::Person, &[Role::Admin], Some(&[permission]), Scopes::default()).await;
        if *route != "/v1/events" {
            let passed = told(Some(enough.expose_secret())).await;
            assert!(![401, 403, 405, 500, 503].contains(&passed.status), "{method} {route}: {passed:?}");
        }
    }
    assert!(guarded >= 20, "the table was walked");
}

#[tokio::test]
async fn every_route_refuses_a_key_whose_scopes_it_cannot_keep_to() {
    let server = Server::start().await;
    let node = Scopes { node: Some(BTreeSet::from(["nothing".to_owned()])), app: None };
    let both = Scopes { app: of_app("nothing").app, ..node.clone() };
    let (mut of_apps, mut of_nodes) = (Vec::new(), Vec::new());
    for (method, route, access) in TABLE {
        let Some((permission, _)) = access.needed() else { continue };
        let mut passes = Vec::new();
        for scopes in [of_app("nothing"), node.clone(), both.clone()] {
            let (_, key) = server.key(IdentityKind::Person, &[Role::Admin], Some(&[permission]), scopes).await;
            let told = Told::by(server.bare(method, &path(route)).bearer_auth(key.expose_secret())).await;
            if told.status == 403 {
                assert_eq!(told.problem(), (403, "permission_denied".to_owned()), "{method} {route}");
                assert!(told.text.contains("scopes."), "the answer names the scope: {}", told.text);
            } else {
                assert!(![401, 405, 500, 503].contains(&told.status), "{method} {route}: {told:?}");
            }
            passes.push(told.status != 403);
        }
        let [by_app, by_node, by_both] = passes[..] else { panic!("three keys") };
        assert_eq!(by_both, by_app && by_node, "{method} {route}: a key is held to each of its scopes");
        if by_app {
            of_apps.push(*route);
        }
        if by_node {
            of_nodes.push(*route);
        }
    }
    of_apps.dedup();
    let tenants = [
        "/v1/apps/{app}/instances",
        "/v1/apps/{app}/instances/{host}",
        "/v1/apps/{app}/instances/{host}/why",
        "/v1/apps/{app}/instances/{host}/env",
        "/v1/apps/{app}/instances/{host}/park",
        "/v1/apps/{app}/instances/{host}/restart",
        "/v1/apps/{app}/instances/{host}/wake",
        "/v1/apps/{app}/instances/{host}/move",
        "/v1/apps/{app}/instances/{host}/move/rehearsals/{id}",
        "/v1/apps/{app}/instances/{host}/move/cut",
        "/v1/apps/{app}/instances/{host}/move/unstick",
        "/v1/apps/{app}/instances/{host}/region",
        "/v1/apps/{app}/instances/{host}/moves",
        "/v1/apps/{app}/regions",
        "/v1/moves",
        "/v1/moves/{id}",
        "/v1/moves/{id}/steps",
        "/v1/moves/{id}/receipt",
    ];
    let keys = ["/v1/keys", "/v1/keys/{id}/revoke"];
    assert_eq!(of_apps, [&tenants[..], &keys[..]].concat());
    of_nodes.dedup();
    let nodes = [
        "/v1/edges/{region}",
        "/v1/nodes",
        "/v1/nodes/{id}",
        "/v1/nodes/{id}/enrolment-tokens",
        "/v1/nodes/{id}/enrolment-tokens/revoke",
        "/v1/nodes/{id}/report",
        "/v1/nodes/{id}/rebuild",
    ];
    assert_eq!(of_nodes, [&nodes[..], &keys[..]].concat());
}

#[tokio::test]
async fn what_is_open_needs_no_key_and_nothing_else_is_open() {
    let server = Server::start().await;
    let open: Vec<&str> =
        TABLE.iter().filter(|(_, _, access)| *access == Access::Open).map(|(_, route, _)| *route).collect();
    let pages = ["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/errors/{code}"];
    // A machine has no key: it shows a token's secret, or signs with its own.
    let machines = ["/v1/enrolments", "/v1/nodes/{id}/nonces", "/v1/nodes/{id}/sessions"];
    assert_eq!(open, [&pages[..], &machines[..]].concat());
    for route in &open[..4] {
        assert_eq!(Told::by(server.bare("GET", route)).await.status, 200, "{route}");
    }
}

#[tokio::test]
async fn metrics_need_a_key_unless_the_configuration_opens_them() {
    let config = api::Config { metrics_public: true, ..Server::config() };
    let server = Server::start_with(config).await;
    let told = Told::by(server.bare("GET", "/metrics")).await;
    assert_eq!(told.status, 200);
    assert!(told.text.contains("leasehold_oldest_due_age_seconds"), "{}", told.text);
}

#[tokio::test]
async fn an_expired_key_and_a_disabled_identity_are_refused() {
    let server = Server::start().await;
    let (id, key) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    assert!(server.client_of(&key).queues().await.is_ok());
    sqlx::query("update api_keys set expires_at = lh_now() + interval '1 hour' where id = $1")
        .bind(id.0)
        .execute(server.db.pool())
        .await
        .expect("the key gets an end");
    assert!(server.client_of(&key).queues().await.is_ok());
    server.db.clock().advance(std::time::Duration::from_secs(3601)).await;
    let error = server.client_of(&key).queues().await.expect_err("its time is over");
    assert!(error.problem().is_some_and(|p| p.status == 401 && p.detail.contains("expired")), "{error}");
    let (id, key) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    sqlx::query(
        "update identities set disabled_at = lh_now() from api_keys k where k.id = $1 and identity_id = identities.id",
    )
    .bind(id.0)
    .execute(server.db.pool())
    .await
    .expect("the identity is disabled");
    let error = server.client_of(&key).queues().await.expect_err("its identity is disabled");
    assert!(error.problem().is_some_and(|p| p.status == 401), "{error}");
}

#[tokio::test]
async fn what_does_not_exist_and_what_is_no_id_are_answered_alike() {
    let server = Server::start().await;
    let mut answers = Vec::new();
    for place in [
        format!("/v1/jobs/{}", uuid::Uuid::nil()),
        "/v1/jobs/nonsense".to_owned(),
        "/v1/jobs/nonsense/steps".to_owned(),
        "/v1/workers/nonsense".to_owned(),
        "/v1/queues/nothing".to_owned(),
        "/v1/nothing".to_owned(),
    ] {
        let told = Told::by(server.request("GET", &place).header("x-request-id", "same")).await;
        assert_eq!(told.problem(), (404, "not_found".to_owned()), "{place}");
        assert_eq!(told.header("x-request-id"), Some("same"));
        answers.push(told.text);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_wrong_method_is_told_which_are_right() {
    let server = Server::start().await;
    let told = Told::by(server.request("DELETE", "/v1/jobs")).await;
    assert_eq!(told.problem(), (405, "method_not_allowed".to_owned()));
    assert_eq!(told.header("allow"), Some("POST, GET, HEAD"));
}

#[tokio::test]
async fn a_key_that_calls_too_often_is_told_when_to_come_back_and_others_are_not_slowed() {
    let config = api::Config { rate_per_second: 1, rate_burst: 3, ..Server::config() };
    let server = Server::start_with(config).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let told = Told::by(server.request("GET", "/v1/kinds")).await;
        if told.status == 429 {
            assert_eq!(told.problem().1, "rate_limited");
            assert_eq!(told.header("retry-after"), Some("1"));
        }
        statuses.push(told.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    let (_, other) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    assert!(server.client_of(&other).kinds().await.is_ok());
}
