//! What a box has to start, to end and to tell, from its routes and from what runs here. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use domain::ids::Host;
use domain::instances::BoxRoute;

/// The wait after a child's first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A child that ran this long begins anew when it ends.
const STEADY: Duration = Duration::from_secs(60);

/// What runs here for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Here {
    /// Where its child listens, if it runs.
    pub address: Option<SocketAddr>,
    /// Whether litestream runs.
    pub replicated: bool,
    /// Whether anything lives: a child, what it left behind, or litestream.
    pub lives: bool,
    /// How often a new start had been asked for when the child was started.
    pub restarts: i64,
    /// Whether that could not be found out: then the host is left alone, and the others are not.
    pub unknown: bool,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the child, or the litestream that a running one lacks: its route serves here.
    Start {
        /// Whose.
        host: Host,
        /// The tenant's environment.
        env: BTreeMap<String, String>,
        /// How often a new start was asked for.
        restarts: i64,
    },
    /// End the child and start another: a new start was asked for. litestream goes on.
    Restart {
        /// Whose.
        host: Host,
        /// The tenant's environment.
        env: BTreeMap<String, String>,
        /// How often a new start was asked for.
        restarts: i64,
    },
    /// End the child and its litestream.
    Stop {
        /// Whose.
        host: Host,
        /// Why, in words.
        why: &'static str,
    },
    /// Tell edges where the child answers, or that it does not.
    Publish {
        /// Whose.
        host: Host,
        /// Where.
        address: Option<SocketAddr>,
    },
}

impl Action {
    /// Whom it is about.
    #[must_use]
    pub fn host(&self) -> &Host {
        match self {
            Self::Start { host, .. }
            | Self::Restart { host, .. }
            | Self::Stop { host, .. }
            | Self::Publish { host, .. } => host,
        }
    }
}

/// Decides from every route of the box and from what ran here *before* those were read: what was started later, under a
/// route that is not in `routes`, is never taken for something without a route.
///
/// A route that lands or moves is its job's alone: nothing of it is started or ended here.
#[must_use]
pub fn reconcile(routes: &[BoxRoute], here: &BTreeMap<Host, Here>) -> Vec<Action> {
    let mut actions = Vec::new();
    for route in routes {
        let now = here.get(&route.host).copied().unwrap_or_default();
        let host = route.host.clone();
        if now.unknown {
            continue;
        }
        if !route.in_scope {
            if now.lives {
                actions.push(Action::Stop { host, why: "its record is in another region" });
            }
        } else if !route.serving {
            // The job's.
        } else if route.parked {
            if now.lives {
                actions.push(Action::Stop { host, why: "it is parked" });
            } else if route.address.is_some() {
                actions.push(Action::Publish { host, address: None });
            }
        } else if now.address.is_some() && now.restarts != route.restarts {
            // Edges are told by the restart itself, before the end and after the start.
            actions.push(Action::Restart { host, env: route.env.clone(), restarts: route.restarts });
        } else {
            // First what edges are told: a child that starts takes a while.
            if now.address.map(|address| address.to_string()) != route.address {
                actions.push(Action::Publish { host: host.clone(), address: now.address });
            }
            // A start of what runs brings the litestream that it lacks, and nothing else.
            if now.address.is_none() || !now.replicated {
                actions.push(Action::Start { host, env: route.env.clone(), restarts: route.restarts });
            }
        }
    }
    let routed = |host: &Host| routes.iter().any(|route| route.host == *host);
    let stray = here.iter().filter(|(host, now)| now.lives && !now.unknown && !routed(host));
    actions.extend(stray.map(|(host, _)| Action::Stop { host: host.clone(), why: "this box has no route for it" }));
    actions
}

/// When a host may be tried again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
    began: Option<Instant>,
    /// Of the environment that was tried last: its values are secrets.
    digest: Option<u64>,
}

impl Backoff {
    /// Whether it is time to start it with this environment. Another one than was tried last is no repetition.
    pub fn is_due_with(&mut self, env: &BTreeMap<String, String>, now: Instant) -> bool {
        let mut hasher = DefaultHasher::new();
        env.hash(&mut hasher);
        let digest = hasher.finish();
        if self.digest.replace(digest).is_some_and(|tried| tried != digest) {
            *self = Self { digest: Some(digest), ..Self::default() };
        }
        self.is_due(now)
    }

