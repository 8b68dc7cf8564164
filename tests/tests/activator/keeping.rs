//! The loop: what runs follows the box's routes.

use std::time::Duration;

use domain::audit::Actor;
use domain::ids::{AppName, Host, RegionCode};
use domain::instances::{self, NewInstance};
use domain::nodes::{self, Bucket, NodeSpec, RegionSpec};
use tests::db::Database;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workers::activator::{Identity, Settings, identity_in, keep};

use crate::rig::{Rig, host, rows, told};

mod keys;
mod replication;
mod restarts;

/// Longest wait for what the loop does within seconds.
const SOON: Duration = Duration::from_secs(20);

/// A box of `eu` in a database of its own, with its loop.
struct Kept {
    rig: Rig,
    db: Database,
    node: domain::ids::NodeId,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Kept {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let rig = Rig::with(|settings| {
            settings.start_limit = Duration::from_secs(4);
            change(settings);
        })
        .await;
        let db = Database::start().await;
        let mut conn = db.session().await;
        for code in ["eu", "uk"] {
            let data = Bucket { name: format!("{code}-data"), region: "us-east-1".to_owned() };
            let spec = RegionSpec {
                code: region(code),
                name: code.to_owned(),
                armed: true,
                dormant: false,
                home: false,
                is_default: false,
                data: Some(data),
            };
            nodes::put_region(&mut conn, &spec).await.expect("a region");
        }
        let spec = NodeSpec {
            identity: "eu-1".to_owned(),
            region: region("eu"),
            capabilities: nodes::Capabilities { exec: true, ..Default::default() },
            data: Some(Bucket { name: "eu-data".to_owned(), region: "us-east-1".to_owned() }),
        };
        let node = nodes::register(&mut conn, &spec).await.expect("the box").id;
        let (stop, running) = begin(&rig, &db, node);
        Self { rig, db, node, stop, running }
    }

    /// Another worker of the same box.
    async fn restart(&mut self) {
        self.end().await;
        self.rig.reopen().await;
        (self.stop, self.running) = begin(&self.rig, &self.db, self.node);
    }

    async fn end(&mut self) {
        self.stop.cancel();
        if !self.running.is_finished() {
            (&mut self.running).await.expect("no panic");
        }
    }

    /// A record whose route is this box's and serves.
    async fn place(&self, name: &str, env: &[(&str, &str)]) -> Host {
        let host = host(name);
        let mut new = NewInstance::new(AppName::new("acme").expect("a name"), host.clone(), region("eu"));
        new.env = crate::rig::environment(env);
        instances::create(&mut self.db.session().await, &new, Actor::System).await.expect("create");
        let sql = "insert into routes (host, instance_id, node_id, status, created_at) \
                   select host, id, $2, 'serving', lh_now() from instances where host = $1";
        sqlx::query(sql).bind(host.as_str()).bind(self.node.0).execute(self.db.pool()).await.expect("a route");
        host
    }

    /// Changes the route or the record of a host, as a verb does, and raises the region's serial.
    async fn change(&self, sql: &'static str, host: &Host) {
        let done = sqlx::query(sql).bind(host.as_str()).execute(self.db.pool()).await.expect("change");
        assert_eq!(done.rows_affected(), 1);
        nodes::bump_serial(&mut self.db.session().await, &region("eu")).await.expect("a serial");
    }

    async fn address(&self, host: &Host) -> Option<String> {
        let sql = "select address from routes where host = $1";
        sqlx::query_scalar(sql).bind(host.as_str()).fetch_one(self.db.pool()).await.expect("a route")
    }

    /// What is said of what is wrong with it.
    async fn held(&self, host: &Host) -> Option<serde_json::Value> {
        let sql = "select held from routes where host = $1";
        let found = sqlx::query_scalar::<_, Option<serde_json::Value>>(sql).bind(host.as_str());
        found.fetch_one(self.db.pool()).await.expect("a route")
    }

    /// Waits until edges are told where the child answers, and it does.
    async fn until_served(&self, host: &Host) -> Identity {
        tests::wait::until("it serves", SOON, || async {
            let address = self.rig.activator.running(host)?;
            let told_edges = self.address(host).await? == address.to_string();
            (told_edges && told(address)["LEASEHOLD_HOST"] == host.as_str()).then_some(())
        })
        .await;
        self.identity(host)
    }

    /// Waits until nothing of a host lives and edges know it.
    async fn until_down(&self, host: &Host) {
        tests::wait::until("it is down", SOON, || async {
            let lives = self.rig.activator.here().expect("look").get(host).is_some_and(|here| here.lives);
            (!lives && self.address(host).await.is_none()).then_some(())
        })
        .await;
    }

    async fn park(&self, host: &Host, parked: bool) {
        let (app, actor) = (AppName::new("acme").expect("a name"), Actor::System);
        let done = instances::set_parked(&mut self.db.session().await, &app, host, parked, actor).await;
        done.expect("it is taken");
    }

