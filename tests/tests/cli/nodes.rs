//! Nodes on the command line: a record, a token, and a machine that enrols with it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sandbox::exec::Signal;
use serde_json::Value;
use tests::wait::until;

use crate::support::{Cli, Ended, LIMIT, System, end, program, start};

async fn region(system: &System) {
    let set = ["region", "set", "eu", "--name", "Europe", "--data-bucket", "data-eu", "--data-bucket-region", "eu-1"];
    let ended = system.cli.run(&set).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

async fn node(system: &System, identity: &str) -> String {
    let made = system.cli.json(&["node", "create", identity, "--region", "eu", "--hostname", "box.example"]).await;
    made["id"].as_str().expect("an id").to_owned()
}

/// A file with a fresh secret, of this mode.
async fn token_file(system: &System, id: &str, mode: u32) -> (String, String) {
    let issued = system.cli.run(&["node", "token", id]).await;
    assert_eq!(issued.code, Some(0), "{}", issued.err);
    let file = system.cli.folder().join("box.token");
    let _ = std::fs::remove_file(&file);
    std::fs::write(&file, &issued.out).expect("write it");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its mode");
    (file.display().to_string(), issued.out.trim().to_owned())
}

/// The machine: it has neither key nor settings of an operator.
async fn enrol(machine: &Cli, url: &str, file: &str, more: &[&str]) -> Ended {
    let folder = machine.folder().join("identity");
    let folder = folder.to_str().expect("a path");
    let args = ["node", "enrol", "--token-file", file, "--identity-folder", folder, "--api", url];
    machine.run(&[&args[..], more].concat()).await
}

fn kept(machine: &Cli) -> Value {
    let file = machine.folder().join("identity/node.json");
    serde_json::from_str(&std::fs::read_to_string(file).expect("what is kept")).expect("JSON")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn url(system: &System) -> String {
    system.cli.variable("LEASEHOLD_URL").expect("set")
}

#[tokio::test]
async fn a_machine_enrols_by_a_file_with_a_secret_and_keeps_who_it_is() {
    let system = System::start().await;
    region(&system).await;
    let id = node(&system, "box-1").await;
    let (file, secret) = token_file(&system, &id, 0o600).await;
    let machine = Cli::new();
    let ended = enrol(&machine, &url(&system), &file, &[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(ended.out.contains(&id) && ended.out.contains("the token is spent"), "{}", ended.out);
    let (first, folder) = (kept(&machine), machine.folder().join("identity"));
    assert_eq!((first["node_id"].as_str(), first["incarnation"].as_i64()), (Some(id.as_str()), Some(1)));
    assert_eq!((mode(&folder), mode(&folder.join("node.json"))), (0o700, 0o600));
    let key = first["key"].as_str().expect("its key");
    assert!(!ended.said().contains(key) && !ended.said().contains(&secret), "{}", ended.said());
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1, "nothing else is left there");

    // It is enrolled: another token is not spent.
    let (file, _) = token_file(&system, &id, 0o600).await;
    let ended = enrol(&machine, &url(&system), &file, &[]).await;
    assert!(ended.code == Some(0) && ended.out.contains("no token spent"), "{}", ended.said());
    assert_eq!(kept(&machine), first);

    // Rebuilt: the same command with nothing in the folder, and the machine before it is out.
    let rebuilt = Cli::new();
    let ended = enrol(&rebuilt, &url(&system), &file, &[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert_eq!(kept(&rebuilt)["incarnation"], 2);
    let ended = enrol(&machine, &url(&system), &file, &[]).await;
    assert_eq!(ended.code, Some(3), "{}", ended.said());
    assert!(ended.err.contains("enrolment_refused") && ended.err.contains("leasehold node token"), "{}", ended.err);

    let shown = system.cli.run(&["node", "show", &id]).await;
    assert!(shown.out.contains("box-1") && shown.out.contains("incarnation   2"), "{}", shown.out);
    let listed = system.cli.run(&["node", "list", "--region", "eu"]).await;
    assert!(listed.out.contains(&id) && listed.out.contains("never"), "{}", listed.out);
    let log = std::fs::read_to_string(system.cli.folder().join("api.log")).expect("the API's log");
    assert!(log.contains("/v1/enrolments") && !log.contains(&secret[4..]), "E04, E18: no secret in the log");
}

#[tokio::test]
async fn a_token_is_printed_alone_and_what_it_does_not_carry_is_said() {
    // E16, golden.
    let system = System::start().await;
    region(&system).await;
    let id = node(&system, "box-1").await;
    let issued = system.cli.run(&["node", "token", &id]).await;
    let secret = issued.out.trim();
    assert!(secret.starts_with("lhe_") && secret.len() == 4 + 64, "stdout carries the secret and nothing else");
    assert!(!issued.err.contains(secret), "{}", issued.err);
    let lines: Vec<&str> = issued.err.lines().collect();
    let [token, node, until, place, "", one, two, "", api, certificate, signing] = lines[..] else {
        panic!("{}", issued.err)
    };
    assert!(token.starts_with("token        ") && node == format!("node         {id}"), "{token}\n{node}");
    assert!(until.starts_with("works until  ") && until.ends_with(" UTC, once"), "{until}");
    assert_eq!(
        [place, one, two, api, certificate, signing],
        [
            "in place of  -",
            "The secret on stdout enrols one machine as this node, and carries nothing else.",
            "The machine needs beside it:",
            "API URL              missing: set api.public_url, or tell the machine yourself",
            "certificate SHA-256  missing: set api.certificate_sha256, or tell the machine yourself",
            "signing key id       missing: this version of the control plane signs nothing",
        ]
    );
    let again = system.cli.json(&["node", "token", &id, "--expires-in-seconds", "60"]).await;
    assert!(token.ends_with(again["superseded"].as_str().expect("the first")), "{again}");
    assert!(again["secret"].as_str().is_some_and(|it| it != secret) && again["control_plane"]["api_url"].is_null());

    let revoked = system.cli.run(&["node", "token", &id, "--revoke", "--reason", "not needed"]).await;
    assert!(revoked.code == Some(0) && revoked.out.contains("is revoked"), "{}", revoked.said());
    let revoked = system.cli.run(&["node", "token", &id, "--revoke"]).await;
    assert!(revoked.code == Some(0) && revoked.out.contains("no outstanding token"), "{}", revoked.said());
}

#[tokio::test]
async fn a_secret_is_taken_from_a_private_file_or_from_stdin_and_from_nowhere_else() {
    // E18.
    let system = System::start().await;
    region(&system).await;
    let id = node(&system, "box-1").await;
    let (file, secret) = token_file(&system, &id, 0o644).await;
    let machine = Cli::new();
    let ended = enrol(&machine, &url(&system), &file, &[]).await;
    assert_eq!(ended.code, Some(3), "{}", ended.said());
    assert!(ended.err.contains("mode 0644") && ended.err.contains("chmod 600"), "{}", ended.err);
    for args in [&["--token", secret.as_str()][..], &["--secret", secret.as_str()], &[secret.as_str()]] {
        let ended = enrol(&machine, &url(&system), &file, args).await;
        assert_eq!(ended.code, Some(2), "{}", ended.said());
    }
    let with = machine.clone().with("LEASEHOLD_TOKEN", &secret).with("LEASEHOLD_SECRET", &secret);
    let ended = enrol(&with, &url(&system), "nowhere", &[]).await;
    assert!(ended.code == Some(2), "{}", ended.said());
    let ended = enrol(&machine, "http://192.0.2.1:7070", "nowhere", &[]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.said());
    assert!(!machine.folder().join("identity").exists(), "nothing was begun");

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    // An address at which others can listen gets nothing: it would time out, and this does not.
    let ended = enrol(&machine, "http://192.0.2.1:7070", &file, &[]).await;
    assert_eq!(ended.code, Some(3), "{}", ended.said());
    assert!(ended.err.contains("the secret was not sent"), "{}", ended.err);
    let pin = "ab".repeat(32);
    let ended = enrol(&machine, &url(&system), &file, &["--fingerprint", &pin]).await;
    assert!(ended.code == Some(2) && ended.err.contains("shows no certificate"), "{}", ended.said());

    let folder = machine.folder().join("identity").display().to_string();
    let script = "\"$0\" node enrol --token-file - --identity-folder \"$1\" --api \"$2\" < \"$3\"";
    let spawn = sandbox::exec::Spawn::new("/bin/sh").args(["-c", script, program().to_str().expect("a path")]);
    let spawn = spawn.args([folder, url(&system), file]).cwd(machine.folder());
    let ended = spawn.run(LIMIT).await.expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(kept(&machine)["node_id"].as_str(), Some(id.as_str()));
}

#[tokio::test]
async fn a_machine_whose_answer_was_lost_proves_itself_with_the_key_that_it_sent() {
    // A16.
    let system = System::start().await;
    region(&system).await;
    let id = node(&system, "box-1").await;
    let (file, _) = token_file(&system, &id, 0o600).await;
    let machine = Cli::new();
    assert_eq!(enrol(&machine, &url(&system), &file, &[]).await.code, Some(0));
    // As a machine that died before the answer came: the key that it sent, and nothing else.
    let (first, folder) = (kept(&machine), machine.folder().join("identity"));
    let text = |name: &str| first[name].as_str().expect("a text").to_owned();
    let sent = folder.join(format!("node.key.sent-{}", text("public_key")));
    std::fs::remove_file(folder.join("node.json")).expect("forgotten");
    std::fs::write(&sent, text("key")).expect("written");
    std::fs::set_permissions(&sent, std::fs::Permissions::from_mode(0o600)).expect("its mode");

    let ended = enrol(&machine, &url(&system), &file, &[]).await;
    assert_eq!(ended.code, Some(3), "the token is spent: {}", ended.said());
    let names: Vec<_> = std::fs::read_dir(&folder).expect("the folder").map(|it| it.expect("it").path()).collect();
    assert_eq!(names, [sent], "a refusal leaves the key that was sent, and no other");
    let ended = enrol(&machine, &url(&system), &file, &["--node", &id]).await;
    assert!(ended.code == Some(0) && ended.out.contains("no token spent"), "{}", ended.said());
    let again = kept(&machine);
    assert_eq!(
        (&again["node_id"], &again["key"], &again["incarnation"]),
        (&first["node_id"], &first["key"], &first["incarnation"])
    );
}

#[tokio::test]
async fn a_token_that_was_spent_stays_spent_when_the_api_starts_again() {
    // E06.
    let mut system = System::start().await;
    region(&system).await;
    let id = node(&system, "box-1").await;
    let (file, _) = token_file(&system, &id, 0o600).await;
    let (machine, url) = (Cli::new(), url(&system));
    assert_eq!(enrol(&machine, &url, &file, &[]).await.code, Some(0));
    assert!(end(&system.api, Signal::TERM).await.success());
    let address = url.strip_prefix("http://").expect("an address");
    system.api = start(&system.cli, &["api", "--listen", address], "api.log");
    until("the API answers", LIMIT, || async {
        (system.cli.run(&["node", "list"]).await.code == Some(0)).then_some(())
    })
    .await;
    let ended = enrol(&Cli::new(), &url, &file, &[]).await;
    assert_eq!(ended.code, Some(3), "{}", ended.said());
    let ended = enrol(&machine, &url, &file, &[]).await;
    assert_eq!(ended.code, Some(0), "and the machine is the node still: {}", ended.said());
}