    /// Whether it is time.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Whether somebody waits for the time to come.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.not_before.is_some()
    }

    /// Its time had come, and there was nothing to do for it.
    pub fn looked_at(&mut self, now: Instant) {
        self.not_before = self.not_before.filter(|at| *at > now);
    }

    /// A try succeeded.
    pub fn began(&mut self, now: Instant) {
        self.began = Some(now);
        self.not_before = None;
    }

    /// A try failed.
    pub fn failed(&mut self, now: Instant) {
        self.began = None;
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause);
    }

    /// What had begun has ended by itself: at once again after a steady run, as after a failure otherwise.
    pub fn ended(&mut self, now: Instant) {
        let Some(began) = self.began.take() else { return };
        if now.duration_since(began) >= STEADY {
            *self = Self { digest: self.digest, ..Self::default() };
        } else {
            self.failed(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ids::InstanceId;

    use super::*;

    fn host(name: &str) -> Host {
        Host::new(name).unwrap()
    }

    fn route(name: &str) -> BoxRoute {
        BoxRoute {
            instance: InstanceId::generate(),
            host: host(name),
            serving: true,
            parked: false,
            in_scope: true,
            address: None,
            env: BTreeMap::new(),
            restarts: 0,
        }
    }

    fn at(port: u16) -> Here {
        Here {
            address: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            replicated: true,
            lives: true,
            restarts: 0,
            unknown: false,
        }
    }

    fn here(list: &[(&str, Here)]) -> BTreeMap<Host, Here> {
        list.iter().map(|(name, now)| (host(name), *now)).collect()
    }

    fn start(name: &str) -> Action {
        Action::Start { host: host(name), env: BTreeMap::new(), restarts: 0 }
    }

    fn publish(name: &str, now: Option<Here>) -> Action {
        Action::Publish { host: host(name), address: now.and_then(|now| now.address) }
    }

    #[test]
    fn what_serves_runs_and_is_told_and_what_is_told_already_is_left_alone() {
        assert_eq!(reconcile(&[route("a")], &here(&[])), [start("a")]);
        assert_eq!(reconcile(&[route("a")], &here(&[("a", at(1))])), [publish("a", Some(at(1)))]);
        let told = BoxRoute { address: Some("127.0.0.1:1".to_owned()), ..route("a") };
        assert_eq!(reconcile(std::slice::from_ref(&told), &here(&[("a", at(1))])), []);
        assert_eq!(reconcile(std::slice::from_ref(&told), &here(&[("a", at(2))])), [publish("a", Some(at(2)))]);
        let alone = Here { replicated: false, ..at(1) };
        assert_eq!(reconcile(std::slice::from_ref(&told), &here(&[("a", alone)])), [start("a")], "litestream ended");
        assert_eq!(reconcile(&[told], &here(&[])), [publish("a", None), start("a")], "it ended");
    }

    #[test]
    fn a_host_that_cannot_be_looked_at_is_left_alone_and_the_others_are_not() {
        let unknown = Here { lives: true, unknown: true, ..Here::default() };
        let told = BoxRoute { address: Some("127.0.0.1:1".to_owned()), ..route("a") };
        let parked = BoxRoute { parked: true, ..route("b") };
        let now = here(&[("a", unknown), ("b", unknown), ("stray", unknown)]);
        assert_eq!(reconcile(&[told, parked, route("c")], &now), [start("c")]);
    }

    #[test]
    fn what_lands_or_moves_is_its_jobs_alone() {
        let moving = BoxRoute { serving: false, ..route("a") };
        for now in [&[][..], &[("a", at(1))]] {
            assert_eq!(reconcile(std::slice::from_ref(&moving), &here(now)), [], "M-116");
        }
    }

    #[test]
    fn what_is_parked_or_elsewhere_or_without_a_route_is_ended() {
        let parked = BoxRoute { parked: true, address: Some("127.0.0.1:1".to_owned()), ..route("a") };
        let left = Here { address: None, replicated: true, lives: true, restarts: 0, unknown: false };
        for now in [at(1), left] {
            let found = reconcile(std::slice::from_ref(&parked), &here(&[("a", now)]));
            assert!(matches!(&found[..], [Action::Stop { .. }]), "{found:?}");
        }
        assert_eq!(reconcile(&[parked], &here(&[("a", Here::default())])), [publish("a", None)]);
        let elsewhere = BoxRoute { in_scope: false, ..route("a") };
        assert!(matches!(
            &reconcile(std::slice::from_ref(&elsewhere), &here(&[("a", at(1))]))[..],
            [Action::Stop { .. }]
        ));
        assert_eq!(reconcile(&[elsewhere], &here(&[])), []);
        assert!(matches!(&reconcile(&[], &here(&[("a", left)]))[..], [Action::Stop { .. }]));
        assert_eq!(reconcile(&[], &here(&[("a", Here::default())])), [], "a folder alone is nothing that runs");
    }

    #[test]
    fn a_child_that_fails_waits_longer_each_time_and_one_that_ran_steadily_begins_at_once() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(backoff.is_due(now));
            backoff.began(now);
            backoff.ended(now + Duration::from_millis(500));
            let at = backoff.not_before.unwrap();
            pauses.push((at - now).as_secs());
            now = at;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        backoff.began(now);
        backoff.ended(now + STEADY);
        assert!(backoff.is_due(now + STEADY) && backoff.failures == 0);
        backoff.failed(now);
        assert!(!backoff.is_due(now) && backoff.is_due(now + FIRST_PAUSE));
        backoff.ended(now);
        assert!(backoff.is_due(now + FIRST_PAUSE), "what never began does not end");
    }

    #[test]
    fn a_start_with_another_environment_is_no_repetition() {
        let now = Instant::now();
        let env = |value: &str| BTreeMap::from([("KEY".to_owned(), value.to_owned())]);
        let mut backoff = Backoff::default();
        for _ in 0..9 {
            backoff.failed(now);
        }
        assert!(!backoff.is_due_with(&env("wrong"), now) && !backoff.is_due_with(&env("wrong"), now));
        assert!(backoff.is_due_with(&env("right"), now), "it waits out nothing");
        backoff.failed(now);
        assert!(!backoff.is_due_with(&env("right"), now) && backoff.is_due_with(&env("right"), now + FIRST_PAUSE));
    }
}
