//! One page of a listing, cut out of the sorted index: its cost depends on the page, not the bucket.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::store::Object;

/// The most keys a page may carry, as S3 has it.
pub(super) const MAX_KEYS: usize = 1000;

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum From {
    /// At the prefix's first key.
    Start,
    /// After this key.
    Key(String),
    /// After all keys with this common prefix.
    Group(String),
}

impl From {
    /// A continuation token: opaque to clients, stateless here.
    pub(super) fn token(&self) -> String {
        let plain = match self {
            Self::Start => "s".to_owned(),
            Self::Key(key) => format!("k{key}"),
            Self::Group(prefix) => format!("g{prefix}"),
        };
        hex::encode(plain)
    }

    /// What a token stands for; nothing for one that we never gave.
    pub(super) fn parse(token: &str) -> Option<Self> {
        let plain = String::from_utf8(hex::decode(token).ok()?).ok()?;
        match plain.split_at_checked(1)? {
            ("s", "") => Some(Self::Start),
            ("k", key) => Some(Self::Key(key.to_owned())),
            ("g", prefix) => Some(Self::Group(prefix.to_owned())),
            _ => None,
        }
    }
}

/// One page.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Arc<Object>)>,
    pub(super) groups: Vec<String>,
    /// Where the next page begins, if there is more.
    pub(super) next: Option<From>,
}

impl Page {
    fn len(&self) -> usize {
        self.objects.len() + self.groups.len()
    }
}

/// The first `limit` keys and common prefixes under `prefix` after `from`, in UTF-8 byte order.
pub(super) fn page(
    index: &BTreeMap<String, Arc<Object>>,
    prefix: &str,
    delimiter: Option<&str>,
    from: &From,
    limit: usize,
) -> Page {
    let mut page = Page::default();
    let mut last = from.clone();
    let mut bound = first_bound(prefix, from);
    'seek: loop {
        for (key, object) in index.range::<str, _>((bound.as_ref().map(String::as_str), Bound::Unbounded)) {
            let Some(rest) = key.strip_prefix(prefix) else { return page };
            if page.len() == limit {
                // With a limit of nothing there is nothing to go on from: S3 answers "not truncated".
                page.next = (limit > 0).then_some(last);
                return page;
            }
            let group = delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len()));
            match group {
                None => {
                    page.objects.push((key.clone(), Arc::clone(object)));
                    last = From::Key(key.clone());
                }
                Some(length) => {
                    let group = key[..prefix.len() + length].to_owned();
                    bound = after_group(&group);
                    page.groups.push(group.clone());
                    last = From::Group(group);
                    continue 'seek;
                }
            }
        }
        return page;
    }
}

fn first_bound(prefix: &str, from: &From) -> Bound<String> {
    let bound = match from {
        From::Start => return Bound::Included(prefix.to_owned()),
        From::Key(key) => Bound::Excluded(key.clone()),
        From::Group(group) => after_group(group),
    };
    match &bound {
        // A start before the prefix begins at the prefix.
        Bound::Included(text) | Bound::Excluded(text) if text.as_str() < prefix => Bound::Included(prefix.to_owned()),
        Bound::Included(_) | Bound::Excluded(_) | Bound::Unbounded => bound,
    }
}

/// The bound that skips every key beginning with `group`.
fn after_group(group: &str) -> Bound<String> {
    let mut characters: Vec<char> = group.chars().collect();
    while let Some(character) = characters.pop() {
        // The next character in code point order, which is also the order of UTF-8 bytes.
        if let Some(next) = ((character as u32 + 1)..=(char::MAX as u32)).find_map(char::from_u32) {
            characters.push(next);
            return Bound::Included(characters.into_iter().collect());
        }
    }
    Bound::Unbounded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(keys: &[&str]) -> BTreeMap<String, Arc<Object>> {
        keys.iter().map(|key| ((*key).to_owned(), Arc::new(Object::for_tests()))).collect()
    }

    /// All pages of `limit`, one after the other, through their tokens.
    fn pages(keys: &[&str], prefix: &str, delimiter: Option<&str>, limit: usize) -> (Vec<String>, Vec<String>, usize) {
        let index = index(keys);
        let (mut objects, mut groups, mut count) = (Vec::new(), Vec::new(), 0);
        let mut from = From::Start;
        loop {
            let got = page(&index, prefix, delimiter, &from, limit);
            count += 1;
            objects.extend(got.objects.into_iter().map(|(key, _)| key));
            groups.extend(got.groups);
            match got.next {
                Some(next) => from = From::parse(&next.token()).expect("own token"),
                None => return (objects, groups, count),
            }
        }
    }

    #[test]
    fn pages_join_to_the_whole_in_byte_order() {
        let keys = ["p/a", "p/a b", "p/a+", "p/b/1", "p/b/2", "p/é", "p/\u{10ffff}", "q"];
        for limit in 1..8 {
            let (objects, groups, _) = pages(&keys, "p/", None, limit);
            assert_eq!(objects, keys[..7], "limit {limit}");
            assert!(groups.is_empty());
        }
    }

    #[test]
    fn groups_are_named_once_and_skipped_whole() {
        let keys = ["a/1", "a/2", "a/3", "a0", "b/1", "c"];
        for limit in 1..6 {
            let (objects, groups, _) = pages(&keys, "", Some("/"), limit);
            assert_eq!(
                (objects, groups),
                (vec!["a0".to_owned(), "c".to_owned()], vec!["a/".to_owned(), "b/".to_owned()])
            );
        }
    }

    #[test]
    fn a_full_last_page_is_not_truncated() {
        let (objects, _, count) = pages(&["a", "b", "c", "d"], "", None, 2);
        assert_eq!((objects.len(), count), (4, 2));
    }

    #[test]
    fn a_start_before_or_behind_the_prefix_is_honoured() {
        let index = index(&["a", "p/1", "p/2", "q"]);
        let keys = |after: &str| {
            let got = page(&index, "p/", None, &From::Key(after.to_owned()), 10);
            got.objects.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys("a"), ["p/1", "p/2"]);
        assert_eq!(keys("p/1"), ["p/2"]);
        assert_eq!(keys("z"), Vec::<String>::new());
    }
}
