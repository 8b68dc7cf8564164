//! How long what is over is kept, and which days are to be walked for what is past. Pure.

use std::time::Duration;

use chrono::NaiveDate;

use super::{Error, JobState, KindSpec};
use crate::clock::Timestamp;
use crate::ids::Kind;

/// Shortest time that anything is kept: far longer than any lease, so that a settlement that is repeated always finds what
/// it came to before.
pub const MIN_RETENTION: Duration = Duration::from_secs(3600);

/// How often a day is looked at of which only held rows are left.
const HELD_LOOK: Duration = Duration::from_secs(DAY);

const DAY: u64 = 24 * 3600;

/// How long what is over is kept, at least. Jobs go with their day: up to a day later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Jobs that completed.
    pub completed: Duration,
    /// Jobs that were cancelled.
    pub cancelled: Duration,
    /// Jobs that were discarded.
    pub discarded: Duration,
    /// Kinds with a time of their own, whatever their jobs' end.
    pub kinds: Vec<(Kind, Duration)>,
    /// Workers that were heard last.
    pub workers: Duration,
    /// What was done, by minute.
    pub throughput: Duration,
    /// Refused writes; those of a job go with it where that is earlier.
    pub refused_writes: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days| Duration::from_secs(days * DAY);
        Self {
            completed: days(7),
            cancelled: days(14),
            discarded: days(30),
            kinds: Vec::new(),
            workers: days(7),
            throughput: days(30),
            refused_writes: days(30),
        }
    }
}

/// A day's partition, and as of when it was last walked to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Day {
    pub(super) day: NaiveDate,
    pub(super) walked_as_of: Option<Timestamp>,
}

impl Day {
    /// The first moment of the day, in UTC.
    pub(super) fn begin(self) -> Timestamp {
        begin_of(self.day)
    }

    /// The first moment behind the day.
    pub(super) fn end(self) -> Timestamp {
        begin_of(self.day + chrono::Days::new(1))
    }
}

fn begin_of(day: NaiveDate) -> Timestamp {
    day.and_time(chrono::NaiveTime::MIN).and_utc()
}

