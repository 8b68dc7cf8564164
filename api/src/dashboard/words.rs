//! How numbers, durations, times and ids are written on a page: every number has a unit, a place and an age.

use std::fmt;

use domain::clock::Timestamp;
use domain::queue::QueueView;

/// Groups digits; the narrow no-break space keeps a number in one piece.
const GROUP: char = '\u{202f}';
/// Holds a number and its unit together.
const HOLD: char = '\u{a0}';
/// What stands between these two changes with time alone, or with the effort of a rendering. It is left out of a
/// page's ETag, so that a page on which nothing happened is not sent again. Noncharacters, in no text of a person's.
const VOLATILE: char = '\u{fdd0}';
const STEADY: char = '\u{fdd1}';

/// A whole number with its digits grouped.
pub(super) fn count(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    if n < 0 {
        text.push('−');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(GROUP);
        }
        text.push(digit);
    }
    text
}

/// A count that the domain stops at [`QueueView::COUNT_LIMIT`].
pub(super) fn bounded(n: i64) -> String {
    if n >= QueueView::COUNT_LIMIT { format!("{} or more", count(QueueView::COUNT_LIMIT)) } else { count(n) }
}

/// `n` things, in the right number.
pub(super) fn things(n: i64, one: &str, many: &str) -> String {
    format!("{}{HOLD}{}", count(n), if n == 1 { one } else { many })
}

/// A whole number of seconds as people say it: at most two units. The script's `unit` says the same.
pub(super) fn seconds(s: i64) -> String {
    let s = s.max(0);
    match s {
        0..60 => format!("{s}{HOLD}s"),
        60..3600 => format!("{}{HOLD}min {}{HOLD}s", s / 60, s % 60),
        3600..172_800 => format!("{}{HOLD}h {}{HOLD}min", s / 3600, s % 3600 / 60),
        _ => format!("{}{HOLD}d {}{HOLD}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Milliseconds: with a decimal below ten seconds.
pub(super) fn millis(ms: i64) -> String {
    match ms.max(0) {
        ms @ 0..1000 => format!("{ms}{HOLD}ms"),
        ms @ 1000..10_000 => format!("{}.{}{HOLD}s", ms / 1000, ms % 1000 / 100),
        ms => seconds(ms / 1000),
    }
}

/// Bytes in the unit that fits, with a decimal.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let Some(first) = n.checked_ilog2().map(|log| log / 10).filter(|power| *power > 0) else {
        return format!("{n}{HOLD}B");
    };
    let power = first.min(4);
    // Tenths of the unit; a size of 2^60 and more is told in TiB all the same.
    let tenths = u128::from(n) * 10 / (1_u128 << (10 * power));
    let unit = UNITS.get(usize::try_from(power - 1).unwrap_or_default()).copied().unwrap_or("TiB");
    format!("{}.{}{HOLD}{unit}", tenths / 10, tenths % 10)
}

/// A rate from a count over a span: a second where that is at least one, a minute below. The number and its unit.
pub(super) fn rate(total: i64, over_seconds: i64) -> (String, &'static str) {
    // Tenths of jobs in a second, rounded; counts stay far below the range.
    let tenths = (total * 10 + over_seconds / 2) / over_seconds.max(1);
    if tenths >= 100 {
        (count(tenths / 10), "/s")
    } else if tenths >= 10 {
        (format!("{}.{}", tenths / 10, tenths % 10), "/s")
    } else {
        (count((total * 60 + over_seconds / 2) / over_seconds.max(1)), "/min")
    }
}

/// An id's first eight and last six characters: UUIDv7 of neighbours begin alike.
pub(super) fn short(id: &str) -> String {
    match (id.get(..8), id.len().checked_sub(6).and_then(|at| id.get(at..))) {
        (Some(head), Some(tail)) if id.len() > 16 => format!("{head}…{tail}"),
        _ => id.to_owned(),
    }
}

/// An id's last six characters, where the eye tells neighbours apart.
pub(super) fn tail(id: &str) -> &str {
    id.len().checked_sub(6).and_then(|at| id.get(at..)).unwrap_or(id)
}

/// The UTC time of day.
pub(super) fn clock(at: Timestamp) -> String {
    at.format("%H:%M:%S").to_string()
}

/// How an age is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// "4 min 12 s", that long already.
    For,
    /// "4 min 12 s ago".
    Ago,
    /// "in 4 min 12 s", or "now".
    In,
    /// As `For`, in the large type of a figure with small units.
    Figure,
    /// The time of day, for tables of events; it does not tick.
    Clock,
}

