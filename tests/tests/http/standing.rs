//! Why an instance is where it is, whether it runs, and what a move left: over HTTP (M-034, M-114).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::authority::{IdentityKind, Role, Scopes};
use domain::instances::config_key;
use domain::instances::why::OBSTACLES;
use serde_json::json;
use tests::api::{Told, of_app};
use tests::fleet::{APP, Fleet, HOST, new_instance, put_worker, refusal, to};
use wire::{Code, InstanceWhy};

/// A fleet whose box in eu has a live worker, with an instance.
async fn served() -> Fleet {
    let fleet = Fleet::with_instance().await;
    put_worker(fleet.server.db.pool(), &fleet.eu).await;
    fleet
}

async fn why(fleet: &Fleet) -> InstanceWhy {
    let why = fleet.client().instance_why(APP, HOST).await.expect("an answer");
    assert_eq!((why.app.as_str(), why.host.as_str()), (APP, HOST));
    why
}

fn codes(why: &InstanceWhy) -> Vec<&str> {
    why.reasons.iter().map(|reason| reason.code.as_str()).collect()
}

#[tokio::test]
async fn an_instance_is_parked_and_woken_by_whoever_may_move_it_and_its_record_shows_it() {
    let fleet = served().await;
    let server = &fleet.server;
    let record = fleet.client().instance(APP, HOST).await.expect("found");
    assert!(!record.parked);
    let before = fleet.dump_of_world().await;
    let (_, instance) = server.key(IdentityKind::Instance, &[], None, of_app(APP)).await;
    let (_, viewer) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    for key in [&instance, &viewer] {
        for asked in [
            server.client_of(key).park_instance(APP, HOST).await,
            server.client_of(key).wake_instance(APP, HOST).await,
            server.client_of(key).restart_instance(APP, HOST, None).await,
        ] {
            assert_eq!(refusal(&asked.expect_err("not its door")), (403, Some(Code::PermissionDenied)));
        }
    }
    let (_, other) = server.key(IdentityKind::App, &[], None, of_app("other")).await;
    for error in [
        server.client_of(&other).park_instance(APP, HOST).await.expect_err("not its application"),
        fleet.client().park_instance(APP, "nobody.example").await.expect_err("no such host"),
        fleet.client().instance_why(APP, "nobody.example").await.expect_err("no such host"),
    ] {
        assert_eq!(refusal(&error), (404, Some(Code::NotFound)), "{error}");
    }
    assert_eq!(fleet.dump_of_world().await, before, "a refused call changes nothing");

    let serial = async || server.client().edges("eu").await.expect("the document").serial;
    let at_first = serial().await;
    let parked = fleet.client().park_instance(APP, HOST).await.expect("its own bearer");
    assert_eq!((parked.parked, parked.revision), (true, record.revision + 1));
    assert_eq!(serial().await, at_first + 1, "its box must notice");
    let again = fleet.client().park_instance(APP, HOST).await.expect("parked already");
    assert_eq!((again.revision, serial().await), (parked.revision, at_first + 1), "what is so already changes nothing");
    let told = why(&fleet).await;
    assert_eq!((codes(&told), told.parked), (vec!["parked"], true));
    assert!(told.reasons[0].todo.as_deref().is_some_and(|todo| todo.contains("leasehold instance wake")), "{told:?}");
    let (_, operator) = server.key(IdentityKind::Person, &[Role::Operator], None, Scopes::default()).await;
    let woken = server.client_of(&operator).wake_instance(APP, HOST).await.expect("an operator");
    assert!(!woken.parked && !why(&fleet).await.parked);
    let restarted = fleet.client().restart_instance(APP, HOST, Some(woken.revision)).await.expect("its own bearer");
    assert_eq!((restarted.revision, serial().await), (woken.revision + 1, at_first + 3), "its box must notice");
    let stale = fleet.client().restart_instance(APP, HOST, Some(woken.revision)).await.expect_err("changed since");
    assert_eq!(refusal(&stale), (412, Some(Code::StaleRevision)));
    let acts = server.client().audit(Some("instance"), Some(HOST), None, None).await.expect("the trail").items;
    let acts: Vec<&str> = acts.iter().map(|act| act.action.as_str()).collect();
    assert_eq!(
        acts[..3],
        ["instance.restart", "instance.wake", "instance.park"],
        "each change that was made, and no repeated one"
    );
}

