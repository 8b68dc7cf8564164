//! Enrolments at once, and refusals that nobody can tell apart.

use std::sync::{Arc, Mutex};

use secrecy::SecretString;
use tests::api::{Server, Told, until};
use tests::enrolment::{Machine, enrolled, put_node, secret, server};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use wire::EnrolmentTokenRequest;

async fn sql(server: &Server, sql: &'static str) {
    sqlx::raw_sql(sql).execute(server.db.pool()).await.expect("the test's statement");
}

async fn count(server: &Server, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(server.db.pool()).await.expect("a count")
}

/// Waits until this many refusals are in the audit trail.
async fn until_noted(server: &Server, refusals: i64) {
    until("the refusals are noted", || async {
        count(server, "select count(*) from audit_events where action = 'node.enrol_refused'").await == refusals
    })
    .await;
}

#[tokio::test]
async fn of_eight_who_present_a_secret_at_once_one_wins_and_the_others_are_told_nothing() {
    // E11.
    let server = server().await;
    for _ in 0..5 {
        let node = put_node(&server, &format!("box-{}", domain::entropy::uuid_v7())).await;
        let secret = secret(&server, node.id).await;
        let machines: Vec<Machine> = (0..8).map(|_| Machine::new()).collect();
        let told = futures::future::join_all(machines.iter().map(|machine| machine.present(&server, &secret))).await;
        assert_eq!(told.iter().filter(|it| it.status == 200).count(), 1, "{told:?}");
        let unknown = Machine::new().present(&server, &SecretString::from("lhe_0")).await;
        for it in told.iter().filter(|it| it.status != 200) {
            assert_eq!((it.status, &it.text), (401, &unknown.text));
        }
        assert_eq!(server.client().node(node.id).await.expect("the record").incarnation, 1);
    }
    assert_eq!(count(&server, "select count(*) from node_credentials").await, 5);
}

#[tokio::test]
async fn of_eight_tokens_issued_at_once_one_lives() {
    // E09.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let (client, request) = (server.client(), EnrolmentTokenRequest::default());
    let issued = futures::future::join_all((0..8).map(|_| client.issue_enrolment_token(node.id, &request, None))).await;
    let mut enrolled = 0;
    for token in issued {
        let secret = token.expect("each is issued").value.secret.expect("told once");
        enrolled += i32::from(Machine::new().present(&server, &secret).await.status == 200);
    }
    assert_eq!(enrolled, 1);
    let ended = "select count(*) from node_enrolment_tokens where superseded_at is not null";
    assert_eq!((count(&server, ended).await, count(&server, "select count(*) from node_credentials").await), (7, 1));
}

/// Presents a secret while another session holds the node's row; what that session does commits before the row is free.
async fn present_while_held(server: &Server, secret: &SecretString, meanwhile: &str) -> Told {
    let mut holder = server.db.session().await;
    sqlx::raw_sql("begin; select from nodes for no key update").execute(&mut holder).await.expect("the row is held");
    let machine = Machine::new();
    let (told, ()) = tokio::join!(machine.present(server, secret), async {
        server.db.until_blocked().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{meanwhile}; commit"))).execute(&mut holder).await.expect("done");
    });
    told
}

