//! What is mirrored to where.

use domain::instances::plan::{KeyRule, Txid};

/// A source prefix and where its keys are staged, suffix by suffix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    source_prefix: String,
    staging_prefix: String,
    rule: KeyRule,
    may_be_empty: bool,
    from: Option<Txid>,
}

/// A host that cannot be part of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a host in a key has no '/', no '..' and no control characters, and is not empty")]
pub struct HostError;

impl Pair {
    /// The pair of an instance's replica: `instances/<host>/` to `moves/<host>/`.
    ///
    /// Both end in `/`, so host `a` never touches `ab` or `a.b` (M-048).
    ///
    /// # Errors
    /// A host that would reach into another prefix; doors refuse it before.
    pub fn of_instance(host: &str) -> Result<Self, HostError> {
        if host.is_empty()
            || host == "."
            || host.contains('/')
            || host.contains("..")
            || host.chars().any(char::is_control)
        {
            return Err(HostError);
        }
        Ok(Self {
            source_prefix: format!("instances/{host}/"),
            staging_prefix: format!("moves/{host}/"),
            rule: KeyRule::Litestream,
            may_be_empty: false,
            from: None,
        })
    }

    /// The pair of a landing: `moves/<host>/` back to `instances/<host>/`, in one bucket.
    ///
    /// # Errors
    /// As [`Pair::of_instance`].
    pub fn of_landing(host: &str) -> Result<Self, HostError> {
        let there = Self::of_instance(host)?;
        let (source_prefix, staging_prefix) = (there.staging_prefix, there.source_prefix);
        Ok(Self { source_prefix, staging_prefix, ..there })
    }

    /// A pair of plain files, where an empty source is a state like any other. A `/` is added where one is missing.
    #[must_use]
    pub fn of_files(source_prefix: &str, staging_prefix: &str) -> Self {
        let closed = |prefix: &str| if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") };
        Self {
            source_prefix: closed(source_prefix),
            staging_prefix: closed(staging_prefix),
            rule: KeyRule::Everything,
            may_be_empty: true,
            from: None,
        }
    }

    /// The same, without the source's objects that end before a transaction: at the target they are deleted.
    #[must_use]
    pub fn beginning_with(self, from: Option<Txid>) -> Self {
        Self { from, ..self }
    }

    /// What the source's objects may not end before.
    #[must_use]
    pub fn from(&self) -> Option<Txid> {
        self.from
    }

    /// Where the keys come from; ends in `/`.
    #[must_use]
    pub fn source_prefix(&self) -> &str {
        &self.source_prefix
    }

    /// Where the keys go; ends in `/`.
    #[must_use]
    pub fn staging_prefix(&self) -> &str {
        &self.staging_prefix
    }

    /// Which keys take part.
    #[must_use]
    pub fn rule(&self) -> KeyRule {
        self.rule
    }

    /// Whether an empty source may be mirrored. A replica is never empty: it would mean a lost or misnamed source.
    #[must_use]
    pub fn may_be_empty(&self) -> bool {
        self.may_be_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_in_a_slash() {
        let pair = Pair::of_instance("a.b").unwrap();
        assert_eq!((pair.source_prefix(), pair.staging_prefix()), ("instances/a.b/", "moves/a.b/"));
        let files = Pair::of_files("uploads/a", "moves-uploads/a/");
        assert_eq!((files.source_prefix(), files.staging_prefix()), ("uploads/a/", "moves-uploads/a/"));
    }

    #[test]
    fn a_host_that_reaches_elsewhere_is_refused() {
        for host in ["", ".", "..", "a/b", "a..b", "../a", "a\n", "a\u{7f}"] {
            assert_eq!(Pair::of_instance(host), Err(HostError), "{host:?}");
        }
    }
}
