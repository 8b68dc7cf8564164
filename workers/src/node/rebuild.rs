//! What a rebuilt node may remove: what it owned before, and is not wanted on it any more.
//!
//! An answer that is no answer removes nothing. An error that is folded into an empty list would make the machine delete all
//! that it has, so what is not known is a value of its own here: [`Removal::Nothing`].

use std::collections::BTreeSet;

use domain::ids::NodeId;
use wire::{Client, Error, NodeRebuild, NodeReport, OwnedItem};

/// Why nothing may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// The node never reported: nobody knows what it owned.
    NeverReported,
    /// There is no answer, or none that can be read: nothing is known of either side.
    NoAnswer,
    /// The answer is of another node, or of another machine under this one's identity.
    NotOurs,
}

/// What a node may remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// Nothing at all, whatever is found on the machine.
    Nothing(Unknown),
    /// These and no others; perhaps none. What neither side names is not in it.
    Orphans(BTreeSet<OwnedItem>),
}

/// What the answer lets a machine remove: the record without the declaration, of the kinds that the declaration speaks of.
#[must_use]
pub fn removal(node: NodeId, incarnation: i64, answer: Result<NodeRebuild, Error>) -> Removal {
    // Every error alike: no code or status is worth a deletion.
    let Ok(rebuild) = answer else { return Removal::Nothing(Unknown::NoAnswer) };
    if rebuild.node_id != node.0 || rebuild.incarnation != incarnation {
        return Removal::Nothing(Unknown::NotOurs);
    }
    match rebuild.record {
        NodeReport::NeverReported { .. } => Removal::Nothing(Unknown::NeverReported),
        NodeReport::Reported { items, .. } => {
            let wanted: BTreeSet<OwnedItem> = rebuild.declaration.into_iter().collect();
            // Of a kind that the declaration does not speak of, nobody said that it is not wanted.
            let spoken_of = |item: &OwnedItem| rebuild.declared_kinds.contains(&item.kind);
            let orphans = items.into_iter().filter(|item| spoken_of(item) && !wanted.contains(item));
            Removal::Orphans(orphans.collect())
        }
    }
}

/// Asks the control plane, with a client that carries the bearer of the node's session, and tells what the machine may remove.
pub async fn ask(client: &Client, node: NodeId, incarnation: i64) -> Removal {
    let answer = client.node_rebuild(node.0).await;
    if let Err(error) = &answer {
        tracing::warn!(%error, node.id = %node, "nothing is removed: what was owned and what is wanted is not known");
    }
    removal(node, incarnation, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: &str, id: &str) -> OwnedItem {
        OwnedItem { kind: kind.to_owned(), id: id.to_owned() }
    }

    fn reported(node: NodeId, declaration: &[OwnedItem], items: &[OwnedItem]) -> NodeRebuild {
        let at = "2026-01-01T00:00:00Z".parse().expect("a moment");
        NodeRebuild {
            node_id: node.0,
            incarnation: 2,
            declaration: declaration.to_vec(),
            declared_kinds: vec!["instance".to_owned()],
            record: NodeReport::Reported {
                incarnation: 1,
                current_incarnation: 2,
                seq: 7,
                items: items.to_vec(),
                reported_at: at,
                received_at: at,
                age_ms: 0,
                last_seen_age_ms: Some(0),
                last_sent_age_ms: Some(0),
            },
        }
    }

    #[test]
    fn what_was_owned_and_is_not_wanted_is_removed_and_nothing_else() {
        let node = NodeId::generate();
        let [a, b, c] = ["a", "b", "c"].map(|id| item("instance", id));
        let of =
            |declaration: &[OwnedItem], items: &[OwnedItem]| removal(node, 2, Ok(reported(node, declaration, items)));
        let all = [a.clone(), b.clone(), c.clone()];
        assert_eq!(of(&all[..2], &all), Removal::Orphans([c.clone()].into()));
        assert_eq!(of(&all, &[]), Removal::Orphans(BTreeSet::new()), "it reported nothing");
        assert_eq!(of(&[], &all[..2]), Removal::Orphans([a, b].into()), "nothing is wanted");
        // A kind of which the declaration does not speak is not missing in it.
        let volume = item("volume", "a");
        assert_eq!(of(&[], &[volume, c.clone()]), Removal::Orphans([c].into()));
    }

    #[test]
    fn what_is_not_known_or_of_somebody_else_removes_nothing() {
        let node = NodeId::generate();
        let orphan = [item("instance", "a")];
        let never = NodeRebuild {
            record: NodeReport::NeverReported { last_seen_age_ms: None, last_sent_age_ms: None },
            ..reported(node, &[], &orphan)
        };
        assert_eq!(removal(node, 2, Ok(never)), Removal::Nothing(Unknown::NeverReported));
        let address = Err(Error::Address(String::new()));
        assert_eq!(removal(node, 2, address), Removal::Nothing(Unknown::NoAnswer));
        let of = || Ok(reported(node, &[], &orphan));
        assert_eq!(removal(NodeId::generate(), 2, of()), Removal::Nothing(Unknown::NotOurs));
        assert_eq!(removal(node, 1, of()), Removal::Nothing(Unknown::NotOurs), "this machine was replaced");
        assert_eq!(removal(node, 2, of()), Removal::Orphans(orphan.into()));
    }
}
