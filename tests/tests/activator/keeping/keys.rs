//! A start that waits for a key, and what the record's page is told of it.

use domain::ids::Host;
use domain::instances::moves::Obstacle;
use domain::instances::{self, config_key};
use tests::keys::{BoxKey, seal};

use super::{Kept, SOON};
use crate::rig::told;

impl Kept {
    /// A record with sealed values whose route is this box's. The door asks for a box with a key, and this one held it once.
    async fn sealed(&self, name: &str, env: &[(&str, &str)]) -> Host {
        let offers = "update nodes set capabilities = capabilities || '{\"config_key\": [\"age1\"]}'";
        sqlx::query(offers).execute(self.db.pool()).await.expect("offered");
        self.place(name, env).await
    }

    async fn until_held(&self, host: &Host) {
        tests::wait::until("it says why", SOON, || self.held(host)).await;
    }

    async fn until_free(&self, host: &Host) {
        tests::wait::until("nothing holds it up", SOON, || async { self.held(host).await.is_none().then_some(()) })
            .await;
    }
}

/// A box whose key was lost or changed: the child waits, with its reason, and begins when the key is there.
#[tokio::test]
async fn a_child_whose_configuration_does_not_open_is_not_started_until_the_key_is_there() {
    let mut kept = Kept::start().await;
    let (key, other) = (BoxKey::generate(), BoxKey::generate());
    let waits = kept.sealed("waits.example", &[("TENANT_KEY", &seal("the tenant's", &[&key]))]).await;
    for (keys, why) in [(None, "holds no key"), (Some(other.keys.clone()), "sealed to none")] {
        kept.rig.settings.config_key = keys;
        kept.restart().await;
        tests::wait::until("it says why", SOON, || async {
            let held = kept.held(&waits).await?;
            let told = held["message"].as_str().is_some_and(|told| told.contains(why) && told.contains("TENANT_KEY"));
            (told && held["code"] == "config_key" && held["permanent"] == true).then_some(())
        })
        .await;
        assert!(kept.rig.activator.running(&waits).is_none() && !kept.rig.path(&waits, "app.db").exists());
        assert!(!kept.rig.path(&waits, "litestream.json").exists(), "nothing at all was started for it");
    }
    // What is not to run waits for nothing.
    kept.end().await;
    kept.park(&waits, true).await;
    assert_eq!(kept.held(&waits).await, None);
    kept.rig.settings.config_key = Some(key.keys.clone());
    kept.restart().await;
    kept.park(&waits, false).await;
    kept.until_served(&waits).await;
    assert_eq!(told(kept.rig.activator.running(&waits).expect("it runs"))["TENANT_KEY"], "the tenant's");
    // And one that a box took up again by itself.
    kept.end().await;
    kept.rig.activator.stop(&waits).await.expect("stopped");
    kept.rig.settings.config_key = None;
    kept.restart().await;
    tests::wait::until("it says why", SOON, || async { kept.held(&waits).await }).await;
    kept.rig.settings.config_key = Some(key.keys.clone());
    kept.restart().await;
    kept.until_served(&waits).await;
    tests::wait::until("nothing holds it up any more", SOON, || async {
        kept.held(&waits).await.is_none().then_some(())
    })
    .await;
    assert_eq!(tests::keys::files_with(kept.rig.folder.path(), &["the tenant's"]), Vec::<String>::new());
}

/// The page would ask for a key that is there.
#[tokio::test]
async fn a_child_that_ends_for_another_reason_is_not_said_to_wait_for_a_key() {
    let mut kept = Kept::start().await;
    let key = BoxKey::generate();
    let env = [("TENANT_KEY", &*seal("the tenant's", &[&key])), ("TENANT_REFUSES", "1")];
    let refuses = kept.sealed("refuses.example", &env).await;
    kept.until_held(&refuses).await;
    kept.rig.settings.config_key = Some(key.keys.clone());
    kept.restart().await;
    kept.until_free(&refuses).await;
    assert!(kept.rig.activator.running(&refuses).is_none(), "it does not run for that");
}

/// A worker that dies behind a start has told nobody of it, and the next one has nothing to start.
#[tokio::test]
async fn a_child_that_an_earlier_worker_started_waits_for_no_key() {
    let mut kept = Kept::start().await;
    let key = BoxKey::generate();
    let env = [("TENANT_KEY", &*seal("the tenant's", &[&key]))];
    let started = kept.sealed("started.example", &env).await;
    kept.until_held(&started).await;
    kept.end().await;
    kept.rig.settings.config_key = Some(key.keys.clone());
    kept.rig.reopen().await;
    kept.rig.run(&started, &env).await;
    assert!(kept.held(&started).await.is_some(), "nobody was told");
    kept.restart().await;
    kept.until_served(&started).await;
    assert_eq!(kept.held(&started).await, None, "it is told by the write that tells where it answers");
}

/// A start that failed before its record was parked, and is told behind it.
#[tokio::test]
async fn a_parked_instance_is_never_said_to_wait_for_a_key() {
    let mut kept = Kept::start().await;
    kept.end().await;
    let key = BoxKey::generate();
    let parks = kept.sealed("parks.example", &[("TENANT_KEY", &seal("the tenant's", &[&key]))]).await;
    let obstacle = Obstacle::lasting(config_key::CODE, "its child does not start");
    let node = kept.node;
    let note = async |kept: &Kept| {
        let told = instances::note_start(&mut kept.db.session().await, node, &parks, Some(&obstacle)).await;
        told.expect("an answer")
    };
    assert!(note(&kept).await && kept.held(&parks).await.is_some(), "one that is to run");
    kept.park(&parks, true).await;
    assert!(!note(&kept).await && kept.held(&parks).await.is_none(), "one that is not");

    // And one that is being parked: the note waits for the end of that.
    kept.park(&parks, false).await;
    let mut verb = kept.db.pool().begin().await.expect("begin");
    let sql = "update instances set parked = true where host = $1";
    sqlx::query(sql).bind(parks.as_str()).execute(&mut *verb).await.expect("parked");
    let late = async {
        tests::wait::until("it waits for the lock", SOON, || async {
            let sql = "select exists (select from pg_stat_activity
                                       where datname = current_database() and wait_event_type = 'Lock')";
            let waits: bool = sqlx::query_scalar(sql).fetch_one(kept.db.pool()).await.expect("an answer");
            waits.then_some(())
        })
        .await;
        verb.commit().await.expect("commit");
    };
    let (noted, ()) = tokio::join!(note(&kept), late);
    assert!(!noted && kept.held(&parks).await.is_none(), "it was parked meanwhile");
}
