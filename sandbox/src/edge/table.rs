//! What the documents said, looked up by host.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use tokio::sync::watch;

use super::Document;

/// What an edge does with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Sends it to this address.
    Serves {
        /// The region whose box serves the host.
        region: String,
        /// Where the host is answered.
        address: String,
    },
    /// 503: the host is known and not served, or it is served where nobody can be reached.
    Unserved,
    /// 503: some region's document was not read, or tells only a part.
    Unclear,
    /// 404.
    Unknown,
}

/// A moment in the order of what happened here; the first is 1.
pub(super) type Moment = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Served {
    node: String,
    address: Option<String>,
    /// When the route was new, or changed: of two regions that claim a host, the later one is right.
    since: Moment,
}

#[derive(Debug, Default)]
struct Known {
    region: String,
    /// When the last read that came to an end began; 0 for none.
    read_from: Moment,
    partial: bool,
    served: HashMap<String, Served>,
    unserved: HashSet<String>,
}

#[derive(Debug, Default)]
struct Inner {
    known: Vec<Known>,
    now: Moment,
    /// Hosts that left a region's document, and when that was seen. The documents of two regions are read one after the
    /// other: the one where the host went may have been read before it arrived. Until each was read anew, nobody can know
    /// that it is gone.
    left: HashMap<String, Moment>,
}

/// All regions of an edge.
#[derive(Debug)]
pub(super) struct Table {
    inner: RwLock<Inner>,
    changed: watch::Sender<()>,
}

impl Table {
    pub(super) fn new(regions: &[String]) -> Self {
        let known = regions.iter().map(|region| Known { region: region.clone(), ..Known::default() }).collect();
        Self { inner: RwLock::new(Inner { known, ..Inner::default() }), changed: watch::Sender::new(()) }
    }

    /// A read of a document begins: what it will say is true at this moment or later.
    pub(super) fn begin(&self) -> Moment {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).tick()
    }

    /// A read that began at `begun` came to an end: with another document than before, or with the same.
    pub(super) fn read(&self, n: usize, begun: Moment, document: Option<Document>) {
        {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(document) = document {
                inner.put(n, document);
            }
            let Some(known) = inner.known.get_mut(n) else { return };
            known.read_from = begun;
            let oldest = inner.known.iter().map(|known| known.read_from).min().unwrap_or_default();
            inner.left.retain(|_, left| *left >= oldest);
        }
        self.changed.send_replace(());
    }

    pub(super) fn answer(&self, host: &str) -> Answer {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let all = &inner.known;
        let claims = all.iter().filter_map(|known| Some((known, known.served.get(host)?)));
        if let Some((known, served)) = claims.max_by_key(|(_, served)| served.since) {
            return match &served.address {
                Some(address) => Answer::Serves { region: known.region.clone(), address: address.clone() },
                None => Answer::Unserved,
            };
        }
        if inner.left.contains_key(host) || all.iter().any(|known| known.unserved.contains(host)) {
            return Answer::Unserved;
        }
        if all.iter().any(|known| known.read_from == 0 || known.partial) { Answer::Unclear } else { Answer::Unknown }
    }

    /// Whether each region's document was read.
    pub(super) fn is_complete(&self) -> bool {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).known.iter().all(|known| known.read_from > 0)
    }

    /// Waits until `holds`.
    pub(super) async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        // Looked at after the subscription, so that no change falls between the two. The sender lives as long as we.
        while !holds(self) && changed.changed().await.is_ok() {}
    }
}

