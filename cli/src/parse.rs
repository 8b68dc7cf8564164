//! Values of arguments whose form must be said, with an example.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// An id, as lists and answers show them.
pub(crate) fn id(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_unsaid| {
        "an id has the form 01890a5d-ac96-774b-bcce-b302099a8057; the noun's `list` shows them".to_owned()
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
