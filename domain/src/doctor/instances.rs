//! What is wrong with instances. Pure: facts in, findings out.

use std::time::Duration;

use serde_json::json;

use super::{Finding, NAMED, listed};
use crate::instances::why::HeldLanding;

/// How long something may hold an instance up before that is a finding: a box that lost its store for a moment tries again.
pub(super) const HELD_FOR: Duration = Duration::from_secs(60);

/// Instances whose landing or start waits for somebody, or that are not replicated, for [`HELD_FOR`] at least.
pub(super) fn held(held: &[HeldLanding]) -> Option<Finding> {
    if held.is_empty() {
        return None;
    }
    let named = listed(held, |it| format!("{} in {} ({})", it.host, it.region, it.held.code));
    let what = match held.len() {
        1 => format!("An instance is held up, or not replicated: {named}."),
        n if n > NAMED => format!("More than {NAMED} instances are held up, or not replicated: {named}."),
        n => format!("{n} instances are held up, or not replicated: {named}."),
    };
    let fact = |it: &HeldLanding| json!({ "app": it.app, "host": it.host, "region": it.region, "code": it.held.code, "since": it.held.since });
    Some(Finding {
        what,
        advice: "`leasehold instance why APP HOST` tells of each what to do.".to_owned(),
        facts: json!({ "instances": held.iter().take(NAMED).map(fact).collect::<Vec<_>>() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AppName, Host, RegionCode};
    use crate::instances::record::RecordHeld;

    fn of(host: &str) -> HeldLanding {
        let since = "2026-03-14T03:00:00Z".parse().unwrap();
        let held = RecordHeld { code: "not_replicated".to_owned(), message: String::new(), permanent: false, since };
        let (app, region) = (AppName::new("acme").unwrap(), RegionCode::new("eu").unwrap());
        HeldLanding { app, host: Host::new(host).unwrap(), landed: true, served: true, region, held }
    }

    #[test]
    fn the_first_that_are_held_are_named_and_more_are_said_to_be_more() {
        assert_eq!(held(&[]), None);
        let one = held(&[of("b.example")]).unwrap();
        assert_eq!(one.what, "An instance is held up, or not replicated: b.example in eu (not_replicated).");
        let many: Vec<_> = (0..=NAMED).map(|n| of(&format!("{n}.example"))).collect();
        let many = held(&many).unwrap();
        assert!(many.what.starts_with("More than 20 instances") && many.what.ends_with("and more."), "{}", many.what);
        assert_eq!(many.facts["instances"].as_array().map(Vec::len), Some(NAMED));
    }
}
