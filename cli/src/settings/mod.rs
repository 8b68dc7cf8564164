//! What this program can be told, from where, and within which bounds.
//!
//! `leasehold.toml`, then `LEASEHOLD_*` variables, then flags: the later one wins. Every setting is
//! one row of [`table::ALL`]; the reader, `leasehold config check`, the error messages and
//! docs/configuration.md are all made from that table, so none of them can know a setting that the
//! others don't.
//!
//! Deliberately absent: secrets in flags. Other users of a machine see a program's arguments.

mod reader;
pub(crate) mod reference;
pub(crate) mod table;
mod value;

pub(crate) use reader::{Source, Sources};
pub(crate) use table::Setting;
pub(crate) use value::{Bounds, Value};

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

/// Why the configuration was refused. Each message names the setting, where it came from and what
/// would be accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file could not be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML. Only the place is told: the text around it may hold a secret.
    #[error("{path} is not valid TOML: {message}")]
    Toml {
        /// Which.
        path: PathBuf,
        /// The parser's words, without the text.
        message: String,
    },
    /// No setting has this name.
    #[error("{from} names no setting{suggestion}; docs/configuration.md lists them all")]
    Unknown {
        /// The name and where it stands.
        from: String,
        /// A setting of a similar name, or nothing.
        suggestion: String,
    },
    /// The value is not of the setting's kind or out of its bounds.
    #[error("{key} (from {origin}) must be {rule}")]
    Value {
        /// The setting.
        key: &'static str,
        /// Where the value came from.
        origin: Source,
        /// What would be accepted.
        rule: String,
    },
    /// A setting without which the command cannot work is not set.
    #[error("{key} is not set: put it into leasehold.toml or set {variable}")]
    Missing {
        /// The setting.
        key: &'static str,
        /// Its variable.
        variable: String,
    },
}

/// The settings of one run, every one of them within its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    values: BTreeMap<&'static str, (Value, Source)>,
}

impl Settings {
    /// The value of `setting` and where it came from; `None` where it is not set and has no default.
    pub(crate) fn get(&self, setting: &Setting) -> Option<&(Value, Source)> {
        self.values.get(setting.key)
    }

    /// A text, if set.
    pub(crate) fn text(&self, setting: &Setting) -> Option<&str> {
        match self.get(setting)? {
            (Value::Text(text), _) => Some(text),
            (Value::Number(_) | Value::Switch(_) | Value::List(_), _) => None,
        }
    }

    /// A text without which the command cannot work.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub(crate) fn require(&self, setting: &Setting) -> Result<&str, Error> {
        self.text(setting).ok_or_else(|| Error::Missing { key: setting.key, variable: setting.variable() })
    }

    /// A secret, if set.
    pub(crate) fn secret(&self, setting: &Setting) -> Option<SecretString> {
        self.text(setting).map(SecretString::from)
    }

    /// A secret without which the command cannot work.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub(crate) fn require_secret(&self, setting: &Setting) -> Result<SecretString, Error> {
        self.require(setting).map(SecretString::from)
    }

    /// A path, if set.
    pub(crate) fn path(&self, setting: &Setting) -> Option<PathBuf> {
        self.text(setting).map(PathBuf::from)
    }

    /// A number. Only for settings with a default.
    pub(crate) fn number(&self, setting: &Setting) -> u32 {
        match self.get(setting) {
            Some((Value::Number(number), _)) => *number,
            Some((Value::Text(_) | Value::Switch(_) | Value::List(_), _)) | None => {
                panic!("{} is a number with a default", setting.key)
            }
        }
    }

    /// A number of seconds. Only for settings with a default.
    pub(crate) fn seconds(&self, setting: &Setting) -> Duration {
        debug_assert!(setting.key.ends_with("_seconds"), "{} is not in seconds", setting.key);
        Duration::from_secs(u64::from(self.number(setting)))
    }

    /// A number of hours. Only for settings with a default.
    pub(crate) fn hours(&self, setting: &Setting) -> Duration {
        debug_assert!(setting.key.ends_with("_hours"), "{} is not in hours", setting.key);
        Duration::from_secs(3600 * u64::from(self.number(setting)))
    }

    /// A switch; off where it is not set.
    pub(crate) fn switch(&self, setting: &Setting) -> bool {
        matches!(self.get(setting), Some((Value::Switch(true), _)))
    }

    /// A list of names; empty where it is not set.
    pub(crate) fn list(&self, setting: &Setting) -> &[String] {
        match self.get(setting) {
            Some((Value::List(items), _)) => items,
            Some((Value::Text(_) | Value::Switch(_) | Value::Number(_), _)) | None => &[],
        }
    }

    /// An address to listen on, where one is set.
    pub(crate) fn address(&self, setting: &Setting) -> Option<SocketAddr> {
        self.text(setting).map(|text| text.parse().expect("the table checked that an address parses"))
    }
}