    fn identity(&self, host: &Host) -> Identity {
        self.try_identity(host).expect("a record")
    }

    /// There is no record for the moment before a start.
    fn try_identity(&self, host: &Host) -> Option<Identity> {
        identity_in(&self.rig.path(host, "child.json"))
    }

    /// Kills a child, and waits until another was started in its place.
    async fn replace(&self, host: &Host, child: &Identity) {
        tests::activator::kill(child.pid);
        tests::wait::until("another child", SOON, || async { self.try_identity(host).filter(|now| now != child) })
            .await;
    }
}

fn begin(rig: &Rig, db: &Database, node: domain::ids::NodeId) -> (CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    (stop.clone(), tokio::spawn(keep(db.pool().clone(), node, rig.activator.clone(), stop)))
}

fn region(code: &str) -> RegionCode {
    RegionCode::new(code).expect("a region")
}

#[tokio::test]
async fn what_serves_runs_is_told_to_edges_and_begins_again_when_it_ends() {
    let kept = Kept::start().await;
    let (a, b) = (kept.place("a.example", &[("OWN", "x")]).await, kept.place("b.example", &[]).await);
    let first = kept.until_served(&a).await;
    kept.until_served(&b).await;
    assert_eq!(told(kept.rig.activator.running(&a).expect("it runs"))["OWN"], "x");
    kept.replace(&a, &first).await;
    assert_ne!(kept.until_served(&a).await, first);
}

/// A database that nobody replicates is the one that a move would lose.
#[tokio::test]
async fn a_litestream_that_ended_is_started_again_beside_its_child() {
    let mut kept = Kept::start().await;
    let host = kept.place("replicated.example", &[("TENANT_WRITES", "1")]).await;
    let child = kept.until_served(&host).await;
    let record = kept.rig.path(&host, "litestream.json");
    let first = identity_in(&record).expect("a record");
    tests::activator::kill(first.pid);
    tests::wait::until("another litestream", SOON, || async {
        assert!(kept.address(&host).await.is_some(), "the child serves on");
        identity_in(&record).filter(|now| *now != first && now.lives().expect("look"))
    })
    .await;
    assert_eq!(kept.until_served(&host).await, child);
    kept.end().await;
    kept.rig.activator.stop_child(&host).await.expect("stop");
    let tail = kept.rig.activator.prove_tail(&host).await.expect("its replica goes on");
    let prefix = format!("instances/{host}");
    let restored = kept.rig.activator.restore(&host, &prefix, &tail.txid).await.expect("restore");
    assert_eq!(restored.sha256, tail.sha256);
}

#[tokio::test]
async fn what_is_parked_ends_and_runs_again_when_it_is_woken() {
    let kept = Kept::start().await;
    let host = kept.place("parks.example", &[("TENANT_WRITES", "1")]).await;
    kept.until_served(&host).await;
    kept.rig.until_rows(&host, 10).await;
    kept.change("update instances set parked = true where host = $1", &host).await;
    kept.until_down(&host).await;
    let written = rows(&kept.rig.path(&host, "app.db"));
    kept.change("update instances set parked = false where host = $1", &host).await;
    kept.until_served(&host).await;
    assert!(rows(&kept.rig.path(&host, "app.db")) >= written);
}

/// A move closes the route: what ends from then on is not started again, by a restart of the worker neither; when the
/// record is another region's, what still runs is ended.
#[tokio::test]
async fn what_moves_is_never_started_and_what_left_is_ended() {
    let mut kept = Kept::start().await;
    let host = kept.place("moves.example", &[]).await;
    let other = kept.place("stays.example", &[]).await;
    let first = kept.until_served(&host).await;
    kept.until_served(&other).await;
    kept.change("update routes set status = 'moving' where host = $1", &host).await;
    tests::activator::kill(first.pid);
    kept.restart().await;
    // The other one is started again, so the loop has seen that both have ended.
    let second = kept.until_served(&other).await;
    kept.replace(&other, &second).await;
    kept.until_served(&other).await;
    assert_eq!((kept.rig.activator.running(&host), kept.identity(&host)), (None, first));
    kept.change("update instances set region = 'uk' where host = $1", &other).await;
    tests::wait::until("its end", SOON, || async { kept.rig.activator.running(&other).is_none().then_some(()) }).await;
}

#[tokio::test]
async fn children_live_on_while_their_worker_is_away_and_the_next_goes_on_with_them() {
    let mut kept = Kept::start().await;
    let host = kept.place("adopted.example", &[]).await;
    let first = kept.until_served(&host).await;
    kept.end().await;
    assert!(first.lives().expect("look"), "the loop's end ends no child");
    kept.restart().await;
    assert_eq!(kept.until_served(&host).await, first);
    kept.replace(&host, &first).await;
}

