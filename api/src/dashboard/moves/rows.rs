//! Moves in flight: where each stands and what it does or waits for, in one line.

use domain::instances::moves::{Move, MoveState};

use crate::dashboard::instance;
use crate::dashboard::page::Id;
use crate::dashboard::words::{self, Age, Now};

pub(in crate::dashboard) struct MoveRow {
    pub(in crate::dashboard) host: String,
    pub(in crate::dashboard) href: String,
    pub(in crate::dashboard) from: String,
    pub(in crate::dashboard) to: String,
    pub(in crate::dashboard) phase: String,
    pub(in crate::dashboard) tone: &'static str,
    pub(in crate::dashboard) glyph: &'static str,
    pub(in crate::dashboard) edge: &'static str,
    /// The classes of the four cells of its way: prepare, ready, cut, land.
    pub(in crate::dashboard) track: [&'static str; 4],
    pub(in crate::dashboard) words: String,
    pub(in crate::dashboard) age: Age,
    pub(in crate::dashboard) job: Option<Id>,
}

/// Moves with what needs a person first, then the oldest first.
pub(in crate::dashboard) fn rows(moves: &[Move], now: Now, limit: usize) -> (Vec<MoveRow>, usize) {
    let mut sorted: Vec<&Move> = moves.iter().collect();
    sorted.sort_by_key(|m| (m.status.obstacle.as_ref().is_none_or(|o| !o.permanent), m.requested_at, m.id));
    (sorted.iter().take(limit).map(|m| row(m, now)).collect(), moves.len().saturating_sub(limit))
}

fn row(m: &Move, now: Now) -> MoveRow {
    let (tone, glyph, track) = match m.state.known() {
        Some(MoveState::Preparing) => ("run", "prep", ["now", "", "", ""]),
        Some(MoveState::Ready) => ("ok", "ready", ["done", "now", "", ""]),
        Some(MoveState::Cutting) => ("warn", "cut", ["done", "done", "now", ""]),
        Some(MoveState::Aborting) => ("idle", "abort", ["", "", "", ""]),
        // A newer version's word: shown as it is.
        None => ("idle", "pending", ["", "", "", ""]),
    };
    let stuck = m.status.obstacle.as_ref().is_some_and(|obstacle| obstacle.permanent);
    MoveRow {
        host: m.host.to_string(),
        href: instance::address(m.app.as_str(), m.host.as_str()),
        from: m.from.to_string(),
        to: m.to.to_string(),
        phase: m.state.to_string(),
        tone: if stuck { "bad" } else { tone },
        glyph,
        edge: if stuck { "bad" } else { "" },
        track,
        words: told(m),
        age: now.lasting(m.requested_at),
        job: m.job.map(Id::of),
    }
}

/// What a move does or what holds it up.
fn told(m: &Move) -> String {
    if let Some(obstacle) = &m.status.obstacle {
        return obstacle.message.clone();
    }
    let Some((round, numbers)) = m.status.last_round.zip(m.status.last) else {
        return match m.round {
            0 => "waits for its first round".to_owned(),
            n => format!("round {n} runs"),
        };
    };
    let differ = numbers.differ_copies + numbers.differ_deletes;
    let differ = words::things(i64::try_from(differ).unwrap_or(i64::MAX), "object differs", "objects differ");
    let copied = words::things(i64::try_from(numbers.copied).unwrap_or(i64::MAX), "object", "objects");
    format!(
        "round {round}: {copied} copied in {}; {differ}",
        words::millis(i64::try_from(numbers.elapsed_ms).unwrap_or(i64::MAX))
    )
}
