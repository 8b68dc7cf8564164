//! What nodes reported, on the command line.

use crate::support::{Ended, System};

async fn sql(system: &System, sql: &'static str) {
    sqlx::raw_sql(sql).execute(system.database.pool()).await.expect("the test's statement");
}

#[tokio::test]
async fn never_reported_reported_nothing_stale_and_refused_look_different() {
    // O05, O08; the rows are those that the API writes.
    let system = System::start().await;
    let set = ["region", "set", "eu", "--name", "Europe", "--data-bucket", "data-eu", "--data-bucket-region", "eu-1"];
    assert_eq!(system.cli.run(&set).await.code, Some(0));
    let made = system.cli.json(&["node", "create", "box-1", "--region", "eu", "--hostname", "box.example"]).await;
    let id = made["id"].as_str().expect("an id").to_owned();
    let report = async || {
        let ended = system.cli.run(&["node", "report", &id]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let rebuild = async || -> Ended { system.cli.run(&["node", "rebuild", &id]).await };

    let never = report().await;
    let golden =
        "record       never reported: nobody knows what this node owns\nlast heard   never\nlast report  never\n";
    assert_eq!(never, golden);
    let shown = system.cli.json(&["node", "report", &id]).await;
    assert!(shown["status"] == "never_reported" && shown.get("items").is_none(), "{shown}");
    let told = rebuild().await.out;
    assert!(told.contains("never reported") && told.contains("nothing is wanted"), "{told}");

    // It sent one that was refused.
    sql(&system, "update nodes set incarnation = 1, heard_at = lh_now()").await;
    let refused = report().await;
    assert!(refused.contains("never reported") && refused.contains("did not replace the record"), "{refused}");

    sql(&system, "insert into node_reports select id, 1, 4, '[]', lh_now(), heard_at from nodes").await;
    let nothing = report().await;
    assert!(nothing.contains("reported nothing") && nothing.contains("incarnation 1, report 4"), "{nothing}");
    assert!(!nothing.contains("never reported") && !nothing.contains("did not replace"), "{nothing}");
    let shown = system.cli.json(&["node", "report", &id]).await;
    assert!(shown["items"] == serde_json::json!([]) && shown["age_ms"].is_u64(), "{shown}");

    sql(
        &system,
        r#"update node_reports set items = '[{"kind": "instance", "id": "left.example"}, {"kind": "volume", "id": "v1"}]',
                                   received_at = lh_now() - interval '91 minutes';
           update nodes set incarnation = 2"#,
    )
    .await;
    let stale = report().await;
    for words in ["reported 2 items", "stale: incarnation 1, report 4", "91 min", "did not replace", "left.example"] {
        assert!(stale.contains(words), "{words}: {stale}");
    }
    let told = rebuild().await.out;
    let line = |id: &str| told.lines().find(|line| line.contains(id)).unwrap_or_default().to_owned();
    assert!(line("left.example").contains("orphan: a rebuilt node removes it"), "{told}");
    // The declaration does not speak of volumes, and so of no volume it says that it goes.
    assert!(line("v1").contains("not told") && !line("v1").contains("orphan"), "{told}");
    let shown = system.cli.json(&["node", "rebuild", &id]).await;
    assert_eq!((&shown["record"]["status"], &shown["incarnation"]), (&"reported".into(), &2.into()));

    let ended = system.cli.run(&["node", "report", "01890a5d-ac96-774b-bcce-b302099a8057"]).await;
    assert!(ended.code != Some(0) && ended.err.contains("not_found"), "{}", ended.said());
}