#[tokio::test]
async fn a_redemption_that_waited_sees_what_was_done_meanwhile() {
    // E12, the blocked row: each of what can end a token, done by whoever holds the node's row.
    for (meanwhile, class) in [
        ("update node_enrolment_tokens set superseded_at = lh_now()", "superseded"),
        ("update node_enrolment_tokens set revoked_at = lh_now()", "revoked"),
        ("update node_enrolment_tokens set spent_at = lh_now()", "spent"),
        ("update nodes set lifecycle = 'decommissioned'", "decommissioned"),
        // The time of the token ends during the wait.
        ("update lh_test_clock set shift = shift + interval '1 hour'", "expired"),
    ] {
        let server = server().await;
        let node = put_node(&server, "box-1").await;
        let secret = secret(&server, node.id).await;
        let told = present_while_held(&server, &secret, meanwhile).await;
        assert_eq!(told.status, 401, "{meanwhile}: {told:?}");
        until_noted(&server, 1).await;
        let noted: String =
            sqlx::query_scalar("select detail ->> 'class' from audit_events where action = 'node.enrol_refused'")
                .fetch_one(server.db.pool())
                .await
                .expect("one");
        assert_eq!(noted, class);
        assert_eq!(count(&server, "select count(*) from node_credentials").await, 0, "{class}");
    }
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let secret = secret(&server, node.id).await;
    let told = present_while_held(&server, &secret, "update nodes set enabled = enabled").await;
    assert_eq!(told.status, 200, "a wait alone refuses nobody: {told:?}");
}

#[tokio::test]
async fn a_redemption_and_a_new_token_at_once_end_in_one_of_their_two_orders() {
    // E12.
    let server = server().await;
    for _ in 0..20 {
        let node = put_node(&server, &format!("box-{}", domain::entropy::uuid_v7())).await;
        let old = secret(&server, node.id).await;
        let machine = Machine::new();
        let (told, new) = tokio::join!(machine.present(&server, &old), secret(&server, node.id));
        let after = server.client().node(node.id).await.expect("the record");
        assert_eq!(after.incarnation, i64::from(told.status == 200), "{told:?}");
        assert!([200, 401].contains(&told.status) && after.token_expires_at.is_some(), "{told:?}");
        assert_eq!(Machine::new().present(&server, &new).await.status, 200, "the new token works in both");
    }
}

/// What the database was asked, statement by statement.
#[derive(Debug, Clone, Default)]
struct Statements(Arc<Mutex<Vec<String>>>);

impl Statements {
    fn has(&self, words: &str) -> bool {
        self.0.lock().expect("no holder panics").iter().any(|statement| statement.contains(words))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no holder panics"))
    }
}

