//! Values of arguments whose form must be said, with an example.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// An id, as lists and answers show them.
pub(crate) fn id(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_unsaid| {
        "an id has the form 01890a5d-ac96-774b-bcce-b302099a8057; the noun's `list` shows them".to_owned()
    })
}

/// A freeze's budget: whole seconds, minutes or hours. Its bounds are the API's.
pub(crate) fn freeze_budget(text: &str) -> Result<u32, String> {
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some(_) | None => ("", 1),
    };
    number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(|| {
        "a budget is a number of seconds, minutes or hours, e.g. 10s, 2m or 1h; it has at most a day".to_owned()
    })
}

/// A moment of RFC 3339.
pub(crate) fn time(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text).map(|time| time.to_utc()).map_err(|_unsaid| {
        "a time has a date, a time of day and an offset, e.g. 2026-01-31T08:00:00Z or 2026-01-31T09:00:00+01:00"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_whole_seconds_minutes_or_hours() {
        for (text, seconds) in [("10s", 10), ("2m", 120), ("1h", 3600), ("0s", 0)] {
            assert_eq!(freeze_budget(text), Ok(seconds), "{text}");
        }
        for text in ["", "s", "10", "1.5s", "-1s", "10 s", "10ms", "2d", "9999999h", "é"] {
            let refusal = freeze_budget(text).expect_err(text);
            assert_eq!(refusal.split([' ', ',', ';']).filter(|word| freeze_budget(word).is_ok()).count(), 3, "{text}");
        }
    }

    #[test]
    fn a_refused_id_or_time_shows_an_example_that_is_taken() {
        let example = |refusal: String| {
            let taken = |word: &&str| id(word).is_ok() || time(word).is_ok();
            refusal.split([' ', ';']).filter(taken).count()
        };
        assert_eq!(example(id("ledger").unwrap_err()), 1);
        assert_eq!(example(time("tomorrow").unwrap_err()), 2);
        assert_eq!(example(time("2026-01-31 08:00").unwrap_err()), 2);
    }
}
