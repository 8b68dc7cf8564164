//! Reports that meet: each other, a reader, a machine that takes the node's place, and a node that ends.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tests::api::{Server, Told};
use tests::enrolment::server;
use tests::fleet::{Fleet, HOST, refusal};
use tests::reports::{Reporter, items};
use wire::{Code, NewNodeReport, NodeReport};

#[tokio::test]
async fn a_report_that_is_not_later_never_overwrites_and_the_next_machine_counts_from_one() {
    // O13.
    let server = server().await;
    let first = Reporter::start(&server, "box-1").await;
    first.put(&server, &first.report(5, &["a"])).await.expect("taken");
    let (record, heard) = first.rows(&server).await;
    for seq in [5, 4, 1] {
        let told = first.send(&server, json!(first.report(seq, &["b"])).to_string()).await;
        assert_eq!(told.problem(), (409, "stale_report".to_owned()), "{seq}");
        assert_eq!(told.json()["current"], json!({"incarnation": 1, "record": {"incarnation": 1, "seq": 5}}));
        assert_eq!(first.rows(&server).await.0, record, "{seq}");
    }
    let (_, moved) = first.rows(&server).await;
    assert!(moved.as_str() > heard.as_str(), "the machine is the node: it was heard");

    let second = Reporter::of(&server, first.id).await;
    let shown = server.client().node_report(first.id).await.expect("the record");
    let NodeReport::Reported { incarnation: 1, current_incarnation: 2, .. } = shown else { panic!("{shown:?}") };
    let late = NewNodeReport { incarnation: 1, ..second.report(9, &["b"]) };
    let told = second.send(&server, json!(late).to_string()).await;
    assert_eq!(told.problem(), (409, "stale_report".to_owned()));
    assert_eq!(second.rows(&server).await, (record, moved), "of an older incarnation: not even heard");
    assert!(second.put(&server, &second.report(1, &["c"])).await.expect("the first of the new machine").replaced);
    assert_eq!(second.rows(&server).await.0["items"], json!([{"kind": "instance", "id": "c"}]));
}

#[tokio::test]
async fn of_reports_at_once_the_one_of_the_highest_number_stands() {
    // O13.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    for round in 0..5 {
        let mut seqs: Vec<i64> = (round * 16 + 1..=round * 16 + 16).collect();
        fastrand::shuffle(&mut seqs);
        let reports: Vec<NewNodeReport> = seqs.iter().map(|seq| node.report(*seq, &[&format!("host-{seq}")])).collect();
        for answer in futures::future::join_all(reports.iter().map(|report| node.put(&server, report))).await {
            match answer {
                Ok(taken) => assert!(taken.replaced),
                Err(error) => assert_eq!(refusal(&error), (409, Some(Code::StaleReport)), "{error}"),
            }
        }
        let last = round * 16 + 16;
        let (record, _) = node.rows(&server).await;
        assert_eq!((&record["seq"], &record["items"][0]["id"]), (&json!(last), &json!(format!("host-{last}"))));
    }
}

/// Sends a report while another session holds the node's row, and what that session does commits before the row is free.
async fn put_while_held(server: &Server, node: &Reporter, body: &Value, meanwhile: &'static str) -> Told {
    let mut holder = server.db.session().await;
    sqlx::raw_sql("begin; select from nodes for no key update").execute(&mut holder).await.expect("the row is held");
    let (told, ()) = tokio::join!(node.send(server, body.to_string()), async {
        server.db.until_blocked().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{meanwhile}; commit"))).execute(&mut holder).await.expect("done");
    });
    told
}

#[tokio::test]
async fn a_report_that_waited_sees_what_was_done_meanwhile() {
    // O13, O14, the blocked row: the door let the report in, and then its machine stopped being the node.
    for (meanwhile, refused) in [
        ("update nodes set incarnation = incarnation + 1", (409, "stale_report")),
        ("update nodes set lifecycle = 'decommissioned'", (409, "node_decommissioned")),
        ("update node_credentials set revoked_at = lh_now()", (401, "unauthenticated")),
        ("update lh_test_clock set shift = shift + interval '1 hour'", (401, "unauthenticated")),
    ] {
        let server = server().await;
        let node = Reporter::start(&server, "box-1").await;
        node.put(&server, &node.report(1, &["a"])).await.expect("taken");
        let before = node.rows(&server).await;
        let told = put_while_held(&server, &node, &json!(node.report(2, &["b"])), meanwhile).await;
        assert_eq!(told.problem(), (refused.0, refused.1.to_owned()), "{meanwhile}: {told:?}");
        assert_eq!(node.rows(&server).await, before, "{meanwhile}");
    }
    for meanwhile in ["update nodes set incarnation = incarnation + 1", "update nodes set lifecycle = 'decommissioned'"]
    {
        // One that says nothing legible is not heard either.
        let server = server().await;
        let node = Reporter::start(&server, "box-1").await;
        let told = put_while_held(&server, &node, &json!([]), meanwhile).await;
        assert!([401, 409].contains(&told.problem().0), "{meanwhile}: {told:?}");
        assert_eq!(node.rows(&server).await, (Value::Null, Value::Null), "{meanwhile}");
    }
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    let told = put_while_held(&server, &node, &json!(node.report(1, &[])), "update nodes set enabled = enabled").await;
    assert_eq!(told.status, 200, "a wait alone refuses nobody: {told:?}");
}

