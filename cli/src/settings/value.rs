//! The kinds of values and their bounds.

use std::fmt;
use std::net::SocketAddr;

/// How long a text may be.
const MAX_TEXT_CHARS: usize = 4096;
/// How many names a list may have.
const MAX_LIST: usize = 100;

/// A value that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A text, a path, a URL, an address, a choice.
    Text(String),
    /// A number in the unit that the setting's name ends with.
    Number(u32),
    /// On or off.
    Switch(bool),
    /// Names.
    List(Vec<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Switch(on) => on.fmt(f),
            Self::List(items) => f.write_str(&items.join(",")),
        }
    }
}

/// What a setting accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bounds {
    /// Any text that is not empty.
    Text,
    /// A path; it need not exist yet.
    Path,
    /// A URL with one of these schemes.
    Url(&'static [&'static str]),
    /// An IP address with a port.
    Address,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number from the first to the last.
    Number(u32, u32),
    /// `true` or `false`.
    Switch,
    /// Names: an array in TOML, separated by commas elsewhere.
    List,
}

impl Bounds {
    /// What would be accepted, in words.
    pub(crate) fn rule(self) -> String {
        match self {
            Self::Text => format!("a text of 1 to {MAX_TEXT_CHARS} characters"),
            Self::Path => "a path".to_owned(),
            Self::Url(schemes) => format!("a URL that begins with {}", spelled(schemes, "://")),
            Self::Address => "an IP address with a port, such as 127.0.0.1:7070 or [::1]:7070".to_owned(),
            Self::Choice(words) => spelled(words, ""),
            Self::Number(least, most) => format!("a whole number from {least} to {most}"),
            Self::Switch => "true or false".to_owned(),
            Self::List => format!("a list of at most {MAX_LIST} names"),
        }
    }

    /// Reads a value as it stands in a variable or a flag.
    pub(crate) fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Number(..) => self.number(text.parse().ok()?),
            Self::Switch => text.parse().ok().map(Value::Switch),
            Self::List => {
                self.list(text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect())
            }
            Self::Text | Self::Path | Self::Url(_) | Self::Address | Self::Choice(_) => self.text(text),
        }
    }

    /// Reads a value as it stands in the file.
    pub(crate) fn parse_toml(self, value: &toml::Value) -> Option<Value> {
        use toml::Value as Toml;
        match (self, value) {
            (Self::Number(..), Toml::Integer(number)) => self.number(*number),
            (Self::Switch, Toml::Boolean(on)) => Some(Value::Switch(*on)),
            (Self::List, Toml::Array(items)) => {
                self.list(items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>()?)
            }
            (Self::Text | Self::Path | Self::Url(_) | Self::Address | Self::Choice(_), Toml::String(text)) => {
                self.text(text)
            }
            (
                Self::Number(..)
                | Self::Switch
                | Self::List
                | Self::Text
                | Self::Path
                | Self::Url(_)
                | Self::Address
                | Self::Choice(_),
                Toml::String(_)
                | Toml::Integer(_)
                | Toml::Float(_)
                | Toml::Boolean(_)
                | Toml::Datetime(_)
                | Toml::Array(_)
                | Toml::Table(_),
            ) => None,
        }
    }

    fn text(self, text: &str) -> Option<Value> {
        let plain = !text.is_empty() && text.chars().count() <= MAX_TEXT_CHARS && !text.contains(char::is_control);
        let fits = match self {
            Self::Text | Self::Path => true,
            Self::Url(schemes) => schemes.iter().any(|scheme| {
                text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).is_some_and(|rest| !rest.is_empty())
            }),
            Self::Address => text.parse::<SocketAddr>().is_ok(),
            Self::Choice(words) => words.contains(&text),
            Self::Number(..) | Self::Switch | Self::List => false,
        };
        (plain && fits).then(|| Value::Text(text.to_owned()))
    }

    fn number(self, number: i64) -> Option<Value> {
        let Self::Number(least, most) = self else { return None };
        u32::try_from(number).ok().filter(|number| (least..=most).contains(number)).map(Value::Number)
    }

    fn list(self, items: Vec<String>) -> Option<Value> {
        let name = |item: &String| !item.is_empty() && item.len() <= 255 && !item.contains(char::is_control);
        (items.len() <= MAX_LIST && items.iter().all(name)).then_some(Value::List(items))
    }
}

/// "a, b or c", each followed by `suffix`.
fn spelled(words: &[&str], suffix: &str) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word}{suffix}")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_accepted_from_the_first_to_the_last() {
        let bounds = Bounds::Number(1, 500);
        for (text, accepted) in
            [("0", false), ("1", true), ("500", true), ("501", false), ("-1", false), ("x", false), ("1.5", false)]
        {
            assert_eq!(bounds.parse(text).is_some(), accepted, "{text}");
        }
        assert!(bounds.parse_toml(&toml::Value::Integer(501)).is_none());
        assert!(bounds.parse_toml(&toml::Value::String("5".to_owned())).is_none(), "a number is not a text");
    }

    #[test]
    fn texts_keep_to_their_kind() {
        assert!(Bounds::Address.parse("127.0.0.1:0").is_some());
        assert!(Bounds::Address.parse("localhost:7070").is_none());
        assert!(Bounds::Url(&["postgres"]).parse("postgres://h/d").is_some());
        assert!(Bounds::Url(&["postgres"]).parse("mysql://h/d").is_none());
        assert!(Bounds::Url(&["http", "https"]).parse("https://").is_none());
        assert!(Bounds::Text.parse("").is_none() && Bounds::Text.parse("a\nb").is_none());
        assert_eq!(Bounds::Choice(&["auto", "json", "human"]).rule(), "auto, json or human");
    }

    #[test]
    fn a_list_is_an_array_or_separated_by_commas() {
        let list = Value::List(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(Bounds::List.parse("a, b,"), Some(list.clone()));
        let array = toml::Value::Array(vec!["a".into(), "b".into()]);
        assert_eq!(Bounds::List.parse_toml(&array), Some(list));
        assert!(Bounds::List.parse_toml(&toml::Value::Array(vec![toml::Value::Integer(1)])).is_none());
    }
}
