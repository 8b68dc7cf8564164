//! A region's bucket: corrected before anything uses it, never after (M-050).

use tests::api::{Server, Told};
use tests::fleet::{APP, Fleet, box_of, new_instance, put_box, refusal, region, to};
use tests::keys::{BoxKey, seal};
use wire::{Code, RegionRequest};

#[tokio::test]
async fn a_wrong_bucket_is_corrected_while_nothing_uses_the_region_and_never_after() {
    let server = Server::start().await;
    let client = server.client();
    let bucket = |name: &str, signed_for: &str| RegionRequest {
        data_bucket: name.to_owned(),
        data_bucket_region: signed_for.to_owned(),
        ..region("eu")
    };
    client.put_region("eu", &bucket("data-eu", "eu-wset-1")).await.expect("declared, with a slip");
    client.put_region("eu", &bucket("data-ue", "eu-west-1")).await.expect("corrected, with another");
    let right = client.put_region("eu", &bucket("data-eu", "us-east-1")).await.expect("corrected");
    assert_eq!(
        (right.data_bucket.as_deref(), right.data_bucket_region.as_deref()),
        (Some("data-eu"), Some("us-east-1"))
    );
    let told = async || {
        let request = server.request("PUT", "/v1/regions/eu").json(&bucket("data-eu", "eu-west-1"));
        let told = Told::by(request).await;
        assert_eq!(told.problem(), (409, "region_in_use".to_owned()));
        assert_eq!(told.json()["current"]["data_bucket_region"], "us-east-1", "the present state: {told:?}");
        client.put_region("eu", &bucket("data-eu", "us-east-1")).await.expect("the rest of it can be put as before");
        told.json()["detail"].as_str().expect("a sentence").to_owned()
    };
    // Each kind of use by itself: a replica, an instance, a move in flight, a box.
    let execute = async |sql: &'static str| {
        sqlx::query(sql).execute(server.db.pool()).await.expect("written");
    };
    client.put_region("uk", &region("uk")).await.expect("declared");
    execute(
        "insert into instances (id, app, host, kind, backing, role, region, replica_regions, created_at)
         values ('00000000-0000-0000-0000-000000000001', 'acme', 'a.example', 'instance', 'exec', 'original', 'uk',
                 array['eu'], lh_now())",
    )
    .await;
    assert!(told().await.contains("1 instance (e.g. a.example):"));
    execute("update instances set replica_regions = '{}', region = 'eu'").await;
    assert!(told().await.contains("1 instance (e.g. a.example):"));
    execute(
        "insert into moves (id, instance_id, host, from_region, to_region, state, requested_at)
         select id, id, host, 'uk', 'eu', 'preparing', lh_now() from instances",
    )
    .await;
    execute("update instances set region = 'uk'").await;
    assert!(told().await.contains("by 1 move in flight:"));
    execute("update moves set finished_at = lh_now(), outcome = 'aborted'").await;
    client.put_region("eu", &bucket("data-eu", "eu-west-1")).await.expect("a move that is over uses nothing");
    client.put_region("eu", &bucket("data-eu", "us-east-1")).await.expect("and back");
    put_box(&server, "eu").await;
    assert!(told().await.contains("by 1 node (e.g. box-eu):"));
}

#[tokio::test]
async fn a_box_that_registers_and_a_correction_of_its_bucket_see_each_other() {
    // The blocked row: the box has registered and not committed yet when the bucket is corrected.
    let server = Server::start().await;
    let client = server.client();
    client.put_region("eu", &region("eu")).await.expect("declared");
    let mut tx = server.db.pool().begin().await.expect("a transaction");
    domain::nodes::register(&mut tx, &box_of("eu")).await.expect("registered");
    let other = RegionRequest { data_bucket: "elsewhere".to_owned(), ..region("eu") };
    let (told, ()) = tokio::join!(client.put_region("eu", &other), async {
        server.db.until_blocked().await;
        tx.commit().await.expect("committed");
    });
    assert_eq!(refusal(&told.expect_err("a box uses it by now")), (409, Some(Code::RegionInUse)));
}

#[tokio::test]
async fn an_application_sees_to_whom_it_seals_and_is_told_which_capability_is_missing() {
    // M-115.
    let fleet = Fleet::start().await;
    let key = BoxKey::generate();
    let mut new = new_instance("sealed.acme.example", "eu");
    new.env.insert("TENANT_KEY".to_owned(), seal("hunter2", &[&key]));
    let before = fleet.dump().await;
    let error = fleet.client().create_instance(APP, &new, None).await.expect_err("no box holds a key");
    assert_eq!(refusal(&error), (400, Some(Code::RegionCannotHost)));
    assert!(error.problem().is_some_and(|it| it.detail.contains("capability config_key")), "{error}");
    let mut bad = new.clone();
    bad.env.insert("OTHER".to_owned(), "age:hunter2".to_owned());
    let error = fleet.client().create_instance(APP, &bad, None).await.expect_err("no age file");
    assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)));
    assert!(!error.problem().is_some_and(|it| format!("{it:?}").contains("hunter2")), "{error:?}");
    assert_eq!(fleet.dump().await, before);

    let mut spec = box_of("eu");
    spec.capabilities.config_key = vec![key.recipient.clone()];
    let mut conn = fleet.server.db.session().await;
    domain::nodes::register(&mut conn, &spec).await.expect("the box starts again with a key");
    let regions = fleet.client().app_regions(APP).await.expect("the regions").items;
    let told = regions.iter().map(|it| (it.code.as_str(), it.config_key.clone()));
    assert_eq!(told.collect::<Vec<_>>(), [("eu", vec![key.recipient.clone()]), ("uk", Vec::new())]);
    fleet.create(&new).await;
    let error = fleet.client().move_instance(APP, &new.host, &to("uk")).await.expect_err("no key there");
    assert_eq!(refusal(&error), (400, Some(Code::RegionCannotHost)));
    assert!(
        error
            .problem()
            .is_some_and(|it| it.detail.contains("uk has no live box") && it.detail.contains("capability config_key"))
    );
    spec = box_of("uk");
    spec.capabilities.config_key = vec![key.recipient.clone()];
    domain::nodes::register(&mut conn, &spec).await.expect("the box starts again with a key");
    fleet.client().move_instance(APP, &new.host, &to("uk")).await.expect("it may go there now");
    let edges = Told::by(fleet.server.request("GET", "/v1/edges/uk")).await.json();
    assert_eq!(edges["boxes"][0]["capabilities"]["config_key"][0], key.recipient.as_str(), "{edges}");
}