impl<S: tracing::Subscriber> Layer<S> for Statements {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Text(String);
        impl Visit for Text {
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "db.statement" || (field.name() == "summary" && self.0.is_empty()) {
                    value.clone_into(&mut self.0);
                }
            }

            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        if event.metadata().target() == "sqlx::query" {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().expect("no holder panics").push(text.0.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
}

#[tokio::test]
async fn every_refusal_runs_the_same_statements_and_answers_the_same_bytes() {
    // E10, E13, E19. The test runs on one thread, and so does its server: the subscriber is the thread's own.
    let server = server().await;
    let mut secrets = Vec::new();
    for (n, end) in [
        "spent_at = lh_now()",
        "superseded_at = lh_now()",
        "revoked_at = lh_now()",
        "issued_at = issued_at - interval '2 hours', expires_at = expires_at - interval '2 hours'",
    ]
    .into_iter()
    .enumerate()
    {
        let node = put_node(&server, &format!("box-{n}")).await;
        secrets.push(secret(&server, node.id).await);
        let update = format!("update node_enrolment_tokens set {end} where node_id = '{}'", node.id);
        sqlx::raw_sql(sqlx::AssertSqlSafe(update)).execute(server.db.pool()).await.expect("ended");
    }
    let tombstone = put_node(&server, "box-gone").await;
    secrets.push(secret(&server, tombstone.id).await);
    sql(&server, "update nodes set lifecycle = 'decommissioned' where identity = 'box-gone'").await;
    secrets.push(SecretString::from(format!("lhe_{}", "0".repeat(64))));
    secrets.extend(["", "lhe_", "nonsense", "lhe_é"].map(SecretString::from));
    let expected = ["spent", "superseded", "revoked", "expired", "decommissioned", "unknown"];
    let malformed = secrets.len() - expected.len();

    let statements = Statements::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(statements.clone()));
    let mut all = Vec::new();
    for (n, secret) in secrets.iter().enumerate() {
        let noted = i64::try_from(n).expect("few");
        statements.take();
        let machine = Machine::new();
        let told = machine.present(&server, secret).await;
        // A statement is in the log after what it wrote can be seen.
        until("the refusal is logged", || async { statements.has("insert into audit_events") }).await;
        until_noted(&server, noted + 1).await;
        let mut asked = statements.take();
        // What the server's loops ask meanwhile, and this test itself, is nobody's redemption.
        let of_enrolment = |it: &str| it.contains("node_") || it.contains("insert into audit_events");
        asked.retain(|statement| of_enrolment(statement) && !statement.starts_with("select count(*)"));
        all.push((told, asked));
    }
    let (first, first_asked) = &all[0];
    assert_eq!(first.status, 401);
    let spends = first_asked.iter().filter(|it| it.contains("node_enrolment_tokens") && it.contains("update")).count();
    assert_eq!((spends, first_asked.len()), (1, 3), "one finds and spends, two note the refusal: {first_asked:#?}");
    for (told, asked) in &all {
        let headers = |told: &Told| {
            let mut all: Vec<String> = told.headers.iter().map(|(n, v)| format!("{n}: {v:?}")).collect();
            all.retain(|line| !line.starts_with("date:"));
            all
        };
        assert_eq!((told.status, &told.text, headers(told)), (401, &first.text, headers(first)));
        assert_eq!(asked, first_asked);
    }
    let classes: Vec<String> = sqlx::query_scalar(
        "select detail ->> 'class' from audit_events where action = 'node.enrol_refused' and detail ->> 'source' = '127.0.0.1' order by id",
    )
    .fetch_all(server.db.pool())
    .await
    .expect("the refusals");
    let expected: Vec<&str> = expected.into_iter().chain(std::iter::repeat_n("malformed", malformed)).collect();
    assert_eq!(classes, expected);
    for class in ["spent", "superseded", "revoked", "expired", "decommissioned", "malformed"] {
        assert!(!first.text.contains(class), "{}", first.text);
    }
}

#[tokio::test]
async fn whoever_tries_secrets_is_slowed_by_its_address_whatever_it_sends() {
    // E13, A17: the rate goes by the source alone.
    let config = api::Config { rate_per_second: 1, rate_burst: 40, ..Server::config() };
    let server = Server::start_with(config).await;
    let mut admitted = 0;
    for n in 0..200 {
        let told = Machine::new().present(&server, &SecretString::from(format!("lhe_{n:064}"))).await;
        if told.status == 429 {
            break;
        }
        assert_eq!(told.status, 401);
        admitted += 1;
    }
    assert!((40..60).contains(&admitted), "{admitted}");
    let elsewhere = reqwest::Client::builder()
        .no_proxy()
        .local_address(std::net::IpAddr::from([127, 0, 0, 2]))
        .build()
        .expect("a client");
    let body = Machine::new().body(&SecretString::from("lhe_0"));
    let theirs = Told::by(elsewhere.post(format!("{}/v1/enrolments", server.base)).json(&body)).await;
    assert_eq!(theirs.status, 401, "another address has its own rate");
}

#[tokio::test]
async fn a_machine_that_enrols_again_while_the_one_before_opens_sessions_leaves_one_that_can() {
    // A21.
    let server = server().await;
    let node = put_node(&server, "box-1").await;
    let old = enrolled(&server, node.id).await;
    let secret = secret(&server, node.id).await;
    let new = Machine::new();
    let (told, opened) = tokio::join!(new.present(&server, &secret), old.open(&server, node.id));
    assert_eq!(told.status, 200);
    if let Ok(session) = opened {
        let body = secrecy::ExposeSecret::expose_secret(&session.token).to_owned();
        let told = Told::by(server.bare("GET", "/v1/edges/eu").bearer_auth(body)).await;
        assert_eq!(told.status, 401, "what it opened is of the old incarnation: {told:?}");
    }
    assert!(old.open(&server, node.id).await.is_err() && new.open(&server, node.id).await.is_ok());
}
