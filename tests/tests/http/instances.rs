//! The doors of instances and moves (M-014…M-025, M-033…M-035, M-113).

use std::collections::BTreeSet;

use domain::authority::{IdentityKind, Role, Scopes};
use domain::ids::{QueueName, WorkerId};
use domain::instances::jobs::LandArgs;
use domain::nodes::{self, Capabilities, Node, NodeSpec};
use secrecy::SecretString;
use serde_json::{Value, json};
use tests::api::{Server, Told, of_app};
use wire::{Code, Instance, MoveFilter, MoveRequest, NewInstance, RegionRequest};

const APP: &str = "acme";
const HOST: &str = "ledger.acme.example";
const DOOR: &str = "/v1/apps/acme/instances/ledger.acme.example/move";

fn to(region: &str) -> MoveRequest {
    MoveRequest { region: region.to_owned() }
}

fn new_instance(host: &str, region: &str) -> NewInstance {
    serde_json::from_value(json!({"host": host, "region": region})).expect("the required fields")
}

fn region(name: &str) -> RegionRequest {
    RegionRequest {
        name: name.to_owned(),
        armed: true,
        dormant: false,
        home: false,
        default: false,
        data_bucket: format!("data-{name}"),
        data_bucket_region: "us-east-1".to_owned(),
    }
}

/// A server with the regions eu and uk, a box in each, and an application's key.
struct Fleet {
    server: Server,
    app: SecretString,
    eu: Node,
}

impl Fleet {
    async fn start() -> Self {
        let server = Server::start().await;
        for code in ["eu", "uk"] {
            server.client().put_region(code, &region(code)).await.expect("declared");
        }
        let (_, app) = server.key(IdentityKind::App, &[], None, of_app(APP)).await;
        let eu = put_box(&server, "eu").await;
        put_box(&server, "uk").await;
        Self { server, app, eu }
    }

    /// With an instance that the box in eu serves.
    async fn with_instance() -> Self {
        let fleet = Self::start().await;
        fleet.create(&new_instance(HOST, "eu")).await;
        fleet
    }

    fn client(&self) -> wire::Client {
        self.server.client_of(&self.app)
    }

    /// Creates a record and lands it in eu, as the box's worker would.
    async fn create(&self, new: &NewInstance) -> Instance {
        let made = self.client().create_instance(APP, new, None).await.expect("created");
        assert!(made.created);
        let mut conn = self.server.db.pool().acquire().await.expect("a connection");
        let worker = domain::queue::WorkerSpec {
            worker: WorkerId::generate(),
            queues: vec![QueueName::of_region(&self.eu.region)],
            kinds: vec![(domain::instances::jobs::land_spec().kind, std::time::Duration::from_secs(30))],
        };
        let leased = domain::queue::lease_next(&mut conn, &worker, 1).await.expect("leased").pop().expect("a landing");
        let args: LandArgs = serde_json::from_value(leased.args).expect("the arguments");
        domain::instances::land(&mut conn, leased.lease, args.instance_id, self.eu.id).await.expect("landed");
        self.client().instance(APP, &new.host).await.expect("found")
    }

    /// Everything that a refused call must leave as it was.
    async fn dump(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for table in ["regions", "instances", "moves", "jobs", "audit_events", "routes"] {
            let query = format!("select to_jsonb(t)::text from {table} t order by 1");
            let found: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
                .fetch_all(self.server.db.pool())
                .await
                .expect("the rows");
            rows.extend(found);
        }
        rows
    }
}

async fn put_box(server: &Server, code: &str) -> Node {
    let spec = NodeSpec {
        identity: format!("box-{code}"),
        region: code.parse().expect("a code"),
        capabilities: Capabilities { exec: true, ..Capabilities::default() },
        data: Some(nodes::Bucket { name: format!("data-{code}"), region: "us-east-1".to_owned() }),
    };
    let mut conn = server.db.pool().acquire().await.expect("a connection");
    nodes::register(&mut conn, &spec).await.expect("registered")
}

fn refusal(error: &wire::Error) -> (u16, Option<Code>) {
    error.problem().map_or((0, None), |problem| (problem.status, Code::parse(&problem.code)))
}