/// A moment, told by its age; the absolute time is its title. The script lets it tick on the database's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Age {
    at: Timestamp,
    now: Timestamp,
    manner: Manner,
}

/// The database's present moment, from which ages are told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now(pub(super) Timestamp);

impl Now {
    /// That long already.
    pub(super) const fn lasting(self, at: Timestamp) -> Age {
        Age { at, now: self.0, manner: Manner::For }
    }

    /// So long ago.
    pub(super) const fn ago(self, at: Timestamp) -> Age {
        Age { at, now: self.0, manner: Manner::Ago }
    }

    /// So soon.
    pub(super) const fn until(self, at: Timestamp) -> Age {
        Age { at, now: self.0, manner: Manner::In }
    }

    /// That long already, as a figure.
    pub(super) const fn figure(self, at: Timestamp) -> Age {
        Age { at, now: self.0, manner: Manner::Figure }
    }

    /// At that time of day.
    pub(super) const fn clock(self, at: Timestamp) -> Age {
        Age { at, now: self.0, manner: Manner::Clock }
    }

    /// Whole seconds since `at`, never negative.
    pub(super) fn since(self, at: Timestamp) -> i64 {
        (self.0 - at).num_seconds().max(0)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attribute = match self.manner {
            Manner::For => " data-age=\"for\"",
            Manner::Ago => " data-age=\"ago\"",
            Manner::In => " data-age=\"in\"",
            Manner::Figure => " data-age=\"figure\"",
            Manner::Clock => "",
        };
        write!(
            f,
            "<time datetime=\"{}\" title=\"{} UTC\"{attribute}>",
            self.at.format("%Y-%m-%dT%H:%M:%SZ"),
            self.at.format("%Y-%m-%d %H:%M:%S"),
        )?;
        let (past, ahead) = ((self.now - self.at).num_seconds(), (self.at - self.now).num_seconds());
        match self.manner {
            Manner::For => write!(f, "{VOLATILE}{}{STEADY}", seconds(past))?,
            Manner::Ago => write!(f, "{VOLATILE}{} ago{STEADY}", seconds(past))?,
            Manner::In if ahead > 0 => write!(f, "{VOLATILE}in {}{STEADY}", seconds(ahead))?,
            Manner::In => write!(f, "{VOLATILE}now{STEADY}")?,
            Manner::Figure => {
                f.write_str(VOLATILE.encode_utf8(&mut [0; 4]))?;
                for part in seconds(past).split(' ') {
                    let (number, unit) = part.split_once(HOLD).unwrap_or((part, ""));
                    write!(f, "{number}<small>{unit}</small> ")?;
                }
                f.write_str(STEADY.encode_utf8(&mut [0; 4]))?;
            }
            Manner::Clock => f.write_str(&clock(self.at))?,
        }
        f.write_str("</time>")
    }
}

// Only digits, our own words and markup: nothing of a caller's.
impl askama::filters::HtmlSafe for Age {}

/// Text that changes although nothing happened; not part of a page's ETag.
pub(super) struct Volatile<T>(pub(super) T);

impl<T: fmt::Display> fmt::Display for Volatile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VOLATILE}{}{STEADY}", self.0)
    }
}

