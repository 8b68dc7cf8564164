//! Charts, drawn on the server as SVG: lines in a stretched inner picture, words in the outer one, x in per cent, so
//! that text keeps its size at any width. No style attribute anywhere: the Content-Security-Policy forbids it.

use std::fmt::Write as _;

use domain::clock::Timestamp;
use domain::queue::ThroughputPoint;

use super::words;

/// Minutes that a chart shows.
pub(super) const MINUTES: usize = 60;
/// Minutes in one bar.
const STEP: usize = 5;
/// Width of the inner picture, in its own units.
const WIDTH: f64 = 600.0;
/// Height of the inner picture.
const HEIGHT: f64 = 132.0;
/// Where the inner picture begins below the outer one's top edge.
const TOP: f64 = 14.0;

/// Totals of the last [`MINUTES`] whole minutes, oldest first.
pub(super) type Series = [i64; MINUTES];

/// The beginning of the minute that `now` is in.
fn minute_of(now: Timestamp) -> Timestamp {
    let seconds = now.timestamp();
    Timestamp::from_timestamp(seconds - seconds.rem_euclid(60), 0).unwrap_or(now)
}

/// Minutes from the beginning of the minute of `at` to that of `now`: 0 for the present minute.
fn minutes_ago(now: Timestamp, at: Timestamp) -> Option<usize> {
    usize::try_from((minute_of(now) - minute_of(at)).num_minutes()).ok()
}

/// What happened by minute, of some outcomes only. The present, unfinished minute is left out: it would look like a fall.
pub(super) fn series(points: &[ThroughputPoint], now: Timestamp, outcomes: &[&str]) -> Series {
    let mut totals = [0; MINUTES];
    for point in points.iter().filter(|p| outcomes.contains(&p.outcome.as_str())) {
        if let Some(ago @ 1..=MINUTES) = minutes_ago(now, point.minute) {
            totals[MINUTES - ago] += point.total;
        }
    }
    totals
}