#[tokio::test]
async fn a_record_is_answered_in_its_one_form_and_carries_a_move_only_while_one_is_in_flight() {
    // M-001, M-003, M-005…M-007, M-019, M-034.
    let fleet = Fleet::with_instance().await;
    let place = format!("/v1/apps/{APP}/instances/{HOST}");
    let before = Told::by(fleet.server.request("GET", &place)).await;
    let fields = "host app kind backing role placement pool hibernate region observed_region replica_regions env revision created_at";
    let at: Vec<Option<usize>> = fields.split(' ').map(|field| before.text.find(&format!("\"{field}\":"))).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "every field, in order: {}", before.text);
    assert!(!before.text.contains("\"move\""));
    let record: Instance = serde_json::from_str(&before.text).expect("the wire's form");
    assert_eq!(
        serde_json::to_string(&record).expect("JSON"),
        before.text,
        "the client's form is the same, byte by byte"
    );
    assert_eq!(before.header("etag"), Some(format!("\"{}\"", record.revision).as_str()));
    assert_eq!((record.region.as_str(), record.observed_region.as_deref()), ("eu", Some("eu")));
    let told = Told::by(fleet.server.request("POST", DOOR).json(&to("uk"))).await;
    assert_eq!(told.status, 202, "{told:?}");
    let moving = told.json();
    assert_eq!(
        moving.as_object().map(|fields| fields.keys().cloned().collect()),
        Some(BTreeSet::from(["requested_at", "state", "to"].map(str::to_owned)))
    );
    assert_eq!((moving["to"].as_str(), moving["state"].as_str()), (Some("uk"), Some("preparing")));
    let after = Told::by(fleet.server.request("GET", &place)).await;
    assert_eq!(after.json()["move"], moving, "verbatim");
    assert_eq!(
        (after.json()["region"].as_str(), after.json()["revision"].as_i64()),
        (Some("eu"), Some(record.revision + 1))
    );
    let found = fleet.client().moves_of(APP, HOST).await.expect("the history").items;
    assert_eq!(told.header("location"), Some(format!("/v1/moves/{}", found[0].id).as_str()));
    assert_eq!(fleet.client().get_move(found[0].id).await.expect("found"), found[0]);
}

#[tokio::test]
async fn the_door_is_open_to_the_applications_bearer_and_to_operators_and_to_nobody_else() {
    // M-014.
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    let before = fleet.dump_of_world().await;
    let everything = of_app(APP);
    let (_, instance) = server.key(IdentityKind::Instance, &[], None, everything.clone()).await;
    let (_, node) = server
        .key(
            IdentityKind::Node,
            &[],
            None,
            Scopes { node: Some(BTreeSet::from(["box-eu".to_owned()])), app: everything.app.clone() },
        )
        .await;
    let (_, viewer) = server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    for key in [&instance, &node, &viewer] {
        let error = server.client_of(key).move_instance(APP, HOST, &to("uk")).await.expect_err("not its door");
        assert_eq!(refusal(&error), (403, Some(Code::PermissionDenied)), "{error}");
    }
    let told = Told::by(server.bare("POST", DOOR).json(&to("uk"))).await;
    assert_eq!(told.problem(), (401, "unauthenticated".to_owned()));
    let told = Told::by(server.bare("POST", DOOR).bearer_auth("lh_wrong").json(&to("uk"))).await;
    assert_eq!(told.problem(), (401, "unauthenticated".to_owned()));
    // Another application's bearer learns nothing, not even that the host exists.
    let (_, other) = server.key(IdentityKind::App, &[], None, of_app("other")).await;
    let error = server.client_of(&other).move_instance(APP, HOST, &to("uk")).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)), "{error}");
    assert_eq!(fleet.dump_of_world().await, before);
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("its own bearer");
    fleet.create(&new_instance("two.acme.example", "eu")).await;
    let (_, operator) = server.key(IdentityKind::Person, &[Role::Operator], None, Scopes::default()).await;
    server.client_of(&operator).move_instance(APP, "two.acme.example", &to("uk")).await.expect("an operator");
}

impl Fleet {
    /// As [`Fleet::dump`], without what making keys writes.
    async fn dump_of_world(&self) -> Vec<String> {
        self.dump().await.into_iter().filter(|row| !row.contains("\"action\": \"key.")).collect()
    }
}

