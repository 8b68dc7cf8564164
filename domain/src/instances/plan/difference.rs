//! The difference of two sorted listings and the sorted journal of what was copied, one key at a time.

use std::cmp::Ordering;

/// An object as a listing shows it, its key without the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The part of the key behind the prefix.
    pub key: &'a str,
    /// Bytes.
    pub size: u64,
    /// The store's name for this content; not a checksum. `None` where a store lists none.
    pub etag: Option<&'a str>,
}

/// What the journal remembers of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journalled<'a> {
    /// The part of the key behind the prefix.
    pub key: &'a str,
    /// The source's `ETag` when it was copied.
    pub src_etag: &'a str,
    /// The source's size when it was copied, bytes.
    pub size: u64,
    /// The `ETag` that the target gave to the copy.
    pub copied_etag: &'a str,
}

/// What to do about the smallest key of the three heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyVerdict {
    /// The journal proves that the target holds this object.
    Equal,
    /// The source's object is not provably at the target.
    Copy,
    /// The source pruned it: delete it at the target, and the journal's row with it.
    Delete,
    /// Neither side holds it: only the journal's row is left over.
    Forget,
}

/// Which heads the verdict consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    /// The source's listing.
    pub source: bool,
    /// The target's listing.
    pub target: bool,
    /// The journal.
    pub journal: bool,
}

/// A verdict and the heads it consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub verdict: KeyVerdict,
    /// Which cursors move on.
    pub advance: Advance,
}

/// Judges the smallest key among the heads of three cursors that are sorted by bytes; `None` when all have ended.
///
/// Equal means: the journal names this source object (`ETag` and size) as the one copied, and the target lists an
/// object of that size under the `ETag` that the copy was answered with. A target that lists no `ETag` is judged by
/// size alone. A key at the target without a journal row is *not* equal: somebody else wrote it, or we died before
/// recording it, and a second copy costs one request.
#[must_use]
pub fn decide(
    source: Option<Entry<'_>>,
    target: Option<Entry<'_>>,
    journal: Option<Journalled<'_>>,
) -> Option<Decision> {
    let smallest = [source.map(|s| s.key), target.map(|t| t.key), journal.map(|j| j.key)]
        .into_iter()
        .flatten()
        .min_by(|a, b| bytes(a, b))?;
    let source = source.filter(|s| s.key == smallest);
    let target = target.filter(|t| t.key == smallest);
    let journal = journal.filter(|j| j.key == smallest);
    let verdict = match (source, target) {
        (Some(source), Some(target)) if is_proven(source, target, journal) => KeyVerdict::Equal,
        (Some(_), _) => KeyVerdict::Copy,
        (None, Some(_)) => KeyVerdict::Delete,
        (None, None) => KeyVerdict::Forget,
    };
    let advance = Advance { source: source.is_some(), target: target.is_some(), journal: journal.is_some() };
    Some(Decision { verdict, advance })
}

fn is_proven(source: Entry<'_>, target: Entry<'_>, journal: Option<Journalled<'_>>) -> bool {
    journal.is_some_and(|copied| {
        source.etag == Some(copied.src_etag)
            && source.size == copied.size
            && target.size == copied.size
            && target.etag.is_none_or(|etag| etag == copied.copied_etag)
    })
}

