//! Keys on the command line: made once, never printed again, refused in words.

use tests::db::Database;

use crate::support::{Cli, System};

#[tokio::test]
async fn the_first_key_is_made_once() {
    let database = Database::start().await;
    let cli = Cli::new().with("LEASEHOLD_DATABASE_URL", database.url());
    let first = cli.run(&["key", "bootstrap"]).await;
    assert_eq!(first.code, Some(0), "{}", first.err);
    let key = first.out.trim();
    assert!(key.starts_with("lh_") && key.len() == 3 + 32 + 1 + 64, "stdout carries the key and nothing else");
    assert!(!first.err.contains(key), "and the log does not");

    let second = cli.run(&["key", "bootstrap"]).await;
    assert_eq!(second.code, Some(5), "{}", second.err);
    assert!(second.out.is_empty() && second.err.contains("an administrator exists already"), "{}", second.err);
}

#[tokio::test]
async fn a_created_key_works_until_it_is_revoked() {
    let system = System::start().await;
    let made = system
        .cli
        .json(&["key", "create", "laptop", "--new-identity", "ada", "--kind", "person", "--role", "viewer"])
        .await;
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let ada = system.cli.clone().with("LEASEHOLD_KEY", secret);
    assert_eq!(ada.run(&["job", "list"]).await.code, Some(0));
    let refused = ada.run(&["job", "enqueue", "system.noop"]).await;
    assert_eq!(refused.code, Some(3), "a viewer enqueues nothing: {}", refused.err);

    let listed = system.cli.run(&["key", "list"]).await;
    assert!(listed.out.contains(id) && listed.out.contains("ada"), "{}", listed.out);
    let secret_half = secret.rsplit('_').next().unwrap();
    assert!(!listed.said().contains(secret_half), "a list never shows a secret");

    let revoked = system.cli.run(&["key", "revoke", id, "--reason", "laptop lost"]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    let refused = ada.run(&["job", "list"]).await;
    assert_eq!(refused.code, Some(3));
    assert!(refused.err.contains("revoked"), "{}", refused.err);
}

#[tokio::test]
async fn a_refused_key_is_told_by_its_origin_and_never_printed() {
    let system = System::start().await;
    let wrong = format!("{}0", &system.key[..system.key.len() - 1]);
    let wrong = if wrong == system.key { format!("{}1", &system.key[..system.key.len() - 1]) } else { wrong };
    let ended = system.cli.clone().with("LEASEHOLD_KEY", &wrong).run(&["job", "list"]).await;
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("the key from LEASEHOLD_KEY was refused"), "{}", ended.err);
    assert!(!ended.said().contains(wrong.rsplit('_').next().unwrap()), "{}", ended.said());

    let file = system.cli.folder().join("two-keys");
    std::fs::write(&file, format!("{}\n{}\n", system.key, system.key)).unwrap();
    let ended = system.cli.clone().with("LEASEHOLD_KEY_FILE", file.as_os_str()).run(&["job", "list"]).await;
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("does not hold an API key alone") && !ended.err.contains(&system.key), "{}", ended.err);
}

#[tokio::test]
async fn without_a_key_a_verb_ends_with_3_and_says_where_to_get_one() {
    let ended = Cli::new().run(&["job", "list"]).await;
    assert_eq!(ended.code, Some(3));
    for word in ["LEASEHOLD_KEY_FILE", "key bootstrap", ".leasehold/dev-key"] {
        assert!(ended.err.contains(word), "{}", ended.err);
    }
}

#[tokio::test]
async fn a_key_without_an_identity_is_refused_with_both_ways_to_name_one() {
    let ended = Cli::new().run(&["key", "create", "laptop"]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.said());
    assert!(ended.err.contains("--identity <ID>|--new-identity <NAME>"), "{}", ended.err);
    let both = ["key", "create", "laptop", "--identity", "01890a5d-ac96-774b-bcce-b302099a8057"];
    let both: Vec<&str> = both.into_iter().chain(["--new-identity", "ada", "--kind", "person"]).collect();
    let ended = Cli::new().run(&both).await;
    assert!(ended.code == Some(2) && ended.err.contains("cannot be used with"), "{}", ended.said());
}
