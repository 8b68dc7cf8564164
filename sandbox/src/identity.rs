//! Who may do what on an S3 server of the sandbox: one notation for both servers.

use std::fmt;

/// A key pair with its rights.
///
/// Either the rights below, which both servers know, or one of IAM's policy documents as it stands, which SeaweedFS
/// evaluates as AWS does, conditions included; the in-process server allows an identity with a document nothing.
///
/// The rights are written as SeaweedFS has them: `Admin` for everything, or `Read`, `Write` (which
/// includes delete and multipart) or `List`, each of a bucket (`Read:src`) or of a prefix in it
/// (`Write:tgt/moves/*`). A copy needs `Read` on its source under the same identity.
#[derive(Clone)]
pub struct Identity {
    /// A name for logs.
    pub name: String,
    /// The access key.
    pub access_key: String,
    /// The secret key; it guards test data on loopback, nothing else.
    pub secret_key: String,
    /// The rights.
    pub actions: Vec<String>,
    /// The policy document that gives its rights instead; SeaweedFS's alone.
    pub policy: Option<serde_json::Value>,
}

impl Identity {
    /// An identity that may do everything.
    #[must_use]
    pub fn admin(access_key: &str, secret_key: &str) -> Self {
        Self::limited("admin", access_key, secret_key, ["Admin"])
    }

    /// An identity with just these rights.
    pub fn limited<'a>(
        name: &str,
        access_key: &str,
        secret_key: &str,
        actions: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            actions: actions.into_iter().map(str::to_owned).collect(),
            policy: None,
        }
    }

    /// An identity with the rights of an IAM policy document.
    #[must_use]
    pub fn under_policy(name: &str, access_key: &str, secret_key: &str, document: serde_json::Value) -> Self {
        Self { policy: Some(document), ..Self::limited(name, access_key, secret_key, []) }
    }

    /// Whether this identity may do `action` on `path` (`bucket/key`, or `bucket/prefix` for a list).
    #[must_use]
    pub fn allows(&self, action: Action, path: &str) -> bool {
        self.actions.iter().any(|granted| match granted.split_once(':') {
            None => granted == "Admin" || granted == action.word(),
            Some((word, pattern)) if word == action.word() => match pattern.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => path.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            },
            Some(_) => false,
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("name", &self.name)
            .field("access_key", &self.access_key)
            .field("actions", &self.actions)
            .finish_non_exhaustive()
    }
}

/// What a request does, as far as rights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reads an object or its head, or copies from it.
    Read,
    /// Writes or deletes an object, any multipart call included.
    Write,
    /// Lists a bucket.
    List,
    /// Creates or deletes a bucket.
    Admin,
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write => "Write",
            Self::List => "List",
            Self::Admin => "Admin",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_end_at_their_prefix_and_action() {
        let mover = Identity::limited("mover", "k", "s", ["Read:src/instances/*", "Write:tgt/moves/*", "List:tgt"]);
        assert!(mover.allows(Action::Read, "src/instances/h/1"));
        assert!(mover.allows(Action::Write, "tgt/moves/h/1"));
        assert!(mover.allows(Action::List, "tgt/anything") && mover.allows(Action::List, "tgt"));
        for (action, path) in [
            (Action::Read, "src/other"),
            (Action::Read, "tgt/moves/h/1"),
            (Action::Write, "src/instances/h/1"),
            (Action::Write, "tgt/movesX/1"),
            (Action::List, "tgt2"),
            (Action::Admin, "tgt"),
        ] {
            assert!(!mover.allows(action, path), "{action:?} {path}");
        }
        assert!(Identity::admin("k", "s").allows(Action::Admin, "any"));
    }
}
