//! The description of the API: current, complete, and readable.

use std::path::PathBuf;

use tests::api::{Server, Told};
use wire::Code;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no settings of its own: the variable is this test's switch")]
fn the_committed_description_is_the_one_that_the_code_gives() {
    let file = root().join("docs/openapi.json");
    let mut current = serde_json::to_string_pretty(&api::openapi()).expect("a description");
    current.push('\n');
    if std::env::var_os("LEASEHOLD_UPDATE").is_some() {
        std::fs::write(&file, &current).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == current,
        "docs/openapi.json is old: run this test with LEASEHOLD_UPDATE=1 and review the change"
    );
}

#[test]
fn every_code_has_a_help_page_and_every_page_a_code() {
    let pages = root().join("docs/errors");
    let mut found: Vec<String> = std::fs::read_dir(&pages)
        .expect("the pages")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let mut expected: Vec<String> = Code::ALL.iter().map(|code| format!("{}.md", code.as_str())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for code in Code::ALL {
        let page = std::fs::read_to_string(pages.join(format!("{}.md", code.as_str()))).expect("a page");
        assert!(page.starts_with(&format!("# {}\n", code.as_str())), "{code:?}");
        assert!(page.contains(&code.status().to_string()) && page.contains("## What to do"), "{code:?}");
    }
}

#[tokio::test]
async fn the_server_gives_its_description_its_reference_and_its_help() {
    let server = Server::start().await;
    let description = Told::by(server.bare("GET", "/openapi.json")).await.json();
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")), "{description}");
    assert_eq!(description["paths"]["/v1/jobs"]["post"]["security"][0]["key"][0], "jobs.write");
    let page = Told::by(server.bare("GET", "/docs")).await;
    assert!(page.text.contains("/v1/jobs/{id}/cancel") && !page.text.contains("<script"));
    assert!(page.header("content-security-policy").is_some_and(|policy| policy.contains("default-src 'none'")));
    let help = Told::by(server.bare("GET", "/docs/errors/unknown_kind")).await;
    assert!(help.status == 200 && help.text.starts_with("# unknown_kind"));
    assert_eq!(Told::by(server.bare("GET", "/docs/errors/nothing")).await.problem().0, 404);
}

#[tokio::test]
async fn requests_are_counted_by_their_route_and_never_by_their_path() {
    let server = Server::start().await;
    let id = domain::ids::JobId::generate();
    assert_eq!(Told::by(server.request("GET", &format!("/v1/jobs/{id}"))).await.status, 404);
    let figures = Told::by(server.request("GET", "/metrics")).await.text;
    assert!(
        figures.contains(r#"leasehold_http_requests_total{method="GET",route="/v1/jobs/{id}",status="404"}"#),
        "{figures}"
    );
    assert!(!figures.contains(&id.to_string()));
}
