//! A new start that somebody asked for.

use std::collections::BTreeMap;

use domain::audit::Actor;
use domain::ids::{AppName, Host};
use domain::instances;
use sandbox::s3::{Fault, Rule};
use workers::activator::identity_in;

use super::{Kept, SOON};
use crate::rig::told;

impl Kept {
    async fn restart_child(&self, host: &Host) {
        let app = AppName::new("acme").expect("a name");
        let done = instances::restart(&mut self.db.session().await, (&app, host), None, Actor::System).await;
        done.expect("it is taken");
    }

    fn own(&self, host: &Host) -> String {
        told(self.rig.activator.running(host).expect("it runs"))["OWN"].clone()
    }
}

#[tokio::test]
async fn a_new_start_ends_the_child_and_begins_with_the_environment_of_now() {
    let mut kept = Kept::start().await;
    let host = kept.place("anew.example", &[("OWN", "x")]).await;
    let first = kept.until_served(&host).await;
    let app = AppName::new("acme").expect("a name");
    let env = BTreeMap::from([("OWN".to_owned(), "y".to_owned())]);
    let set = instances::set_environment(&mut kept.db.session().await, (&app, &host), &env, None, Actor::System).await;
    set.expect("it is taken");
    let other = kept.place("other.example", &[]).await;
    kept.until_served(&other).await;
    assert_eq!((kept.identity(&host), kept.own(&host)), (first.clone(), "x".to_owned()), "until it is asked for");
    kept.restart_child(&host).await;
    tests::wait::until("another child", SOON, || async { kept.try_identity(&host).filter(|now| *now != first) }).await;
    let second = kept.until_served(&host).await;
    assert!(!first.lives().expect("look") && kept.own(&host) == "y");
    // Once: another worker finds what was asked for done.
    kept.restart().await;
    let third = kept.place("third.example", &[]).await;
    kept.until_served(&third).await;
    assert_eq!(kept.until_served(&host).await, second);
}

/// Nobody looked in between, so nothing but the count tells that the child is an old one.
#[tokio::test]
async fn a_park_and_a_wake_that_follow_at_once_start_another_child() {
    let mut kept = Kept::start().await;
    let host = kept.place("blink.example", &[]).await;
    let first = kept.until_served(&host).await;
    kept.end().await;
    kept.park(&host, true).await;
    kept.park(&host, false).await;
    assert!(first.lives().expect("look"));
    kept.restart().await;
    tests::wait::until("another child", SOON, || async { kept.try_identity(&host).filter(|now| *now != first) }).await;
    assert_ne!(kept.until_served(&host).await, first);
}

#[tokio::test]
async fn a_parked_instance_starts_no_sooner_for_a_new_start_that_was_asked_for() {
    let kept = Kept::start().await;
    let host = kept.place("rests.example", &[]).await;
    kept.until_served(&host).await;
    kept.park(&host, true).await;
    kept.until_down(&host).await;
    kept.restart_child(&host).await;
    let other = kept.place("other.example", &[]).await;
    kept.until_served(&other).await;
    assert!(kept.rig.activator.running(&host).is_none());
    kept.park(&host, false).await;
    kept.until_served(&host).await;
}

/// A new start that could not be made would end what serves.
#[tokio::test]
async fn a_child_that_no_other_could_follow_is_not_ended_for_a_new_start() {
    let mut kept = Kept::start().await;
    let host = kept.place("stays.example", &[]).await;
    let first = kept.until_served(&host).await;
    let (exec, key) = (kept.rig.settings.exec.clone(), tests::keys::BoxKey::generate());
    let sealed = tests::keys::seal("the tenant's", &[&key]);
    let with_key = "update nodes set capabilities = capabilities || '{\"config_key\": [\"age1\"]}'";
    sqlx::query(with_key).execute(kept.db.pool()).await.expect("offered");
    let (app, env) = (AppName::new("acme").expect("a name"), BTreeMap::from([("OWN".to_owned(), sealed)]));
    let set = instances::set_environment(&mut kept.db.session().await, (&app, &host), &env, None, Actor::System).await;
    set.expect("it is taken");
    kept.restart_child(&host).await;
    tests::wait::until("it says why", SOON, || async {
        kept.held(&host).await.filter(|held| held["code"] == "config_key")
    })
    .await;
    assert!(first.lives().expect("look") && kept.address(&host).await.is_some(), "the key is not here");
    kept.rig.settings.config_key = Some(key.keys.clone());
    kept.rig.settings.exec = None;
    kept.restart().await;
    // It goes on looking: what is parked is ended.
    let other = kept.place("other.example", &[]).await;
    kept.park(&other, true).await;
    kept.change("update routes set address = '127.0.0.1:1' where host = $1", &other).await;
    kept.until_down(&other).await;
    assert!(first.lives().expect("look") && kept.address(&host).await.is_some(), "there is no program");
    kept.rig.settings.exec = exec;
    kept.restart().await;
    tests::wait::until("another child", SOON, || async { kept.try_identity(&host).filter(|now| *now != first) }).await;
    kept.until_served(&host).await;
    assert_eq!(kept.own(&host), "the tenant's");
    tests::wait::until("nothing holds it up", SOON, || async { kept.held(&host).await.is_none().then_some(()) }).await;
}

/// The store is away: whoever asks for a new start then waits for the process alone.
#[tokio::test]
async fn a_new_start_waits_for_no_store_and_leaves_litestream_alone() {
    let kept = Kept::start_with(|settings| settings.sync_limit = std::time::Duration::from_secs(600)).await;
    let host = kept.place("away.example", &[("TENANT_WRITES", "1")]).await;
    let first = kept.until_served(&host).await;
    kept.rig.until_rows(&host, 5).await;
    let litestream = identity_in(&kept.rig.path(&host, "litestream.json")).expect("a record");
    let _away = kept.rig.server.faults().add(Rule::on("*", Fault::Disconnect).key(host.as_str()));
    kept.restart_child(&host).await;
    tests::wait::until("another child", SOON, || async { kept.try_identity(&host).filter(|now| *now != first) }).await;
    kept.until_served(&host).await;
    assert_eq!(identity_in(&kept.rig.path(&host, "litestream.json")), Some(litestream));
}