#[tokio::test]
async fn a_reader_sees_one_report_and_no_mix_of_two() {
    // O12: every item of a report carries its number.
    let server = server().await;
    let node = Reporter::start(&server, "box-1").await;
    let named = |seq: i64| {
        let hosts: Vec<String> = (0..10 + seq % 7).map(|n| format!("{seq}-{n}")).collect();
        node.report(seq, &hosts.iter().map(String::as_str).collect::<Vec<_>>())
    };
    node.put(&server, &named(1)).await.expect("taken");
    let (own, operator) = (node.client(&server), server.client());
    let done = AtomicBool::new(false);
    let write = async {
        for seq in 2..=150 {
            own.put_node_report(node.id, &named(seq)).await.expect("taken");
        }
        done.store(true, Ordering::SeqCst);
    };
    let read = async {
        let mut seen = std::collections::BTreeSet::new();
        while !done.load(Ordering::SeqCst) {
            let shown = operator.node_report(node.id).await.expect("the record");
            let NodeReport::Reported { seq, items, .. } = shown else { panic!("it reported") };
            assert_eq!(items, named(seq).items);
            seen.insert(seq);
        }
        seen.len()
    };
    let ((), versions) = tokio::join!(write, read);
    assert!(versions > 2, "the reader read while reports came: {versions}");
}

#[tokio::test]
async fn a_rebuilt_node_gets_what_is_wanted_and_what_it_owned_of_one_moment() {
    // O04: a route and the record change together; whoever reads sees both before, or both after.
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let node = Reporter::of(server, fleet.eu.id.0).await;
    let empty = node.client(server).node_rebuild(node.id).await.expect("its own");
    assert_eq!((empty.node_id, empty.incarnation, empty.declaration), (node.id, 1, items(&[HOST])));
    assert_eq!(empty.declared_kinds, ["instance"]);
    node.put(server, &node.report(1, &[HOST, "left.example"])).await.expect("taken");
    let (own, shown) = (node.client(server).node_rebuild(node.id).await, server.client().node_rebuild(node.id).await);
    let (own, shown) = (own.expect("its own"), shown.expect("an operator's"));
    assert_eq!((&own.declaration, own.declaration.len()), (&shown.declaration, 1));
    let NodeReport::Reported { items: kept, age_ms, .. } = own.record else { panic!("it reported") };
    assert_eq!(kept, items(&[HOST, "left.example"]));
    assert!(age_ms >= 0);

    let pool = server.db.pool();
    let done = AtomicBool::new(false);
    let write = async {
        for _ in 0..100 {
            for change in [
                "begin; update routes set status = 'moving'; delete from node_reports; update routes set node_id = (select id from nodes where identity = 'box-uk'); commit",
                "begin; update routes set node_id = (select id from nodes where identity = 'box-eu'), status = 'serving'; insert into node_reports select id, 1, 1, '[]', lh_now(), lh_now() from nodes where identity = 'box-eu'; commit",
            ] {
                sqlx::raw_sql(change).execute(pool).await.expect("both at once");
            }
        }
        done.store(true, Ordering::SeqCst);
    };
    let read = async {
        let mut seen = [false; 2];
        while !done.load(Ordering::SeqCst) {
            let mut conn = server.db.session().await;
            for _ in 0..20 {
                let found = domain::nodes::reports::view(&mut conn, fleet.eu.id).await.expect("read").expect("there");
                assert_eq!(found.kept.is_some(), !found.declaration.is_empty(), "{found:?}");
                seen[usize::from(found.kept.is_some())] = true;
            }
        }
        seen
    };
    let ((), seen) = tokio::join!(write, read);
    assert_eq!(seen, [true; 2], "the reader saw both");
}

#[tokio::test]
async fn what_is_parked_or_being_cut_is_wanted_on_its_node() {
    // O04: a declaration that left them out would have a rebuilt box remove a database that is the only one.
    let fleet = Fleet::with_instance().await;
    let declared = async || {
        let rebuild = fleet.server.client().node_rebuild(fleet.eu.id.0).await.expect("an answer");
        rebuild.declaration
    };
    assert_eq!(declared().await, items(&[HOST]));
    fleet.sql("update instances set parked = true").await;
    assert_eq!(declared().await, items(&[HOST]));
    for change in ["update routes set status = 'moving'", "update routes set status = 'landing'"] {
        fleet.sql(change).await;
        assert_eq!(declared().await, items(&[HOST]), "{change}");
    }
    fleet.sql("delete from routes").await;
    assert!(declared().await.is_empty());
}
