//! What a move or a landing says of those who must act.

use domain::instances::NOT_REPLICATED;
use domain::instances::moves::Move;
use domain::instances::why::HeldLanding;

use super::{Row, Severity};
use crate::dashboard::instance;

/// A move is loud only where somebody must act before it goes on (M-056).
pub(super) fn row(m: &Move) -> Option<Row> {
    let obstacle = m.status.obstacle.as_ref().filter(|obstacle| obstacle.permanent)?;
    Some(Row {
        severity: Severity::Problem,
        title: format!("The move of {} to {} waits for a person: {}", m.host, m.to, obstacle.message),
        text: format!("It goes on by itself once this is put right ({}).", obstacle.code),
        since: m.status.obstacle_since,
        link: Some((instance::address(m.app.as_str(), m.host.as_str()), "What to do".to_owned())),
    })
}

/// A landing, or a start, that is held up is an instance that nobody serves; one that is not replicated would be lost with its
/// box.
pub(super) fn landing(it: &HeldLanding) -> Row {
    let link = Some((instance::address(it.app.as_str(), it.host.as_str()), "What to do".to_owned()));
    if it.held.code == NOT_REPLICATED {
        return Row {
            severity: Severity::Problem,
            title: format!("{} in {} is not replicated: {}", it.host, it.region, it.held.message),
            text: format!("It is served, and what it writes would be lost with its box ({}).", it.held.code),
            since: Some(it.held.since),
            link,
        };
    }
    let (severity, text) = if it.served {
        (Severity::Warning, "It is served as it was, and somebody must act before it starts anew")
    } else if it.held.permanent {
        (Severity::Problem, "Nobody serves it, and somebody must act before it goes on")
    } else {
        (Severity::Warning, "Nobody serves it meanwhile; it is tried again by itself")
    };
    let what = if it.landed { "start" } else { "landing" };
    Row {
        severity,
        title: format!("The {what} of {} in {} is held up: {}", it.host, it.region, it.held.message),
        text: format!("{text} ({}).", it.held.code),
        since: Some(it.held.since),
        link,
    }
}

#[cfg(test)]
mod tests {
    use domain::ids::{AppName, Host, RegionCode};
    use domain::instances::{RecordHeld, config_key};

    use super::*;

    #[test]
    fn what_is_served_all_the_same_is_not_said_to_be_served_by_nobody() {
        let row = |code: &str, permanent, served| {
            let since = "2026-03-14T03:00:00Z".parse().expect("a moment");
            let held = RecordHeld { code: code.to_owned(), message: "m".to_owned(), permanent, since };
            let (app, region) = (AppName::new("acme").expect("a name"), RegionCode::new("eu").expect("a code"));
            let host = Host::new("a.example").expect("a host");
            landing(&HeldLanding { app, host, landed: true, served, region, held })
        };
        let (waits, anew, alone) =
            (row(config_key::CODE, true, false), row(config_key::CODE, true, true), row(NOT_REPLICATED, false, true));
        assert!(waits.severity == Severity::Problem && waits.text.starts_with("Nobody serves it"), "{}", waits.text);
        assert!(anew.severity == Severity::Warning && anew.text.starts_with("It is served as it was"), "{}", anew.text);
        assert!(alone.severity == Severity::Problem && alone.text.starts_with("It is served, and"), "{}", alone.text);
    }
}
