//! What a landing restores (M-093…M-095). Pure: everything that it looks at is passed in.

use super::moves::Tail;

/// What a landing sees: complete listings, and the box's own disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen<'a> {
    /// What the cut of the pending landing proved; `None` where none is pending here.
    pub pending: Option<&'a Tail>,
    /// Whether the box has a database of the host.
    pub local: bool,
    /// Whether the host's own prefix holds a replica.
    pub own: bool,
    /// Whether the host's staging holds one.
    pub staged: bool,
    /// Whether a box served the record before.
    pub served_before: bool,
}

/// What a landing restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// The staging of the pending landing, exactly as the cut proved it. Whatever else is here is older.
    Pending(&'a Tail),
    /// The database that the box has.
    Local,
    /// The host's own replica.
    Own,
    /// A staging, where there is nothing else.
    Staging,
    /// Nothing: no box ever served the record, and it begins.
    Beginning,
    /// Something, where nothing of this record can be: another instance's, of the same host (M-121).
    Foreign,
    /// Nothing, where there must be something: never a fresh database.
    Missing(Missing),
}

/// What must be there and is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The staging of the pending landing.
    Staging,
    /// Any copy of an instance that was served before.
    Anything,
}

/// Decides what a landing restores.
///
/// A pending landing alone decides between a staging and an own replica: the instance may have been here before, and what
/// is left of that is older. Without one the box's own copies win.
#[must_use]
pub const fn source(seen: Seen<'_>) -> Source<'_> {
    if let Some(tail) = seen.pending {
        return if seen.staged { Source::Pending(tail) } else { Source::Missing(Missing::Staging) };
    }
    if !seen.served_before {
        return if seen.local || seen.own || seen.staged { Source::Foreign } else { Source::Beginning };
    }
    if seen.local {
        Source::Local
    } else if seen.own {
        Source::Own
    } else if seen.staged {
        Source::Staging
    } else {
        Source::Missing(Missing::Anything)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen<'_> = Seen { pending: None, local: false, own: false, staged: false, served_before: true };

    #[test]
    fn a_pending_landing_takes_the_staging_whatever_else_is_there_and_never_anything_else() {
        let tail = Tail { txid: "0000000000000007".to_owned(), sha256: "ab".repeat(32), size: 4_096 };
        for (local, own) in [(false, false), (false, true), (true, false), (true, true)] {
            let seen = Seen { pending: Some(&tail), local, own, staged: true, ..NOTHING };
            assert_eq!(source(seen), Source::Pending(&tail));
            assert_eq!(source(Seen { staged: false, ..seen }), Source::Missing(Missing::Staging));
        }
    }

    #[test]
    fn without_a_pending_landing_the_boxs_own_copies_win_in_order() {
        assert_eq!(source(Seen { local: true, own: true, staged: true, ..NOTHING }), Source::Local);
        assert_eq!(source(Seen { own: true, staged: true, ..NOTHING }), Source::Own);
        assert_eq!(source(Seen { staged: true, ..NOTHING }), Source::Staging);
    }

    #[test]
    fn nothing_is_a_beginning_only_for_a_record_that_no_box_ever_served() {
        assert_eq!(source(NOTHING), Source::Missing(Missing::Anything));
        let new = Seen { served_before: false, ..NOTHING };
        assert_eq!(source(new), Source::Beginning);
        for seen in [Seen { local: true, ..new }, Seen { own: true, ..new }, Seen { staged: true, ..new }] {
            assert_eq!(source(seen), Source::Foreign, "what is there is not its own");
        }
    }
}
