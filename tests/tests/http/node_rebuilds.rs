//! A machine that was rebuilt and asks what it may remove: the agent's part, before a real API and before what is none.

use std::collections::BTreeSet;

use domain::ids::NodeId;
use secrecy::SecretString;
use tests::api::Server;
use tests::fleet::{Fleet, HOST, new_instance};
use tests::reports::{Reporter, items};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wire::OwnedItem;
use workers::node::rebuild::{self, Removal, Unknown};

/// What stands on a machine's disk, and what its agent removes of it.
#[derive(Debug)]
struct Disk(BTreeSet<OwnedItem>);

impl Disk {
    /// What was removed.
    fn apply(&mut self, removal: &Removal) -> Vec<String> {
        let before = self.0.clone();
        if let Removal::Orphans(orphans) = removal {
            self.0.retain(|item| !orphans.contains(item));
        }
        before.difference(&self.0).map(|item| item.id.clone()).collect()
    }
}

#[tokio::test]
async fn a_machine_that_lost_its_state_removes_what_was_owned_and_is_not_wanted_and_nothing_foreign() {
    // O17: three declared, five recorded, one foreign.
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let (two, three) = ("two.acme.example", "three.acme.example");
    for host in [two, three] {
        fleet.create(&new_instance(host, "eu")).await;
    }
    let before = Reporter::of(server, fleet.eu.id.0).await;
    let owned = [HOST, two, three, "left-1.example", "left-2.example"];
    before.put(server, &before.report(1, &owned)).await.expect("taken");

    let rebuilt = Reporter::of(server, fleet.eu.id.0).await;
    let ask = async || rebuild::ask(&rebuilt.client(server), NodeId(rebuilt.id), rebuilt.session.incarnation).await;
    let mut disk = Disk(items(&owned).into_iter().chain(items(&["foreign.example"])).collect());
    assert_eq!(disk.apply(&ask().await), ["left-1.example", "left-2.example"]);
    let kept: BTreeSet<OwnedItem> = items(&[HOST, two, three, "foreign.example"]).into_iter().collect();
    assert_eq!(disk.0, kept);
    // Asked again, and after it reported what is left, nothing more goes.
    assert!(disk.apply(&ask().await).is_empty());
    rebuilt.put(server, &rebuilt.report(1, &[HOST, two, three])).await.expect("taken");
    assert!(disk.apply(&ask().await).is_empty());
    // The machine before it is out, and removes nothing either.
    let out = rebuild::ask(&before.client(server), NodeId(before.id), before.session.incarnation).await;
    assert_eq!(out, Removal::Nothing(Unknown::NoAnswer));
}

#[tokio::test]
async fn a_machine_of_a_node_that_never_reported_removes_nothing() {
    // O16: not by the API's own answer, before a report, after refused ones, or when nothing is wanted.
    let server = tests::enrolment::server().await;
    let node = Reporter::start(&server, "box-1").await;
    let mut disk = Disk(items(&["a", "b"]).into_iter().collect());
    let refused = wire::NewNodeReport { outcome: wire::ReportOutcome::Refused, ..node.report(1, &["a"]) };
    for _ in 0..2 {
        let removal = rebuild::ask(&node.client(&server), NodeId(node.id), 1).await;
        assert_eq!(removal, Removal::Nothing(Unknown::NeverReported));
        assert!(disk.apply(&removal).is_empty());
        node.put(&server, &refused).await.expect("taken");
    }
}

/// What asks a server that answers every request with these bytes and hangs up.
async fn asked(answer: Vec<u8>, node: NodeId) -> Removal {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let serve = async {
        let (mut stream, _) = listener.accept().await.expect("the client comes");
        let mut request = [0; 4096];
        let read = stream.read(&mut request).await.expect("its request");
        assert!(String::from_utf8_lossy(&request[..read]).contains("/rebuild"), "it asks for that");
        stream.write_all(&answer).await.expect("told");
        stream.shutdown().await.expect("hung up");
    };
    let client = wire::Client::new(&base, Some(SecretString::from("lhn_x"))).expect("a client");
    let (removal, ()) = tokio::join!(rebuild::ask(&client, node, 1), serve);
    removal
}

fn response(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into()
}

#[tokio::test]
async fn an_error_of_the_way_of_the_server_or_of_the_reader_removes_nothing() {
    // O16.
    let node = NodeId::generate();
    let whole = |record: &str| {
        format!(
            r#"{{"node_id": "{node}", "incarnation": 1, "declaration": [], "declared_kinds": ["instance"], "record": {record}}}"#
        )
    };
    let reported = r#"{"status": "reported", "incarnation": 1, "current_incarnation": 1, "seq": 1,
        "items": [{"kind": "instance", "id": "a"}], "reported_at": "2026-01-01T00:00:00Z",
        "received_at": "2026-01-01T00:00:00Z", "age_ms": 0, "last_seen_age_ms": 0, "last_sent_age_ms": 0}"#;
    let good = whole(reported);
    let orphan: BTreeSet<OwnedItem> = items(&["a"]).into_iter().collect();
    assert_eq!(asked(response("200 OK", &good), node).await, Removal::Orphans(orphan), "the answer itself is one");

    let cut_short = response("200 OK", &good)[..150].to_vec();
    let no_declaration = good.replace(r#""declaration": [], "#, "");
    let null_items = whole(&reported.replace(r#"[{"kind": "instance", "id": "a"}]"#, "null"));
    let no_items = whole(&reported.replace(r#""items": [{"kind": "instance", "id": "a"}],"#, ""));
    for answer in [
        Vec::new(),
        cut_short,
        response("500 Internal Server Error", &good),
        response("503 Service Unavailable", ""),
        response("404 Not Found", r#"{"type": "/docs/errors/not_found"}"#),
        response("200 OK", ""),
        response("200 OK", "[]"),
        response("200 OK", "<html>"),
        response("200 OK", &no_declaration),
        response("200 OK", &null_items),
        response("200 OK", &no_items),
        response("200 OK", &whole(r#"{"status": "of_another_version", "items": []}"#)),
    ] {
        let shown = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(asked(answer, node).await, Removal::Nothing(Unknown::NoAnswer), "{shown}");
    }
    // Nobody is there.
    let server = Server::start().await;
    let (client, base) = (server.client(), server.base.clone());
    server.stop().await;
    assert_eq!(rebuild::ask(&client, node, 1).await, Removal::Nothing(Unknown::NoAnswer), "{base}");
}