/// Single events by minute, the present minute among them.
pub(super) fn events(moments: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Series {
    let mut totals = [0; MINUTES];
    for ago in moments.into_iter().filter_map(|at| minutes_ago(now, at)).filter(|ago| *ago < MINUTES) {
        totals[MINUTES - 1 - ago] += 1;
    }
    totals
}

/// What happened in the last whole minute and in the present one: the total, and the seconds that it covers.
pub(super) fn lately(points: &[ThroughputPoint], now: Timestamp, outcomes: &[&str]) -> (i64, i64) {
    let recent = |p: &&ThroughputPoint| minutes_ago(now, p.minute).is_some_and(|ago| ago <= 1);
    let total = points.iter().filter(recent).filter(|p| outcomes.contains(&p.outcome.as_str())).map(|p| p.total).sum();
    (total, 60 + now.timestamp().rem_euclid(60))
}

/// The first moment that [`lately`] covers.
pub(super) fn lately_since(now: Timestamp) -> Timestamp {
    minute_of(now) - chrono::TimeDelta::minutes(1)
}

/// A picture ready for the page.
#[derive(Debug, Clone, Default)]
pub(super) struct Drawing {
    /// The inner picture's paths and the outer one's lines and words: SVG elements.
    pub(super) body: String,
    /// What the picture says, for those who do not see it.
    pub(super) label: String,
    /// The sums of the two things that it shows.
    pub(super) totals: (String, String),
}

/// The least of 1, 2, 5, 10, 20… that is not below `peak`.
fn ceiling(peak: i64) -> i64 {
    let mut decade = 1_i64;
    loop {
        for step in [1, 2, 5] {
            if let Some(top) = decade.checked_mul(step).filter(|top| *top >= peak) {
                return top;
            }
        }
        match decade.checked_mul(10) {
            Some(next) => decade = next,
            None => return i64::MAX,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a pixel needs no more than a double's 53 bits")]
fn share(value: i64, of: i64) -> f64 {
    value as f64 / of.max(1) as f64
}

fn path(values: &Series, top: i64) -> String {
    let mut d = String::new();
    for (i, value) in values.iter().enumerate() {
        let x = share(i64::try_from(i).unwrap_or(0), 59) * WIDTH;
        let y = HEIGHT - share(*value, top) * (HEIGHT - 6.0);
        let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    d
}

fn time_axis(now: Timestamp, body: &mut String, ticks: &[usize]) {
    let bottom = TOP + HEIGHT;
    let _ = write!(body, r#"<line class="c-axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>"#);
    for ago in ticks {
        let at = minute_of(now) - chrono::TimeDelta::minutes(i64::try_from(*ago).unwrap_or(0));
        let x = 100 * (MINUTES - ago) / MINUTES;
        let anchor = match x {
            0 => "start",
            100 => "end",
            _ => "middle",
        };
        let word = if *ago == 0 { "now".to_owned() } else { at.format("%H:%M").to_string() };
        let _ = write!(body, r#"<text x="{x}%" y="{}" text-anchor="{anchor}">{word}</text>"#, bottom + 14.0);
    }
}

/// Two lines over the last hour: what came in, dashed, over the area of what went out.
pub(super) fn lines(into: &Series, out: &Series, now: Timestamp) -> Drawing {
    let peak = into.iter().chain(out).copied().max().unwrap_or(0);
    // Read by the second where a minute has at least sixty, by the minute below.
    let (per, unit) = if peak >= 60 { (60, "/s") } else { (1, "/min") };
    let top = ceiling(peak.div_euclid(per).max(1) + i64::from(peak % per != 0)) * per;
    let mut body = String::new();
    // The middle line only where it stands at a whole number.
    for value in [top / 2, top].into_iter().skip(usize::from(top % 2 != 0)) {
        let y = TOP + HEIGHT - share(value, top) * (HEIGHT - 6.0);
        let shown = if value % per == 0 { words::count(value / per) } else { format!("{:.1}", share(value, per)) };
        let _ = write!(
            body,
            r#"<line class="c-grid" x1="0" x2="100%" y1="{y:.1}" y2="{y:.1}"/><text x="2" y="{:.1}">{shown}{unit}</text>"#,
            y - 3.0
        );
    }
    let (line_in, line_out) = (path(into, top), path(out, top));
    let _ = write!(
        body,
        concat!(
            r#"<svg x="0" y="{top_edge}" width="100%" height="{height}" viewBox="0 0 {width} {height}" preserveAspectRatio="none">"#,
            r#"<path class="c-area k-out" d="{out}L{width} {height}L0 {height}Z"/>"#,
            r#"<path class="c-line k-out" d="{out}"/><path class="c-line k-in dash" d="{into}"/></svg>"#
        ),
        top_edge = TOP,
        width = WIDTH,
        height = HEIGHT,
        out = line_out,
        into = line_in,
    );
    time_axis(now, &mut body, &[60, 45, 30, 15, 0]);
    let label = format!(
        "Jobs in and out over the last 60 minutes: {} in, {} out.",
        words::count(into.iter().sum()),
        words::count(out.iter().sum())
    );
    Drawing { body, label, totals: (words::count(into.iter().sum()), words::count(out.iter().sum())) }
}

/// More bars than this, and only the highest of each kind is labelled: the numbers would run into each other.
const LABELLED: usize = 4;

/// Bars by five minutes over the last hour, of two things side by side, with their numbers above them.
pub(super) fn bars(first: (&Series, &str, &str), second: (&Series, &str, &str), now: Timestamp) -> Drawing {
    let by_step = |values: &Series| -> Vec<i64> { values.chunks(STEP).map(|chunk| chunk.iter().sum()).collect() };
    let (one, two) = (by_step(first.0), by_step(second.0));
    let top = one.iter().chain(&two).copied().max().unwrap_or(0).max(1);
    let (mut body, slots) = (String::new(), MINUTES / STEP);
    let few = one.iter().chain(&two).filter(|value| **value > 0).count() <= LABELLED;
    for (values, paint, nudge) in [(&one, first.1, 0.1), (&two, second.1, 0.5)] {
        for (i, value) in values.iter().enumerate().filter(|(_, v)| **v > 0) {
            let slot = 100.0 / share(i64::try_from(slots).unwrap_or(1), 1);
            let x = (share(i64::try_from(i).unwrap_or(0), 1) + nudge) * slot;
            // A lone event is drawn low: height means many, not one.
            let height = share(*value, top.max(4)) * (HEIGHT - 16.0);
            let y = TOP + HEIGHT - height;
            let _ = write!(body, r#"<rect {paint} x="{x:.2}%" width="3.20%" y="{y:.1}" height="{height:.1}"/>"#);
            if few || values.iter().position(|v| Some(v) == values.iter().max()) == Some(i) {
                let (middle, above, shown) = (x + 1.6, y - 4.0, words::count(*value));
                let _ = write!(body, r#"<text x="{middle:.2}%" y="{above:.1}" text-anchor="middle">{shown}</text>"#);
            }
        }
    }
    time_axis(now, &mut body, &[60, 0]);
    let label = format!(
        "In steps of five minutes over the last 60 minutes: {} {}, {} {}.",
        words::count(one.iter().sum()),
        first.2,
        words::count(two.iter().sum()),
        second.2
    );
    Drawing { body, label, totals: (words::count(one.iter().sum()), words::count(two.iter().sum())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    fn point(minute: &str, outcome: &str, total: i64) -> ThroughputPoint {
        ThroughputPoint { minute: at(minute), queue: "q".into(), kind: "k".into(), outcome: outcome.into(), total }
    }

    #[test]
    fn a_chart_shows_sixty_whole_minutes_and_not_the_present_one() {
        let now = at("2026-03-14T03:07:42Z");
        let points = [
            point("2026-03-14T03:07:00Z", "completed", 5),
            point("2026-03-14T03:06:00Z", "completed", 7),
            point("2026-03-14T03:06:00Z", "discarded", 1),
            point("2026-03-14T03:06:00Z", "failed", 100),
            point("2026-03-14T02:07:00Z", "completed", 3),
            point("2026-03-14T02:06:00Z", "completed", 9),
        ];
        let out = series(&points, now, &["completed", "discarded"]);
        assert_eq!((out[59], out[0], out.iter().sum::<i64>()), (8, 3, 11));
        assert_eq!(lately(&points, now, &["completed"]), (12, 102));
        assert_eq!(lately_since(now), at("2026-03-14T03:06:00Z"));
    }

    #[test]
    fn events_of_this_very_minute_are_seen() {
        let now = at("2026-03-14T03:07:42Z");
        let seen = events([now, at("2026-03-14T02:08:01Z"), at("2026-03-14T02:07:59Z")], now);
        assert_eq!((seen[59], seen[0], seen.iter().sum::<i64>()), (1, 1, 2));
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        let tops: Vec<i64> = [0, 1, 3, 10, 11, 198, 501].map(ceiling).into();
        assert_eq!(tops, [1, 1, 5, 10, 20, 200, 1000]);
        assert_eq!(ceiling(i64::MAX), i64::MAX);
    }

    #[test]
    fn no_picture_carries_a_style_or_a_number_that_is_none() {
        let now = at("2026-03-14T03:07:42Z");
        let (mut some, none) = ([3; MINUTES], [0; MINUTES]);
        some[59] = 11_880;
        for drawing in [
            lines(&none, &none, now),
            lines(&some, &none, now),
            bars((&some, r#"class="b-bad""#, "refused"), (&none, r#"fill="url(#hatch)""#, "rescued"), now),
        ] {
            assert!(!drawing.body.contains("style"), "{}", drawing.body);
            assert!(!drawing.body.contains("NaN") && !drawing.body.contains("inf"), "{}", drawing.body);
        }
        assert!(lines(&some, &none, now).body.contains(">200/s<"));
    }
}
