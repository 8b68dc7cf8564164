//! Which jobs are wanted: read from the address, written back into it, and said as flags of the command line.

use domain::ids::{Kind, QueueName};
use domain::queue::{Filter, JobState};
use serde::Deserialize;

use super::Failure;
use crate::dashboard::failure::form_urlencoded;

/// The address's query. Empty fields are as good as absent: a form sends them.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(in crate::dashboard) struct Asked {
    state: String,
    kind: String,
    queue: String,
    tag: String,
    before: String,
    /// What the top bar's field says.
    pub(super) q: String,
}

/// What was asked for, understood.
#[derive(Default, Clone)]
pub(super) struct Wanted {
    pub(super) filter: Filter,
}

impl Wanted {
    pub(super) fn read(asked: &Asked) -> Result<Self, Failure> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let state = match given(&asked.state) {
            Some(word) => {
                Some(JobState::parse(&word).ok_or_else(|| Failure::Invalid(format!("No job is ever {word}.")))?)
            }
            None => None,
        };
        let invalid = |error: domain::ids::InvalidName| Failure::Invalid(error.to_string());
        let before = given(&asked.before).map(|id| id.parse()).transpose();
        Ok(Self {
            filter: Filter {
                state,
                kind: given(&asked.kind).map(Kind::new).transpose().map_err(invalid)?,
                queue: given(&asked.queue).map(QueueName::new).transpose().map_err(invalid)?,
                tag: given(&asked.tag),
                before: before.map_err(|_| Failure::Invalid("The place in the list is no job's id.".to_owned()))?,
            },
        })
    }

    /// The address's query, e.g. `state=running&queue=mail`.
    pub(super) fn query(&self) -> String {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        let f = &self.filter;
        pairs.extend(f.state.map(|state| ("state", state.to_string())));
        pairs.extend(f.kind.as_ref().map(|kind| ("kind", kind.to_string())));
        pairs.extend(f.queue.as_ref().map(|queue| ("queue", queue.to_string())));
        pairs.extend(f.tag.clone().map(|tag| ("tag", tag)));
        pairs.extend(f.before.map(|id| ("before", id.to_string())));
        let pairs: Vec<String> =
            pairs.into_iter().map(|(name, value)| format!("{name}={}", form_urlencoded(&value))).collect();
        pairs.join("&")
    }

    pub(super) fn href(&self) -> String {
        match self.query() {
            query if query.is_empty() => "/jobs".to_owned(),
            query => format!("/jobs?{query}"),
        }
    }

    pub(super) fn with(&self, change: impl FnOnce(&mut Filter)) -> Self {
        let mut wanted = self.clone();
        change(&mut wanted.filter);
        wanted
    }

    /// From the first page on.
    pub(super) fn newest(&self) -> Self {
        self.with(|f| f.before = None)
    }
}

/// The same filters as flags of the command line.
pub(super) fn flags(filter: &Filter) -> String {
    let mut flags = String::new();
    let pairs = [
        ("state", filter.state.map(|state| state.to_string())),
        ("kind", filter.kind.as_ref().map(ToString::to_string)),
        ("queue", filter.queue.as_ref().map(ToString::to_string)),
        ("tag", filter.tag.as_ref().map(|tag| format!("'{}'", tag.replace('\'', r"'\''")))),
    ];
    for (name, value) in pairs {
        if let Some(value) = value {
            flags.push_str(&format!(" --{name} {value}"));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(change: impl FnOnce(&mut Asked)) -> Asked {
        let mut asked = Asked::default();
        change(&mut asked);
        asked
    }

    #[test]
    fn filters_stand_in_the_address_and_survive_it() {
        let wanted = Wanted::read(&asked(|a| {
            a.state = "running".into();
            a.kind = " instance.move ".into();
            a.tag = "a&b=c".into();
        }));
        let wanted = wanted.expect("a valid query");
        assert_eq!(wanted.href(), "/jobs?state=running&kind=instance.move&tag=a%26b%3Dc");
        assert_eq!(wanted.with(|f| f.kind = None).href(), "/jobs?state=running&tag=a%26b%3Dc");
        assert_eq!(flags(&wanted.filter), " --state running --kind instance.move --tag 'a&b=c'");
    }

    #[test]
    fn a_filter_that_is_none_is_refused_and_an_empty_one_ignored() {
        assert!(Wanted::read(&asked(|a| a.state = "lost".into())).is_err());
        assert!(Wanted::read(&asked(|a| a.kind = "A b".into())).is_err());
        assert!(Wanted::read(&asked(|a| a.before = "x".into())).is_err());
        assert_eq!(Wanted::read(&Asked::default()).ok().map(|w| w.href()), Some("/jobs".into()));
    }

    #[test]
    fn a_tag_cannot_end_its_quotes_on_the_command_line() {
        let filter = Filter { tag: Some("a'; rm -rf /".into()), ..Filter::default() };
        assert_eq!(flags(&filter), r" --tag 'a'\''; rm -rf /'");
    }
}