#[tokio::test]
async fn a_body_without_a_region_is_refused_with_400() {
    // M-015.
    let fleet = Fleet::with_instance().await;
    let before = fleet.dump().await;
    for body in [
        "",
        "{",
        "{}",
        "[]",
        r#"{"region": ""}"#,
        r#"{"region": 5}"#,
        r#"{"region": null}"#,
        r#"{"region": ["uk"]}"#,
        r#"{"region": "uk", "region": "uk"}"#,
        r#"{"region": "uk", "cut": "auto"}"#,
    ] {
        let request = fleet.server.request("POST", DOOR).header("content-type", "application/json");
        let told = Told::by(request.body(body)).await;
        assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "{body}");
    }
    let told = Told::by(fleet.server.request("POST", DOOR).body(r#"{"region": "uk"}"#)).await;
    assert_eq!(told.problem(), (400, "wrong_content_type".to_owned()));
    assert_eq!(fleet.dump().await, before, "and nothing was changed, no serial either (M-035)");
}

#[tokio::test]
async fn a_region_that_cannot_take_the_instance_is_refused_with_400() {
    // M-016, M-017.
    let fleet = Fleet::with_instance().await;
    let client = fleet.server.client();
    for (code, dormant) in [("off", false), ("far", true)] {
        client.put_region(code, &RegionRequest { armed: false, dormant, ..region(code) }).await.expect("declared");
        put_box(&fleet.server, code).await;
    }
    client.put_region("bare", &region("bare")).await.expect("declared");
    let before = fleet.dump().await;
    for (code, expected) in [
        ("mars", Code::RegionUnknown),
        ("No Code", Code::RegionUnknown),
        ("off", Code::RegionUnarmed),
        ("far", Code::RegionUnarmed),
        ("bare", Code::RegionCannotHost),
        ("eu", Code::SameRegion),
    ] {
        let error = fleet.client().move_instance(APP, HOST, &to(code)).await.expect_err(code);
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
    }
    assert_eq!(fleet.dump().await, before);
}

#[tokio::test]
async fn what_cannot_follow_is_refused_by_a_code_of_its_own() {
    // M-020…M-024, M-117.
    let fleet = Fleet::start().await;
    let cases: Vec<(&str, Value, Code, &str)> = vec![
        ("unit", json!({"kind": "unit"}), Code::KindNotMovable, "unit"),
        ("addr", json!({"kind": "addr"}), Code::KindNotMovable, "addr"),
        ("static", json!({"kind": "static"}), Code::KindNotMovable, "static"),
        ("everywhere", json!({"kind": "everywhere"}), Code::KindNotMovable, "everywhere"),
        ("backing", json!({"backing": "container"}), Code::BackingNotMovable, "container"),
        ("replica", json!({"role": "replica"}), Code::Replica, "replica"),
        ("fleet", json!({"placement": "fleet"}), Code::FleetNotMovable, "fleet"),
        ("pool", json!({"pool": "gold"}), Code::PoolNotMovable, "gold"),
        ("awake", json!({"hibernate": false}), Code::HibernateRequired, "hibernate"),
    ];
    for (name, change, expected, word) in cases {
        let mut fields = json!({"host": format!("{name}.acme.example"), "region": "eu"});
        fields.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let new: NewInstance = serde_json::from_value(fields).expect("a record");
        fleet.create(&new).await;
        let before = fleet.dump().await;
        let error = fleet.client().move_instance(APP, &new.host, &to("uk")).await.expect_err(name);
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
        assert!(error.to_string().contains(word), "it names what holds it: {error}");
        // The body comes before the kind, the kind before the region (D-M11).
        let error = fleet.client().move_instance(APP, &new.host, &to("")).await.expect_err("an empty region");
        assert_eq!(refusal(&error), (400, Some(Code::MalformedRequest)), "{error}");
        let error = fleet.client().move_instance(APP, &new.host, &to("mars")).await.expect_err("two faults");
        assert_eq!(refusal(&error), (400, Some(expected)), "{error}");
        assert_eq!(fleet.dump().await, before);
    }
}

#[tokio::test]
async fn an_unknown_host_is_answered_as_every_other_door_does() {
    // M-025: before the body is looked at, and alike for what does not exist and what may not be seen.
    let fleet = Fleet::with_instance().await;
    let mut answers = BTreeSet::new();
    for (method, place) in [
        ("POST", "/v1/apps/acme/instances/nobody.acme.example/move"),
        ("POST", "/v1/apps/acme/instances/No%20Host/move"),
        ("POST", "/v1/apps/acme/instances/%2e%2e/move"),
        ("POST", "/v1/apps/other/instances/ledger.acme.example/move"),
        ("GET", "/v1/apps/acme/instances/nobody.acme.example"),
        ("GET", "/v1/apps/acme/instances/nobody.acme.example/moves"),
        ("GET", "/v1/apps/other/instances"),
        ("GET", "/v1/apps/other/regions"),
    ] {
        let request = fleet.server.bare(method, place).bearer_auth(secrecy::ExposeSecret::expose_secret(&fleet.app));
        let request = request.header("x-request-id", "same");
        let told = Told::by(if method == "POST" { request.body("{") } else { request }).await;
        assert_eq!(told.problem(), (404, "not_found".to_owned()), "{place}");
        answers.insert(told.text);
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn of_many_concurrent_moves_one_begins_and_the_others_are_told_so() {
    // M-018, M-033.
    let fleet = Fleet::with_instance().await;
    let serial = async || fleet.server.client().regions().await.expect("the regions").items[0].serial;
    let before = serial().await;
    let calls = (0..8).map(|_| {
        let client = fleet.client();
        async move { client.move_instance(APP, HOST, &to("uk")).await }
    });
    let (won, lost): (Vec<_>, Vec<_>) = futures::future::join_all(calls).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for error in lost.into_iter().filter_map(Result::err) {
        assert_eq!(refusal(&error), (409, Some(Code::MoveInFlight)), "{error}");
        let current = error.problem().and_then(|problem| problem.current.clone()).expect("the record");
        assert_eq!(current["move"]["state"], "preparing");
    }
    assert_eq!(serial().await, before.map(|serial| serial + 1), "one write, one serial (M-035)");
    for state in ["ready", "cutting", "aborting"] {
        sqlx::query("update moves set state = $1, ready_at = lh_now()")
            .bind(state)
            .execute(fleet.server.db.pool())
            .await
            .expect("the move goes on");
        let error = fleet.client().move_instance(APP, HOST, &to("uk")).await.expect_err(state);
        assert_eq!(refusal(&error), (409, Some(Code::MoveInFlight)), "{error}");
        assert!(error.to_string().contains(state), "{error}");
    }
    let open =
        fleet.client().moves(&MoveFilter { open: Some(true), ..MoveFilter::default() }).await.expect("the moves");
    assert_eq!(open.items.len(), 1);
    let (_, other) = fleet.server.key(IdentityKind::App, &[], None, of_app("other")).await;
    let hidden = fleet.server.client_of(&other);
    assert!(hidden.moves(&MoveFilter::default()).await.expect("a list").items.is_empty());
    let error = hidden.get_move(open.items[0].id).await.expect_err("not its application");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
}

#[tokio::test]
async fn the_listed_regions_are_those_that_the_door_takes() {
    // M-113, M-016.
    let fleet = Fleet::with_instance().await;
    let client = fleet.server.client();
    client.put_region("off", &RegionRequest { armed: false, ..region("off") }).await.expect("declared");
    client.put_region("bare", &region("bare")).await.expect("declared");
    client.put_region("dim", &RegionRequest { dormant: true, ..region("dim") }).await.expect("declared");
    put_box(&fleet.server, "off").await;
    put_box(&fleet.server, "dim").await;
    let listed = fleet.client().app_regions(APP).await.expect("the regions").items;
    assert_eq!(listed.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["bare", "eu", "off", "uk"]);
    assert!(
        listed.iter().all(|r| r.serial.is_none() && r.data_bucket.is_none()),
        "buckets are the operators' business"
    );
    for (i, region) in listed.iter().filter(|region| region.code != "eu").enumerate() {
        let host = format!("r{i}.acme.example");
        fleet.create(&new_instance(&host, "eu")).await;
        let taken = fleet.client().move_instance(APP, &host, &to(&region.code)).await.is_ok();
        assert_eq!(taken, region.armed && region.can_host, "{region:?}");
    }
    fleet.client().move_instance(APP, HOST, &to("dim")).await.expect("a dormant region is taken by name");
}

#[tokio::test]
async fn a_record_is_created_once_and_refused_with_its_reason() {
    let fleet = Fleet::start().await;
    let client = fleet.client();
    let first = client.create_instance(APP, &new_instance(HOST, "eu"), Some("k1")).await.expect("created");
    let again = client.create_instance(APP, &new_instance(HOST, "eu"), Some("k1")).await.expect("answered");
    assert!(first.created && again.replayed && first.value == again.value);
    for (fields, expected) in [
        (json!({"host": HOST, "region": "uk"}), (409, Code::HostTaken)),
        (json!({"host": "x.example", "region": "mars"}), (400, Code::RegionUnknown)),
        (json!({"host": "x.example", "region": "No Code"}), (400, Code::RegionUnknown)),
        (json!({"host": "x.example", "region": "eu", "replica_regions": ["mars"]}), (400, Code::RegionUnknown)),
        (json!({"host": "../x", "region": "eu"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "kind": "ship"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "role": "king"}), (422, Code::ValidationFailed)),
        (json!({"host": "x.example", "region": "eu", "env": {"1BAD": "x"}}), (422, Code::ValidationFailed)),
    ] {
        let new: NewInstance = serde_json::from_value(fields.clone()).expect("the right shape");
        let error = client.create_instance(APP, &new, None).await.expect_err("refused");
        assert_eq!(refusal(&error), (expected.0, Some(expected.1)), "{fields}: {error}");
    }
    let told = Told::by(
        fleet
            .server
            .request("POST", "/v1/apps/acme/instances")
            .json(&json!({"host": "x.example", "region": "eu", "colour": 1})),
    )
    .await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()));
    let error = client.move_instance(APP, HOST, &to("uk")).await.expect_err("no box has it yet");
    assert_eq!(refusal(&error), (409, Some(Code::NotPlaced)));
    let page = client.instances(APP, Some(1), None).await.expect("a page");
    assert_eq!((page.items.len(), page.next_cursor), (1, None));
    let acts = fleet.server.client().audit(Some("instance"), Some(HOST), None, None).await.expect("the trail").items;
    assert_eq!(acts.iter().map(|act| act.action.as_str()).collect::<Vec<_>>(), ["instance.create"]);
}

#[tokio::test]
async fn the_edges_document_says_what_is_served_and_where_replicas_stand() {
    // M-049, M-050.
    let fleet = Fleet::with_instance().await;
    fleet.client().create_instance(APP, &new_instance("new.acme.example", "eu"), None).await.expect("created");
    let edges = fleet.server.client().edges("eu").await.expect("the document");
    assert_eq!((edges.region.as_str(), edges.data_bucket.as_deref()), ("eu", Some("data-eu")));
    assert_eq!(edges.routes.iter().map(|r| (r.host.as_str(), r.node)).collect::<Vec<_>>(), [(HOST, fleet.eu.id.0)]);
    assert_eq!(edges.unserved, ["new.acme.example"]);
    assert_eq!(edges.boxes.iter().map(|b| b.identity.as_str()).collect::<Vec<_>>(), ["box-eu"]);
    let error = fleet.server.client().edges("mars").await.expect_err("no such region");
    assert_eq!(refusal(&error), (404, Some(Code::NotFound)));
    let (_, node) = fleet
        .server
        .key(IdentityKind::Node, &[], None, Scopes { node: Some(BTreeSet::from(["box-eu".to_owned()])), app: None })
        .await;
    assert!(fleet.server.client_of(&node).edges("eu").await.is_ok(), "a box reads it with its own key");
}

#[tokio::test]
async fn a_region_keeps_its_first_bucket_and_is_the_only_default() {
    let fleet = Fleet::start().await;
    let client = fleet.server.client();
    let other = RegionRequest { data_bucket: "elsewhere".to_owned(), ..region("eu") };
    let error = client.put_region("eu", &other).await.expect_err("replicas would be split");
    assert_eq!(refusal(&error), (409, Some(Code::BucketDiffers)), "{error}");
    client.put_region("eu", &RegionRequest { default: true, ..region("eu") }).await.expect("the default");
    let error = client.put_region("uk", &RegionRequest { default: true, ..region("uk") }).await.expect_err("a second");
    assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)), "{error}");
    for (code, fields) in [("No Code", region("x")), ("x", RegionRequest { name: String::new(), ..region("x") })] {
        let error = client.put_region(code, &fields).await.expect_err("out of bounds");
        assert_eq!(refusal(&error), (422, Some(Code::ValidationFailed)), "{error}");
    }
    let acts = client.audit(Some("region"), Some("eu"), None, None).await.expect("the trail").items;
    assert_eq!(acts.len(), 2, "each change that was made, and no refused one");
}