impl Inner {
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Puts a region's document in the place of its last one.
    fn put(&mut self, n: usize, document: Document) {
        let now = self.tick();
        let Some(known) = self.known.get_mut(n) else { return };
        let mut served = HashMap::with_capacity(document.routes.len());
        for route in document.routes {
            let host = route.host.to_ascii_lowercase();
            let same = |old: &&Served| old.node == route.node && old.address == route.address;
            let since = known.served.get(&host).filter(same).map_or(now, |old| old.since);
            served.insert(host, Served { node: route.node, address: route.address, since });
        }
        let unserved: HashSet<String> = document.unserved.iter().map(|host| host.to_ascii_lowercase()).collect();
        let before = known.served.keys().chain(&known.unserved);
        let gone = before.filter(|host| !served.contains_key(*host) && !unserved.contains(*host));
        self.left.extend(gone.map(|host| (host.clone(), now)));
        (known.served, known.unserved, known.partial) = (served, unserved, document.partial);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Route;
    use super::*;

    fn route(host: &str, address: Option<&str>) -> Route {
        Route { host: host.to_owned(), node: "n".to_owned(), address: address.map(str::to_owned) }
    }

    fn document(routes: Vec<Route>, unserved: &[&str]) -> Option<Document> {
        let unserved = unserved.iter().map(|host| (*host).to_owned()).collect();
        Some(Document { routes, unserved, ..Document::default() })
    }

    fn serves(region: &str, address: &str) -> Answer {
        Answer::Serves { region: region.to_owned(), address: address.to_owned() }
    }

    fn table() -> Table {
        Table::new(&["eu".to_owned(), "uk".to_owned()])
    }

    impl Table {
        /// A read that takes no time.
        fn put(&self, n: usize, document: Option<Document>) {
            self.read(n, self.begin(), document);
        }
    }

    #[test]
    fn a_host_is_unknown_only_where_every_region_was_read_in_full() {
        let table = table();
        assert_eq!(table.answer("a"), Answer::Unclear);
        table.put(0, document(vec![route("A", Some("1"))], &["B"]));
        assert_eq!((table.answer("a"), table.answer("b")), (serves("eu", "1"), Answer::Unserved));
        assert!(!table.is_complete());
        assert_eq!(table.answer("c"), Answer::Unclear, "the other region may serve it");
        table.put(1, document(vec![route("d", None)], &[]));
        assert_eq!((table.answer("c"), table.answer("d")), (Answer::Unknown, Answer::Unserved));
        table.put(1, Some(Document { partial: true, ..Document::default() }));
        assert_eq!(table.answer("c"), Answer::Unclear);
    }

    /// The documents of two regions are read one after the other: for a moment both may claim a host that moved.
    #[test]
    fn of_two_regions_that_claim_a_host_the_later_one_is_right() {
        let table = table();
        table.put(0, document(vec![route("a", Some("1"))], &[]));
        table.put(1, document(vec![route("a", Some("2"))], &[]));
        assert_eq!(table.answer("a"), serves("uk", "2"));
        table.put(0, document(vec![route("a", Some("1"))], &[]));
        assert_eq!(table.answer("a"), serves("uk", "2"), "read again, it says nothing new");
        table.put(0, document(vec![route("a", Some("3"))], &[]));
        assert_eq!(table.answer("a"), serves("eu", "3"), "it came back");
        table.put(0, document(vec![], &["a"]));
        assert_eq!(table.answer("a"), serves("uk", "2"), "whoever serves it outweighs who does not");
    }

    /// The story: the region flips between the read of the target's document, which does not name the host yet, and that of
    /// the source's, which names it no more.
    #[test]
    fn a_host_that_left_one_document_is_not_unknown_until_the_others_were_read_anew() {
        let table = table();
        table.put(0, document(vec![], &["a"]));
        table.put(1, document(vec![], &[]));
        let under_way = table.begin();
        table.put(0, document(vec![], &[]));
        assert_eq!(table.answer("a"), Answer::Unserved);
        table.read(1, under_way, None);
        assert_eq!(table.answer("a"), Answer::Unserved, "that read began before");
        table.put(0, None);
        assert_eq!(table.answer("a"), Answer::Unserved, "the one that it left says nothing of the other");
        table.put(1, document(vec![], &["a"]));
        assert_eq!(table.answer("a"), Answer::Unserved);
        // Deleted, it is unknown after one more round.
        table.put(1, document(vec![], &[]));
        assert_eq!(table.answer("a"), Answer::Unserved);
        table.put(0, None);
        assert_eq!(table.answer("a"), Answer::Unserved, "its own document is the one in which it was");
        table.put(1, None);
        assert_eq!(table.answer("a"), Answer::Unknown);
    }
}
