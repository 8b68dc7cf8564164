//! A new start that somebody asked for.

use std::collections::BTreeMap;

use domain::audit::Actor;
use domain::ids::{AppName, Host};
use domain::instances;

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