#[tokio::test]
async fn why_names_what_holds_a_move_up_with_the_first_thing_to_act_on_first() {
    let fleet = served().await;
    let told = why(&fleet).await;
    assert_eq!((told.phase.as_str(), codes(&told)), ("serving", vec!["serving"]));
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let told = why(&fleet).await;
    assert_eq!((told.phase.as_str(), codes(&told)), ("preparing", vec!["first_round"]));
    fleet
        .sql(
            "update moves set status = jsonb_build_object('obstacle', jsonb_build_object('code', 'target_forbidden',
                'message', 'the key may not list moves/ of bucket data-uk', 'permanent', true),
                'obstacle_since', '2026-03-14T03:00:00Z', 'failures', 3)",
        )
        .await;
    let told = why(&fleet).await;
    assert_eq!(codes(&told), ["target_forbidden", "first_round"]);
    let first = &told.reasons[0];
    assert!(first.permanent && first.since.is_some(), "{first:?}");
    assert_eq!(first.message, "The key may not list moves/ of bucket data-uk.");
    assert!(first.todo.as_deref().is_some_and(|todo| todo.contains("sibling_staging_arns")), "{first:?}");
    assert_eq!(told.moving.as_ref().map(|it| it.failures), Some(3));
    // A pause of the box's queue is lifted by a person, too; what the box said comes first.
    let queue = format!("node.{}", fleet.eu.id);
    let reason = wire::Reason { reason: Some("a look at the disk".to_owned()) };
    fleet.server.client().pause_queue(&queue, &reason, None).await.expect("paused");
    assert_eq!(codes(&why(&fleet).await), ["target_forbidden", "paused_queue", "first_round"]);
    // And a box that is not heard any more comes before all of it.
    fleet.server.db.clock().advance(Duration::from_secs(90)).await;
    let told = why(&fleet).await;
    assert_eq!(codes(&told), ["box_silent", "target_forbidden", "paused_queue", "first_round"]);
    assert!(told.reasons[0].message.starts_with("Box box-eu in eu is not heard"), "{:?}", told.reasons[0]);
    assert!(told.seat.is_some_and(|seat| !seat.live));
}

#[tokio::test]
async fn what_holds_a_landing_up_stands_on_the_record_only_while_it_does() {
    // M-114: after the flip the record is placed in uk, and until its route is retired it is observed in eu.
    let fleet = served().await;
    fleet.sql("update routes set status = 'moving'; update instances set region = 'uk'").await;
    let told = why(&fleet).await;
    assert_eq!((told.region.as_str(), told.observed_region.as_deref()), ("uk", Some("eu")));
    assert_eq!(told.reasons.last().map(|it| it.code.as_str()), Some("regions_differ"));
    assert!(told.reasons.last().is_some_and(|it| it.message.contains("has not retired its route yet")), "{told:?}");
    fleet
        .sql(
            "update routes set status = 'landing', held_since = '2026-03-14T03:00:00Z',
                    node_id = (select id from nodes where identity = 'box-uk'),
                    held = '{\"code\": \"staging_missing\", \"message\": \"nothing is staged\", \"permanent\": true}'",
        )
        .await;
    let record = fleet.client().instance(APP, HOST).await.expect("found");
    let held = record.held.expect("held up");
    assert_eq!(
        (held.code.as_str(), held.permanent, record.observed_region),
        ("staging_missing", true, Some("uk".to_owned()))
    );
    assert_eq!(json!(held)["since"], "2026-03-14T03:00:00Z");
    let told = Told::by(fleet.server.request("GET", &format!("/v1/apps/{APP}/instances/{HOST}"))).await;
    let fields =
        ["\"parked\":false", "\"observed_region\":\"uk\"", "\"held\":{\"code\":\"staging_missing\",\"message\":"];
    assert!(fields.iter().all(|field| told.text.contains(field)), "{}", told.text);
    let told = why(&fleet).await;
    assert_eq!((told.phase.as_str(), told.reasons[0].code.as_str()), ("landing", "staging_missing"), "{told:?}");
    assert!(told.reasons[0].permanent && told.reasons[0].todo.is_some());
    fleet.sql("update routes set status = 'serving', held = null, held_since = null").await;
    let told = Told::by(fleet.server.request("GET", &format!("/v1/apps/{APP}/instances/{HOST}"))).await;
    assert!(!told.text.contains("held"), "{}", told.text);
    assert!(told.text.contains("\"observed_region\":\"uk\""), "{}", told.text);
}