impl Retention {
    /// With what these kinds say of themselves.
    #[must_use]
    pub fn with_kinds<'a>(mut self, specs: impl IntoIterator<Item = &'a KindSpec>) -> Self {
        self.kinds.extend(specs.into_iter().filter_map(|spec| Some((spec.kind.clone(), spec.kept?))));
        self
    }

    /// Refuses a time below [`MIN_RETENTION`].
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let named = [
            ("completed", self.completed),
            ("cancelled", self.cancelled),
            ("discarded", self.discarded),
            ("workers", self.workers),
            ("throughput", self.throughput),
            ("refused_writes", self.refused_writes),
        ];
        let kinds = self.kinds.iter().map(|(_, kept)| ("kinds", *kept));
        match named.into_iter().chain(kinds).find(|(_, kept)| *kept < MIN_RETENTION) {
            None => Ok(()),
            Some((field, _)) => {
                let rule = format!("nothing is kept for less than {} s", MIN_RETENTION.as_secs());
                Err(Error::Invalid { field, rule })
            }
        }
    }

    /// How long jobs of `kind` that ended so are kept; an empty kind is any that has no time of its own.
    fn rows(&self) -> impl Iterator<Item = (JobState, &str, Duration)> {
        let states = [
            (JobState::Completed, self.completed),
            (JobState::Cancelled, self.cancelled),
            (JobState::Discarded, self.discarded),
        ];
        let own =
            states.into_iter().flat_map(|(state, _)| self.kinds.iter().map(move |(k, d)| (state, k.as_str(), *d)));
        states.into_iter().map(|(state, kept)| (state, "", kept)).chain(own)
    }

    /// The same, as statements take it: states, kinds, seconds.
    pub(super) fn columns(&self) -> (Vec<&'static str>, Vec<&str>, Vec<f64>) {
        let mut columns = (Vec::new(), Vec::new(), Vec::new());
        for (state, kind, kept) in self.rows() {
            columns.0.push(state.as_str());
            columns.1.push(kind);
            columns.2.push(kept.as_secs_f64());
        }
        columns
    }

    /// Whether some retention of a day's jobs ended since the day was last walked: then it is walked. Behind the last
    /// retention there is nothing but what somebody holds: it is looked at once a day.
    pub(super) fn is_due(&self, day: Day, now: Timestamp) -> bool {
        let Some(walked) = day.walked_as_of else { return self.rows().any(|(_, _, kept)| day.end() + kept <= now) };
        let mut last = day.end();
        for (_, _, kept) in self.rows() {
            let past = day.end() + kept;
            if walked < past && past <= now {
                return true;
            }
            last = last.max(past);
        }
        last <= now && walked + HELD_LOOK <= now
    }

    /// Whether each completed job of a day is past: what else there is then are the few that did not complete.
    pub(super) fn completed_are_past(&self, day: Day, now: Timestamp) -> bool {
        let mut completed = self.rows().filter(|(state, ..)| *state == JobState::Completed);
        completed.all(|(_, _, kept)| day.end() + kept <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a moment")
    }

    fn day(walked_as_of: Option<&str>) -> Day {
        Day { day: NaiveDate::from_ymd_opt(2026, 1, 1).expect("a day"), walked_as_of: walked_as_of.map(at) }
    }

    /// By default a day ends with the 1st, and is due on the 9th, the 16th and the 1st of February.
    #[test]
    fn a_day_is_walked_once_for_each_retention_that_ended() {
        let kept = Retention::default();
        assert!(!kept.is_due(day(None), at("2026-01-08T23:59:59Z")));
        assert!(kept.is_due(day(None), at("2026-01-09T00:00:00Z")));
        let walked = day(Some("2026-01-09T00:00:01Z"));
        assert!(!kept.is_due(walked, at("2026-01-15T23:59:59Z")) && kept.is_due(walked, at("2026-01-16T00:00:00Z")));
        let walked = day(Some("2026-01-17T00:00:00Z"));
        assert!(!kept.is_due(walked, at("2026-01-31T00:00:00Z")) && kept.is_due(walked, at("2026-02-01T00:00:00Z")));
        let walked = day(Some("2026-02-01T00:00:00Z"));
        assert!(!kept.is_due(walked, at("2026-02-01T23:59:59Z")), "what is left is held");
        assert!(kept.is_due(walked, at("2026-02-02T00:00:00Z")));
    }

    #[test]
    fn a_kind_that_is_kept_longer_keeps_the_day_from_leaving() {
        let spec = KindSpec { kept: Some(Duration::from_secs(20 * DAY)), ..KindSpec::new::<()>("mail.send", "Sends.") };
        let kept = Retention::default().with_kinds([&spec]);
        assert!(Retention::default().completed_are_past(day(None), at("2026-01-09T00:00:00Z")));
        assert!(!kept.completed_are_past(day(None), at("2026-01-21T23:59:59Z")));
        assert!(kept.completed_are_past(day(None), at("2026-01-22T00:00:00Z")));
        assert_eq!(kept.columns().0.len(), 6, "each end of any kind, and of the one");
    }

    #[test]
    fn less_than_an_hour_is_refused_and_the_field_named() {
        Retention::default().check().expect("the defaults are in order");
        let short = Duration::from_secs(3599);
        let refused = Retention { cancelled: short, ..Retention::default() }.check();
        assert!(matches!(refused, Err(Error::Invalid { field: "cancelled", .. })), "{refused:?}");
        let kind = Kind::new("mail.send").expect("a name");
        let refused = Retention { kinds: vec![(kind, short)], ..Retention::default() }.check();
        assert!(matches!(refused, Err(Error::Invalid { field: "kinds", .. })), "{refused:?}");
    }
}
