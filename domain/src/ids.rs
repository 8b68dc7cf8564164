//! Typed identifiers: no bare `Uuid` or `String` crosses a function boundary.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type,
            schemars::JsonSchema,
        )]
        #[serde(transparent)]
        #[sqlx(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new identifier, UUIDv7, so that neighbours in time are neighbours in the index.
            #[must_use]
            pub fn generate() -> Self {
                Self(crate::entropy::uuid_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::from_str(text).map(Self)
            }
        }
    };
}

uuid_id!(
    /// A job, from its enqueueing to the end of its history.
    JobId
);
uuid_id!(
    /// One worker process, from its start to its end; a restart is another worker.
    WorkerId
);
/// The leases that one statement took together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, sqlx::Type)]
#[sqlx(transparent)]
pub struct BatchId(pub i64);

uuid_id!(
    /// A machine that hosts instances.
    NodeId
);
uuid_id!(
    /// Whoever may act: a person, an application, a node.
    IdentityId
);
uuid_id!(
    /// One API key of an identity.
    KeyId
);
uuid_id!(
    /// An instance record.
    InstanceId
);
uuid_id!(
    /// One move of one instance.
    MoveId
);
uuid_id!(
    /// One enrolment token of a node.
    EnrolmentTokenId
);
uuid_id!(
    /// One public key of a node.
    CredentialId
);
uuid_id!(
    /// One session of a node.
    NodeSessionId
);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is not valid: {rule}")]
pub struct InvalidName {
    /// What was to be named, e.g. "kind".
    pub what: &'static str,
    /// The refused text.
    pub value: String,
    /// The rule in words.
    pub rule: &'static str,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:path) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type,
            schemars::JsonSchema,
        )]
        #[serde(try_from = "String", into = "String")]
        #[sqlx(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// [`InvalidName`] with the rule in words.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                let value = text.into();
                if $valid(&value) {
                    Ok(Self(value))
                } else {
                    Err(InvalidName { what: $what, value, rule: $rule })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(value: String) -> Result<Self, Self::Error> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A job's kind, e.g. `instance.move`.
    Kind,
    "kind",
    "lower-case words of letters, digits and _ joined by dots, at most 100 characters",
    valid_kind
);
name_type!(
    /// A queue, e.g. `default`, `node.<id>` or `region.eu`.
    QueueName,
    "queue",
    "letters, digits, dots, dashes and underscores, beginning with a letter or digit, at most 100 characters",
    valid_queue
);

name_type!(
    /// An instance's host name, which is also a folder in buckets: `instances/<host>/`.
    Host,
    "host",
    "lower-case labels of letters, digits and inner dashes, joined by dots; at most 63 characters a label and 253 in all",
    valid_host
);
name_type!(
    /// The application that an instance belongs to.
    AppName,
    "app",
    "lower-case letters, digits and inner dashes, at most 63 characters",
    valid_label
);
name_type!(
    /// A region's code, e.g. `eu`.
    RegionCode,
    "region",
    "lower-case letters, digits and inner dashes, at most 32 characters",
    valid_region
);

impl QueueName {
    /// Whether only one node may do its work.
    #[must_use]
    pub fn is_of_a_node(&self) -> bool {
        self.0.starts_with("node.")
    }

    /// Work that only one node may do.
    #[must_use]
    pub fn of_node(node: NodeId) -> Self {
        Self(format!("node.{node}"))
    }

    /// Work that any capable node of a region may do.
    #[must_use]
    pub fn of_region(code: &RegionCode) -> Self {
        Self(format!("region.{code}"))
    }
}

fn valid_kind(text: &str) -> bool {
    let word = |w: &str| {
        w.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
            && w.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.len() <= 100 && text.split('.').all(word)
}

fn valid_queue(text: &str) -> bool {
    text.len() <= 100
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// One label of a DNS name. Upper case is refused: two spellings would be two folders for one host.
fn valid_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| inner(b) || b == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

fn valid_host(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(valid_label)
}

fn valid_region(text: &str) -> bool {
    text.len() <= 32 && valid_label(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_dotted_lower_case_words() {
        assert!(Kind::new("instance.move").is_ok());
        for bad in ["", ".", "a.", "A", "a b", "1a", "a..b"] {
            assert!(Kind::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_queue_is_a_plain_word() {
        assert!(QueueName::new("node.0198-abc").is_ok());
        for bad in ["", ".a", "a b", "a/b"] {
            assert!(QueueName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_host_is_a_dns_name_and_nothing_that_reaches_into_another_folder() {
        for good in ["a", "a.b", "ledger.acme.example", "0-1.xn--9ca.example"] {
            assert!(Host::new(good).is_ok(), "{good:?}");
        }
        let long = format!("{}.{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(62));
        for bad in
            ["", ".", "..", "a..b", "a/b", "../a", "a.", ".a", "A.b", "a_b", "a b", "a\n", "a\u{7f}", "-a", "é", &long]
        {
            assert!(Host::new(bad).is_err(), "{bad:?}");
        }
        assert!(Host::new(&long[..253]).is_ok());
        assert!(RegionCode::new("eu-west-1").is_ok());
        assert!(RegionCode::new("a".repeat(33)).is_err());
    }
}
