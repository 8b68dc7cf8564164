//! The records of nodes.

use std::collections::BTreeSet;

use domain::authority::{IdentityKind, Permission, Role, Scopes};
use tests::api::{Server, Told};
use tests::enrolment::{new_node, put_node, server};
use tests::fleet::{box_of, put_box, refusal};
use wire::{Code, NewNode};

fn of_node(identity: &str) -> Scopes {
    Scopes { node: Some(BTreeSet::from([identity.to_owned()])), app: None }
}

async fn key_of(server: &Server, scopes: Scopes) -> wire::Client {
    let may = [Permission::NodesRead, Permission::NodesWrite];
    server.client_of(&server.key(IdentityKind::Person, &[Role::Admin], Some(&may), scopes).await.1)
}

#[tokio::test]
async fn a_record_is_made_once_and_audited_and_shown() {
    let server = server().await;
    let make = async || {
        let body = NewNode { display_name: Some("Box one".to_owned()), ..new_node("box-1") };
        Told::by(server.request("POST", "/v1/nodes").header("idempotency-key", "k").json(&body)).await
    };
    let (first, again) = (make().await, make().await);
    assert_eq!((first.status, &first.text), (201, &again.text));
    for mark in ["etag", "location"] {
        assert!(first.header(mark).is_some() && first.header(mark) == again.header(mark), "{mark}: {again:?}");
    }
    let place = first.header("location").expect("its place").to_owned();
    let shown = Told::by(server.request("GET", &place)).await;
    assert_eq!((shown.status, shown.header("etag"), shown.json()), (200, Some("\"1\""), first.json()));
    let node = shown.json();
    assert_eq!(
        (&node["lifecycle"], &node["generation"], &node["incarnation"]),
        (&"active".into(), &1.into(), &0.into())
    );
    assert!(node["seen_at"].is_null() && node["live"] == false && node["enrolled_at"].is_null(), "{node}");

    let taken = server.client().create_node(&new_node("box-1"), None).await.expect_err("one record an identity");
    assert_eq!(refusal(&taken), (409, Some(Code::NameTaken)));
    let acts = server.client().audit(Some("node"), node["id"].as_str(), None, None).await.expect("the acts").items;
    assert_eq!(acts.iter().map(|act| act.action.as_str()).collect::<Vec<_>>(), ["node.create"]);
}

#[tokio::test]
async fn an_unknown_region_or_a_bad_name_makes_no_record() {
    let server = server().await;
    for region in ["xx", "no region"] {
        let new = NewNode { region: region.to_owned(), ..new_node("box-1") };
        let error = server.client().create_node(&new, None).await.expect_err("no such region");
        assert_eq!(refusal(&error), (400, Some(Code::RegionUnknown)));
    }
    for (new, pointer) in [
        (new_node(" box"), "/identity"),
        (NewNode { hostname: "a b".to_owned(), ..new_node("box") }, "/hostname"),
        (NewNode { display_name: Some(String::new()), ..new_node("box") }, "/display_name"),
    ] {
        let told = Told::by(server.request("POST", "/v1/nodes").json(&new)).await;
        assert_eq!((told.problem().0, told.pointers()), (422, vec![pointer.to_owned()]));
    }
    assert!(server.client().nodes(None, None, None).await.expect("the list").items.is_empty());
}

#[tokio::test]
async fn nodes_are_listed_in_pages_and_only_as_far_as_a_keys_scopes_reach() {
    let server = server().await;
    for n in 1..=3 {
        put_node(&server, &format!("box-{n}")).await;
    }
    let all = server.client();
    let first = all.nodes(Some("eu"), Some(2), None).await.expect("a page");
    let second = all.nodes(Some("eu"), Some(2), first.next_cursor.as_deref()).await.expect("the next one");
    let names = |page: &wire::Page<wire::Node>| page.items.iter().map(|it| it.identity.clone()).collect::<Vec<_>>();
    assert_eq!((names(&first), names(&second)), (vec!["box-1".into(), "box-2".into()], vec!["box-3".into()]));
    assert!(second.next_cursor.is_none() && all.nodes(Some("uk"), None, None).await.expect("none").items.is_empty());

    let narrow = key_of(&server, of_node("box-2")).await;
    assert_eq!(names(&narrow.nodes(None, None, None).await.expect("a page")), ["box-2"]);
    let (seen, unseen) = (first.items[1].id, first.items[0].id);
    assert!(narrow.node(seen).await.is_ok());
    let request = wire::EnrolmentTokenRequest::default();
    for error in [
        narrow.node(unseen).await.expect_err("beyond its scopes"),
        narrow.issue_enrolment_token(unseen, &request, None).await.expect_err("beyond its scopes"),
        narrow.revoke_enrolment_token(unseen, &wire::Reason::default()).await.expect_err("beyond its scopes"),
    ] {
        assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    }
    let error = narrow.create_node(&new_node("box-9"), None).await.expect_err("beyond its scopes");
    assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)));
}

#[tokio::test]
async fn a_record_whose_machine_was_never_heard_is_no_box_and_becomes_one_as_its_worker_registers() {
    let server = server().await;
    let made = put_node(&server, "box-eu").await;
    let mut conn = server.db.session().await;
    assert!(domain::nodes::list(&mut conn, None).await.expect("the boxes").is_empty());
    let regions = server.client().regions().await.expect("the regions").items;
    assert!(regions.iter().all(|region| !region.can_host), "{regions:?}");

    let registered = domain::nodes::register(&mut conn, &box_of("eu")).await.expect("its worker starts");
    let shown = server.client().node(made.id).await.expect("the record");
    assert_eq!((registered.id.0, shown.hostname), (made.id, made.hostname));
    assert!(shown.live && shown.seen_at.is_some());
    assert_eq!((shown.generation, shown.incarnation), (made.generation, 0), "what is heard moves no generation (A05)");
    assert_eq!(domain::nodes::list(&mut conn, None).await.expect("the boxes").len(), 1);
}

#[tokio::test]
async fn a_box_that_registered_itself_has_a_record_too() {
    let server = server().await;
    let registered = put_box(&server, "eu").await;
    let shown = server.client().node(registered.id.0).await.expect("its record");
    assert_eq!((shown.identity.as_str(), shown.hostname, shown.lifecycle.as_str()), ("box-eu", None, "active"));
    assert!(shown.live && shown.enabled);
}
