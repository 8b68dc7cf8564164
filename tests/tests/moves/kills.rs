//! Two boxes as processes of their own, with real children and a real litestream, and a move back and forth; on each way the
//! source is killed at one boundary of its cut and the target at one of its landing. What they started lives on; the next
//! process of the box finishes (M-074, M-081, M-099).

use std::path::PathBuf;
use std::time::Duration;

use domain::audit::Actor;
use domain::ids::MoveId;
use domain::instances::moves::{self, MoveState, Outcome};
use domain::instances::{self, NewInstance};
use sandbox::exec::{Running, Spawn};
use sandbox::s3::{Options, Server};
use serde_json::json;
use tempfile::TempDir;
use tests::activator::kill_all;
use tests::db::Database;
use tests::wait::until;
use workers::activator::identity_in;

use crate::acting::rows_of;
use crate::support::{HOST, app, armed, host, put_region, region};

/// Bound of every wait.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any lease.
const LEASE: Duration = Duration::from_secs(60);

/// The boundaries of a cut, and of a landing, in their order.
const BOUNDARIES: [(&str, &str); 8] = [
    ("cut.before_close", "land.after_mint"),
    ("cut.after_close", "land.before_restore"),
    ("cut.before_proof", "activator.after_restore"),
    ("cut.before_delta", "land.before_adopt"),
    ("cut.before_record", "activator.before_rename"),
    ("cut.before_purge", "land.before_serve"),
    ("cut.before_flip", "land.after_serve"),
    ("cut.after_flip", "activator.before_child"),
];

struct World {
    db: Database,
    s3: Server,
    folder: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        for code in ["eu", "uk"] {
            kill_all(&self.folder.path().join(code).join("instances"));
        }
    }
}

impl World {
    async fn start() -> Self {
        let buckets = vec!["eu-data".to_owned(), "uk-data".to_owned()];
        let s3 = Server::start(Options { buckets, ..Options::default() }).expect("start the S3 server");
        let folder = TempDir::new().expect("a temporary folder");
        let world = Self { db: Database::start().await, s3, folder };
        for code in ["eu", "uk"] {
            put_region(&world.db, &armed(code)).await;
        }
        world
    }

    /// A worker of the region's box, which kills itself at a point; none where that is empty.
    fn work(&self, code: &str, dies: &str) -> Running {
        let dies = if dies.is_empty() { String::new() } else { format!("{dies}=abort@1") };
        let setup = json!({
            "database": self.db.url(), "identity": format!("{code}-1"), "region": code,
            "data_dir": self.folder.path().join(code), "s3": self.s3.endpoint(),
            "access_key": self.s3.access_key(), "secret_key": self.s3.secret_key(),
            "tenant": env!("CARGO_BIN_EXE_test-tenant"),
            "litestream": sandbox::tools::find_litestream().expect("find litestream"), "dies": dies,
        });
        let file = self.folder.path().join(format!("{code}.json"));
        std::fs::write(&file, setup.to_string()).expect("its setup");
        let log = self.folder.path().join(format!("{code}.log"));
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_test-box")).arg(file).cwd(self.folder.path());
        spawn.log_file(log).start().expect("start a box")
    }

    fn database(&self, code: &str) -> PathBuf {
        self.file(code, "app.db")
    }

    fn file(&self, code: &str, name: &str) -> PathBuf {
        self.folder.path().join(code).join("instances").join(HOST).join(name)
    }

    /// Whether a child of the host lives on this box.
    fn lives(&self, code: &str) -> bool {
        identity_in(&self.file(code, "child.json")).is_some_and(|child| child.lives().expect("a look"))
    }

    async fn read(&self, id: MoveId) -> moves::Move {
        moves::get(&mut self.db.session().await, id).await.expect("an answer").expect("a move")
    }

    async fn placed(&self) -> String {
        let record = instances::get(&mut self.db.session().await, &app(), &host(HOST)).await;
        record.expect("an answer").expect("a record").region.to_string()
    }