/// Only a complete answer says that a host has no route. No answer says nothing.
#[tokio::test]
async fn a_listing_that_fails_ends_nothing_and_a_route_that_is_gone_does() {
    let kept = Kept::start().await;
    let host = kept.place("listed.example", &[]).await;
    let first = kept.until_served(&host).await;
    let mut blocker = kept.db.session().await;
    // In place of the table whatever is asked of it fails, and is counted: no rollback takes a sequence back.
    let away = "create sequence failed_listings;
        create function fail_listing() returns bool language plpgsql as $$
            begin
                perform nextval('failed_listings');
                raise exception 'no routes';
            end $$;
        alter table routes rename to routes_away;
        create view routes as select * from routes_away where (select fail_listing())";
    sqlx::raw_sql(away).execute(&mut blocker).await.expect("away");
    kept.change("update instances set env = '{}' where host = $1", &host).await;
    tests::wait::until("some listings that fail, one after another", SOON, || async {
        assert!(first.lives().expect("look"), "nothing is ended without a listing");
        let failed = sqlx::query_scalar::<_, i64>("select last_value from failed_listings");
        (failed.fetch_one(kept.db.pool()).await.expect("a number") >= 3).then_some(())
    })
    .await;
    let back = "drop view routes; alter table routes_away rename to routes";
    sqlx::raw_sql(back).execute(&mut blocker).await.expect("back");
    kept.change("delete from routes where host = $1", &host).await;
    tests::wait::until("its end", SOON, || async { (!first.lives().expect("look")).then_some(()) }).await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_holds_up_its_own_host_alone() {
    let mut kept = Kept::start().await;
    let broken = kept.place("broken.example", &[]).await;
    let first = kept.until_served(&broken).await;
    kept.end().await;
    let record = kept.rig.path(&broken, "child.json");
    let aside = kept.rig.path(&broken, "aside.json");
    std::fs::copy(&record, &aside).expect("copy");
    std::fs::write(&record, b"{").expect("write");
    kept.restart().await;
    let other = kept.place("other.example", &[]).await;
    kept.until_served(&other).await;
    assert!(first.lives().expect("look") && kept.address(&broken).await.is_some(), "it is left alone");
    std::fs::copy(&aside, &record).expect("copy");
    assert_eq!(kept.until_served(&broken).await, first);
}

/// Others are looked after while one start takes its whole time.
#[tokio::test]
async fn a_child_that_does_not_become_ready_holds_up_no_other() {
    let kept = Kept::start().await;
    let slow = kept.place("slow.example", &[("TENANT_DEAF", "1")]).await;
    tests::wait::until("the slow one runs", SOON, || async { kept.rig.activator.running(&slow) }).await;
    let quick = kept.place("quick.example", &[]).await;
    kept.until_served(&quick).await;
    // Whoever asks next waits for the end of the start that is under way, which is given up at its limit.
    let refused = kept
        .rig
        .activator
        .start(&slow, tests::activator::plain(&crate::rig::environment(&[])), async { Ok(false) })
        .await;
    assert!(matches!(refused, Err(workers::activator::Error::NotPermitted { .. })), "{refused:?}");
    // Then it is looked at anew, with each of these, and still edges are not sent to what does not answer.
    for other in ["third.example", "fourth.example"] {
        let other = kept.place(other, &[]).await;
        kept.until_served(&other).await;
        assert!(kept.rig.activator.running(&slow).is_some(), "it lives");
        assert_eq!(kept.address(&slow).await, None);
    }
}

/// The disk is new and the replica is old: a child would begin with nothing, and replicate that.
#[tokio::test]
async fn an_instance_whose_database_is_gone_is_not_begun_anew() {
    let kept = Kept::start().await;
    let rig = &kept.rig;
    let lost = host("lost.example");
    rig.written(&lost).await;
    rig.activator.prove_tail(&lost).await.expect("prove");
    rig.activator.purge(&lost).await.expect("purge");
    let before = rig.replica(&lost);
    let started =
        rig.activator.start(&lost, tests::activator::plain(&crate::rig::environment(&[])), async { Ok(true) }).await;
    assert!(matches!(started, Err(workers::activator::Error::Lost { .. })), "{started:?}");
    let rule = rig.server.faults().add(sandbox::s3::Rule::on("ListObjectsV2", sandbox::s3::Fault::Disconnect));
    let unknown = rig
        .activator
        .start(&host("new.example"), tests::activator::plain(&crate::rig::environment(&[])), async { Ok(true) })
        .await;
    assert!(matches!(unknown, Err(workers::activator::Error::Listing { .. })), "{unknown:?}");
    rig.server.faults().remove(rule);
    assert!(!rig.path(&lost, "app.db").exists() && rig.replica(&lost) == before);
}