/// Takes the marks out of a rendered page: the page, and the text from which its ETag is made.
pub(super) fn settle(rendered: &str) -> (String, String) {
    let (mut page, mut steady) = (String::with_capacity(rendered.len()), String::with_capacity(rendered.len()));
    for (i, piece) in rendered.split(VOLATILE).enumerate() {
        let (volatile, rest) = if i == 0 { ("", piece) } else { piece.split_once(STEADY).unwrap_or(("", piece)) };
        page.push_str(volatile);
        for text in rest.split(STEADY) {
            page.push_str(text);
            steady.push_str(text);
        }
    }
    (page, steady)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    #[test]
    fn digits_are_grouped_by_narrow_spaces() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(-1_000), "−1\u{202f}000");
        assert_eq!(count(i64::MIN).chars().filter(char::is_ascii_digit).count(), 19);
        assert_eq!(bounded(10_000), "10\u{202f}000 or more");
        assert_eq!(bounded(9_999), "9\u{202f}999");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let said: Vec<String> = [-3, 59, 60, 558, 3600, 172_799, 187_200].map(seconds).into();
        let plain: Vec<String> = said.iter().map(|s| s.replace('\u{a0}', " ")).collect();
        assert_eq!(plain, ["0 s", "59 s", "1 min 0 s", "9 min 18 s", "1 h 0 min", "47 h 59 min", "2 d 4 h"]);
        assert_eq!(millis(400), "400\u{a0}ms");
        assert_eq!(millis(4_260), "4.2\u{a0}s");
        assert_eq!(millis(47_000), "47\u{a0}s");
    }

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        let said: Vec<String> = [0, 1023, 1024, 27 << 20, 3_328_599_654].map(bytes).into();
        assert_eq!(
            said,
            ["0\u{a0}B", "1023\u{a0}B", "1.0\u{a0}KiB", "27.0\u{a0}MiB", "3.0\u{a0}GiB"].map(str::to_owned)
        );
        assert!(bytes(u64::MAX).ends_with("TiB"));
    }

    #[test]
    fn a_slow_rate_is_told_by_the_minute() {
        assert_eq!(rate(11_760, 60), ("196".into(), "/s"));
        assert_eq!(rate(90, 60), ("1.5".into(), "/s"));
        assert_eq!(rate(12, 90), ("8".into(), "/min"));
        assert_eq!(rate(0, 61), ("0".into(), "/min"));
    }

    #[test]
    fn an_id_keeps_the_ends_by_which_neighbours_differ() {
        assert_eq!(short("019cea2d-2905-7337-8b7d-8d292f8873d4"), "019cea2d…8873d4");
        assert_eq!(short("ab"), "ab");
        assert_eq!(tail("019cea2d-2905-7337-8b7d-8d292f8873d4"), "8873d4");
    }

    #[test]
    fn an_age_carries_its_absolute_time() {
        let now = Now(at("2026-03-14T03:07:42Z"));
        let then = at("2026-03-14T02:58:24Z");
        let (page, steady) = settle(&now.lasting(then).to_string());
        assert_eq!(
            page,
            "<time datetime=\"2026-03-14T02:58:24Z\" title=\"2026-03-14 02:58:24 UTC\" data-age=\"for\">9\u{a0}min 18\u{a0}s</time>"
        );
        assert_eq!(steady.matches("min").count(), 0, "{steady}");
        let figure = settle(&now.figure(then).to_string()).0;
        assert!(figure.contains("9<small>min</small> 18<small>s</small>"), "{figure}");
        assert!(settle(&now.until(then).to_string()).0.contains(">now<"));
        assert!(settle(&now.until(at("2026-03-14T03:07:52Z")).to_string()).0.contains(">in 10\u{a0}s<"));
    }

    #[test]
    fn the_passing_of_time_alone_changes_no_etag() {
        let then = at("2026-03-14T02:58:24Z");
        let page = |now: &str| format!("<p>{}, {}</p>{}", Now(at(now)).ago(then), "same", Volatile(now));
        let (one, steady_one) = settle(&page("2026-03-14T03:07:42Z"));
        let (two, steady_two) = settle(&page("2026-03-14T03:07:43Z"));
        assert_ne!(one, two);
        assert_eq!(steady_one, steady_two);
    }
}