/// S3 lists in the order of UTF-8 bytes, which is the order of `str`; named so that nobody brings in a locale.
fn bytes(a: &str, b: &str) -> Ordering {
    a.as_bytes().cmp(b.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SOURCE: Entry<'_> = Entry { key: "k", size: 7, etag: Some("s1") };
    const TARGET: Entry<'_> = Entry { key: "k", size: 7, etag: Some("t1") };
    const COPIED: Journalled<'_> = Journalled { key: "k", src_etag: "s1", size: 7, copied_etag: "t1" };

    fn verdict(source: Option<Entry<'_>>, target: Option<Entry<'_>>, journal: Option<Journalled<'_>>) -> KeyVerdict {
        decide(source, target, journal).unwrap().verdict
    }

    #[test]
    fn equal_needs_the_journal_and_both_sides() {
        assert_eq!(verdict(Some(SOURCE), Some(TARGET), Some(COPIED)), KeyVerdict::Equal);
        assert_eq!(verdict(Some(SOURCE), Some(Entry { etag: None, ..TARGET }), Some(COPIED)), KeyVerdict::Equal);
        let cases = [
            (Some(TARGET), None, "no journal row"),
            (None, Some(COPIED), "gone at the target"),
            (Some(Entry { size: 8, ..TARGET }), Some(COPIED), "another size at the target"),
            (Some(Entry { etag: Some("t2"), ..TARGET }), Some(COPIED), "overwritten at the target"),
            (Some(TARGET), Some(Journalled { src_etag: "s0", ..COPIED }), "another content at the source"),
            (Some(TARGET), Some(Journalled { size: 6, ..COPIED }), "another size at the source"),
        ];
        for (target, journal, why) in cases {
            assert_eq!(verdict(Some(SOURCE), target, journal), KeyVerdict::Copy, "{why}");
        }
    }

    #[test]
    fn equal_etags_of_both_sides_prove_nothing() {
        let target = Entry { etag: SOURCE.etag, ..TARGET };
        assert_eq!(verdict(Some(SOURCE), Some(target), None), KeyVerdict::Copy);
    }

    #[test]
    fn a_source_without_etags_is_never_equal() {
        assert_eq!(verdict(Some(Entry { etag: None, ..SOURCE }), Some(TARGET), Some(COPIED)), KeyVerdict::Copy);
    }

    #[test]
    fn all_ended_is_none() {
        assert_eq!(decide(None, None, None), None);
    }

    type Side = BTreeMap<String, (u64, u8)>;

    proptest! {
        /// The merge agrees with a model on sets, visits every key once, in byte order, and consumes what it saw.
        #[test]
        fn the_merge_equals_the_model_on_sets(
            source in prop::collection::btree_map("[aé0-2/]{1,3}", (0_u64..2, 0_u8..2), 0..12),
            target in prop::collection::btree_map("[aé0-2/]{1,3}", (0_u64..2, 0_u8..2), 0..12),
            journal in prop::collection::btree_map("[aé0-2/]{1,3}", (0_u64..2, 0_u8..2, 0_u8..2), 0..12),
        ) {
            let (source, target): (Side, Side) = (source, target);
            let etags = ["e0", "e1"];
            let entry = |(key, (size, etag)): (&'_ String, &(u64, u8))| (key.clone(), *size, etags[usize::from(*etag)]);
            let s: Vec<_> = source.iter().map(entry).collect();
            let t: Vec<_> = target.iter().map(entry).collect();
            let j: Vec<_> = journal.iter().map(|(k, (size, a, b))| (k.clone(), *size, etags[usize::from(*a)], etags[usize::from(*b)])).collect();
            let (mut si, mut ti, mut ji) = (0, 0, 0);
            let mut seen = BTreeMap::new();
            loop {
                let heads = (
                    s.get(si).map(|(key, size, etag)| Entry { key, size: *size, etag: Some(etag) }),
                    t.get(ti).map(|(key, size, etag)| Entry { key, size: *size, etag: Some(etag) }),
                    j.get(ji).map(|(key, size, a, b)| Journalled { key, size: *size, src_etag: a, copied_etag: b }),
                );
                let Some(decision) = decide(heads.0, heads.1, heads.2) else { break };
                let key = [
                    heads.0.filter(|_| decision.advance.source).map(|e| e.key),
                    heads.1.filter(|_| decision.advance.target).map(|e| e.key),
                    heads.2.filter(|_| decision.advance.journal).map(|e| e.key),
                ].into_iter().flatten().next().expect("at least one head moves").to_owned();
                prop_assert!(seen.last_key_value().is_none_or(|(last, _)| *last < key), "in order, once");
                seen.insert(key, decision.verdict);
                si += usize::from(decision.advance.source);
                ti += usize::from(decision.advance.target);
                ji += usize::from(decision.advance.journal);
            }
            let all: BTreeSet<&String> = source.keys().chain(target.keys()).chain(journal.keys()).collect();
            prop_assert_eq!(seen.len(), all.len());
            for (key, verdict) in seen {
                let expected = match (source.get(&key), target.get(&key), journal.get(&key)) {
                    (Some((ss, se)), Some((ts, te)), Some((js, a, b))) if ss == js && ts == js && se == a && te == b => KeyVerdict::Equal,
                    (Some(_), _, _) => KeyVerdict::Copy,
                    (None, Some(_), _) => KeyVerdict::Delete,
                    (None, None, _) => KeyVerdict::Forget,
                };
                prop_assert_eq!(verdict, expected, "{}", key);
            }
        }
    }
}
