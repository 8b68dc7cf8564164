//! The first page's tables: queues, kinds, workers, refused writes. Each is bounded and says how many more there are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use domain::clock::Timestamp;

use super::words;
use super::{Age, Id, Now, QueueRow, QueueView, RefusedWrite, ThroughputPoint, WorkerView};

/// Minutes over which kinds are compared.
const KIND_MINUTES: i64 = 15;
/// A kind that fails more often than this, in per cent of its ends, is marked.
const FAILING_PERCENT: i64 = 5;
/// Fewer failures than this are no sign of anything.
const FAILING_LEAST: i64 = 3;

/// Queues with the oldest due job first, idle ones last.
pub(super) fn queues(queues: &[QueueView], now: Now, limit: usize) -> (Vec<QueueRow>, usize) {
    let mut sorted: Vec<&QueueView> = queues.iter().collect();
    sorted.sort_by_key(|q| (q.oldest_due_at.is_none(), q.oldest_due_at, Reverse(q.running), q.name.clone()));
    let rows = sorted.iter().take(limit).map(|q| QueueRow::of(q, now)).collect();
    (rows, queues.len().saturating_sub(limit))
}

pub(super) struct KindRow {
    pub(super) name: String,
    pub(super) done: String,
    pub(super) failed: String,
    pub(super) discarded: String,
    pub(super) share: String,
    pub(super) edge: &'static str,
}

/// Kinds of the last fifteen minutes: those that fail, the most often failing first; where none does, the busiest.
pub(super) fn kinds(points: &[ThroughputPoint], now: Timestamp, limit: usize) -> (Vec<KindRow>, &'static str) {
    let mut totals: BTreeMap<&str, [i64; 3]> = BTreeMap::new();
    let since = now - chrono::TimeDelta::minutes(KIND_MINUTES);
    for point in points.iter().filter(|p| p.minute >= since) {
        let slot = match point.outcome.as_str() {
            "completed" => 0,
            "failed" => 1,
            "discarded" => 2,
            _ => continue,
        };
        totals.entry(&point.kind).or_default()[slot] += point.total;
    }
    let any_fails = totals.values().any(|[_, failed, discarded]| failed + discarded > 0);
    let mut sorted: Vec<(&str, [i64; 3])> =
        totals.into_iter().filter(|(_, [_, failed, discarded])| !any_fails || failed + discarded > 0).collect();
    sorted.sort_by_key(|(name, [done, failed, discarded])| {
        (Reverse(if any_fails { failed + discarded } else { *done }), *name)
    });
    let rows = sorted.into_iter().take(limit).map(|(name, [done, failed, discarded])| {
        let (bad, all) = (failed + discarded, done + failed + discarded);
        let tenths = bad * 1000 / all.max(1);
        let failing = bad >= FAILING_LEAST && tenths >= FAILING_PERCENT * 10;
        KindRow {
            name: name.to_owned(),
            done: words::count(done),
            failed: words::count(failed),
            discarded: words::count(discarded),
            share: format!("{}.{}\u{a0}%", tenths / 10, tenths % 10),
            edge: if failing { "warn" } else { "" },
        }
    });
    (rows.collect(), if any_fails { "Failing kinds" } else { "Busiest kinds" })
}

pub(super) struct WorkerRow {
    pub(super) id: Id,
    pub(super) place: String,
    pub(super) state: String,
    pub(super) tone: &'static str,
    pub(super) glyph: &'static str,
    pub(super) edge: &'static str,
    pub(super) running: String,
    pub(super) slots: String,
    pub(super) heard: Age,
    pub(super) queues: String,
}

/// Workers: silent ones first, then the live, then those that ended in order.
pub(super) fn workers(workers: &[WorkerView], now: Now, limit: usize) -> (Vec<WorkerRow>, usize) {
    let rank = |w: &WorkerView| match w.state.as_str() {
        "silent" => 0,
        "draining" => 1,
        "live" => 2,
        _ => 3,
    };
    let mut sorted: Vec<&WorkerView> = workers.iter().collect();
    sorted.sort_by_key(|w| (rank(w), Reverse(w.started_at), w.id));
    let rows = sorted.iter().take(limit).map(|w| worker(w, now)).collect();
    (rows, workers.len().saturating_sub(limit))
}

fn worker(w: &WorkerView, now: Now) -> WorkerRow {
    let (tone, glyph, edge) = match w.state.as_str() {
        "live" => ("ok", "online", ""),
        "draining" => ("warn", "half", ""),
        "silent" => ("bad", "silent", if w.running > 0 { "bad" } else { "warn" }),
        _ => ("idle", "ok", ""),
    };
    let place = match &w.node {
        Some(node) => format!("{node}, process {}", w.pid),
        None => format!("{}, process {}", w.host, w.pid),
    };
    WorkerRow {
        id: Id::of(w.id),
        place,
        state: w.state.clone(),
        tone,
        glyph,
        edge,
        running: words::count(w.running),
        slots: words::count(i64::from(w.concurrency)),
        heard: now.ago(w.seen_at),
        queues: w.queues.join(", "),
    }
}

pub(super) struct RefusedRow {
    pub(super) at: Age,
    pub(super) operation: String,
    pub(super) job: Id,
    pub(super) held: String,
    pub(super) current: Option<String>,
    pub(super) late: String,
}

/// The newest refused writes.
pub(super) fn refused(writes: &[RefusedWrite], now: Now, limit: usize) -> Vec<RefusedRow> {
    let rows = writes.iter().take(limit).map(|w| RefusedRow {
        at: now.clock(w.at),
        operation: w.operation.replace('_', " "),
        job: Id::of(w.job),
        held: w.fence_held.to_string(),
        current: w.fence_current.filter(|fence| *fence != w.fence_held).map(|fence| fence.to_string()),
        late: w.late_ms.map_or_else(|| "–".to_owned(), words::millis),
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    fn point(kind: &str, outcome: &str, total: i64) -> ThroughputPoint {
        let minute = at("2026-03-14T03:00:00Z");
        ThroughputPoint { minute, queue: "q".into(), kind: kind.into(), outcome: outcome.into(), total }
    }

    #[test]
    fn failing_kinds_are_shown_alone_and_the_busiest_only_where_none_fails() {
        let now = at("2026-03-14T03:07:42Z");
        let calm = [point("a", "completed", 3), point("b", "completed", 90), point("b", "enqueued", 7)];
        let (rows, title) = kinds(&calm, now, 10);
        let names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        assert_eq!((names, title), (vec!["b", "a"], "Busiest kinds"));
        let loud = [point("a", "completed", 3), point("b", "completed", 90), point("b", "failed", 10)];
        let (rows, title) = kinds(&loud, now, 10);
        assert_eq!((rows.len(), title), (1, "Failing kinds"));
        assert_eq!((rows[0].share.as_str(), rows[0].edge), ("10.0\u{a0}%", "warn"));
    }
}