#[tokio::test]
async fn a_receipt_tells_what_a_move_proved_did_and_left_and_the_next_one_is_predicted_from_it() {
    let fleet = served().await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let id = fleet.client().moves_of(APP, HOST).await.expect("listed").items[0].id;
    let receipt = fleet.client().move_receipt(id).await.expect("so far");
    assert_eq!((receipt.moved.id, receipt.frozen_ms, receipt.old_replica), (id, None, None));
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = requested_at, cut_at = '2026-03-14T03:00:00Z',
                    tail_txid = '000000000000a3f1', tail_sha256 = repeat('ab', 32), tail_size = 4096,
                    purge_began_at = '2026-03-14T03:00:02Z', finished_at = '2026-03-14T03:00:03Z', outcome = 'moved',
                    landed_at = '2026-03-14T03:00:09.5Z', staging_deleted_at = '2026-03-14T03:00:10Z';
             update instances set region = 'uk';
             insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix, keep_until)
             select id, instance_id, host, 'eu', 'data-eu', 'us-east-1', 'instances/' || host || '/',
                    '2026-03-15T03:00:09.5Z' from moves;
             insert into move_steps (move_id, job_id, fence, step, started_at, ended_at, outcome)
             select m.id, gen_random_uuid(), 7, s, '2026-03-14T03:00:00Z', '2026-03-14T03:00:01Z', 'done'
               from moves m, unnest(array['round', 'close_route', 'round', 'flip']) with ordinality as t (s, n) order by n",
        )
        .await;
    let receipt = fleet.client().move_receipt(id).await.expect("the receipt");
    assert_eq!(receipt.frozen_ms, Some(9_500));
    assert_eq!(receipt.moved.tail.as_ref().map(|tail| tail.txid.as_str()), Some("000000000000a3f1"));
    let steps: Vec<&str> = receipt.steps.iter().map(|step| step.step.as_str()).collect();
    assert_eq!(steps, ["close_route", "flip"], "oldest first, and no round");
    let old = receipt.old_replica.expect("kept");
    assert_eq!((old.region.as_str(), old.bucket.as_str(), old.purged_at), ("eu", "data-eu", None));
    assert_eq!(old.keep_until.map(|at| at.to_rfc3339()), Some("2026-03-15T03:00:09.500+00:00".to_owned()));
    assert_eq!(why(&fleet).await.predicted_freeze_ms, Some(9_500), "by the cuts between the two regions");
    let (_, other) = fleet.server.key(IdentityKind::App, &[], None, of_app("other")).await;
    let error = fleet.server.client_of(&other).move_receipt(id).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    fleet.create(&new_instance("two.acme.example", "eu")).await;
    let two = fleet.client().instance_why(APP, "two.acme.example").await.expect("an answer");
    assert_eq!((two.moving, two.predicted_freeze_ms), (None, None));
}

/// Every source in a folder and below it.
fn sources_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let each = entries.map(|path| match path.extension() {
        Some(ending) if ending == "rs" => vec![path],
        Some(_) => Vec::new(),
        None => sources_in(&path),
    });
    each.flatten().collect()
}

/// Every code by which the jobs of moves say what holds them up, as it stands in their sources.
fn codes_of_jobs() -> BTreeSet<String> {
    let files = sources_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../workers/src/jobs"));
    let begins = [
        "passing(\"",
        "lasting(\"",
        "of_box(\"",
        "of_restore(\"",
        "blocked(found, context, \"",
        "blocked(&found, context, \"",
        "code: \"",
    ];
    let mut codes = BTreeSet::new();
    for file in files {
        let source = std::fs::read_to_string(file).expect("a source");
        // On one line, however the formatter broke it.
        let source = source.split_whitespace().collect::<Vec<_>>().join(" ").replace("( \"", "(\"");
        for begin in begins {
            codes.extend(source.split(begin).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
        // By its name, where the domain has one.
        codes.extend(source.contains("config_key::CODE").then(|| config_key::CODE.to_owned()));
    }
    // What a pass that ended well says of itself is passed on.
    let pass = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../workers/src/mirror/pass.rs"));
    let pass = pass.expect("a source");
    let told = pass.split("pub const fn code(&self)").nth(1).and_then(|rest| rest.split("\n    }\n").next());
    codes.extend(told.expect("its codes").split('"').skip(1).step_by(2).map(str::to_owned));
    codes
}

#[test]
fn whatever_a_job_of_a_move_says_holds_it_up_is_known_to_why() {
    let codes = codes_of_jobs();
    // One of each file, so that a scan that forgets one is found.
    for known in
        ["prefix_occupied", "config_key", "restore_differs", "out_of_scope", "delete_refused", "source_unreadable"]
    {
        assert!(codes.contains(known), "{known}: {codes:?}");
    }
    let unknown: Vec<&String> = codes.iter().filter(|code| !OBSTACLES.contains(&code.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Every code that `why` gives of its own, as it stands in its sources: reasons, and those of a job that it passes on.
fn codes_of_why() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../domain/src/instances");
    let mut codes = BTreeSet::new();
    for file in ["why.rs", "why/going.rs"] {
        let source = std::fs::read_to_string(folder.join(file)).expect("a source");
        let rest = source.split("Reason::new(\"").skip(1);
        codes.extend(rest.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        let passed_on = source.split("let holds = matches!(").skip(1).filter_map(|rest| rest.split(';').next());
        codes.extend(passed_on.flat_map(|list| list.split('"').skip(1).step_by(2)).map(str::to_owned));
    }
    codes
}

#[test]
fn the_runbook_of_moves_has_a_line_for_everything_that_can_hold_one_up() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/runbooks/moves.md");
    let page = std::fs::read_to_string(path).expect("the runbook");
    let ours = codes_of_why();
    // One of each kind and file, so that a scan that finds nothing is found.
    for known in ["box_silent", "lease_expired", "behind_others", "regions_differ", "round_runs"] {
        assert!(ours.contains(known), "{known}: {ours:?}");
    }
    let all: Vec<&str> = OBSTACLES.into_iter().chain(ours.iter().map(String::as_str)).collect();
    let missing: Vec<&&str> = all.iter().filter(|code| !page.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