    /// Waits until a box serves with at least so many rows.
    async fn until_rows(&self, code: &str, rows: u64) {
        until("rows where it is served", LIMIT, || async {
            assert!(!(self.lives("eu") && self.lives("uk")), "one writer at every instant");
            (self.lives(code) && rows_of(&self.database(code)).is_some_and(|n| n >= rows)).then_some(())
        })
        .await;
    }

    async fn until_killed(&self, code: &str, running: Running, point: &str) {
        let status = running.wait_timeout(LIMIT).await;
        let status = status.unwrap_or_else(|| panic!("{code} never came to {point}: {}", running.log_tail()));
        assert!(!status.success(), "{code} is killed at {point}: {status}");
        assert!(!(self.lives("eu") && self.lives("uk")), "{point}: one writer");
    }

    /// One way, with both boxes killed on it. Returns the rows that the target had at last.
    async fn way(&self, from: &str, to: &str, (cut, land): (&str, &str), rows: u64) -> u64 {
        let source = self.work(from, cut);
        let target = self.work(to, land);
        self.until_rows(from, rows).await;
        let id = until("the move begins", LIMIT, || async {
            let mut conn = self.db.session().await;
            moves::start(&mut conn, &app(), &host(HOST), to, Actor::System).await.ok().map(|started| started.id)
        })
        .await;
        until("it is ready", LIMIT, || async {
            (self.read(id).await.state.known() == Some(MoveState::Ready)).then_some(())
        })
        .await;
        let acknowledged = rows_of(&self.database(from)).expect("a database");
        let cutting = moves::cut(&mut self.db.session().await, &app(), &host(HOST), Actor::System, None).await;
        cutting.expect("it is taken");
        self.until_killed(from, source, cut).await;
        let placed = if cut == "cut.after_flip" { to } else { from };
        assert_eq!(self.placed().await, placed, "{cut}");
        if cut == "cut.before_flip" {
            // M-081: nobody else ends what a dead box began, however long it is dead.
            self.db.clock().advance(LEASE * 60).await;
            instances::requeue_landings(&mut self.db.session().await).await.expect("an answer");
            let found = self.read(id).await;
            assert_eq!((found.state.known(), found.outcome), (Some(MoveState::Cutting), None));
            assert_eq!(self.placed().await, from);
            assert!(!self.lives(from) && !self.lives(to) && !self.database(to).exists(), "nothing runs meanwhile");
        }
        self.db.clock().advance(LEASE).await;
        let source = self.work(from, "");
        self.until_killed(to, target, land).await;
        assert_eq!(self.placed().await, to, "{land}");
        self.db.clock().advance(LEASE).await;
        let target = self.work(to, "");
        self.until_rows(to, acknowledged + 1).await;
        let found = until("it ends", LIMIT, || async {
            Some(self.read(id).await).filter(|found| found.staging_deleted_at.is_some())
        })
        .await;
        assert_eq!((found.outcome, found.landed_at.is_some()), (Some(Outcome::Moved), true), "{cut}, {land}");
        assert!(!self.database(from).exists() && !self.lives(from), "{cut}, {land}");
        // As roughly as the others.
        source.kill9();
        target.kill9();
        rows_of(&self.database(to)).expect("a database")
    }
}

async fn back_and_forth(boundaries: &[(&str, &str)]) {
    let world = World::start().await;
    let (first, other) = (world.work("eu", ""), world.work("uk", ""));
    let env = [("TENANT_WRITES".to_owned(), "1".to_owned())].into();
    let new = NewInstance { env, ..NewInstance::new(app(), host(HOST), region("eu")) };
    until("the region can host", LIMIT, || async {
        instances::create(&mut world.db.session().await, &new, Actor::System).await.ok()
    })
    .await;
    world.until_rows("eu", 10).await;
    drop((first, other));
    let (mut from, mut to, mut rows) = ("eu", "uk", 10);
    for points in boundaries {
        rows = world.way(from, to, *points, rows).await;
        (from, to) = (to, from);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_that_are_killed_at_the_first_boundaries_of_cut_and_landing_finish_with_every_row() {
    back_and_forth(&BOUNDARIES[..4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_that_are_killed_at_the_last_boundaries_of_cut_and_landing_finish_with_every_row() {
    back_and_forth(&BOUNDARIES[4..]).await;
}
