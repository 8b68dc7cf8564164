//! Which copies may overtake each other without ever making the staging unrestorable.

use super::key::{Level, ReplicaKey, Txid};

/// What one level of the source holds, folded in key order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Span {
    first: u64,
    reach: u64,
    broken: bool,
}

/// The transactions that each level of a source listing covers.
///
/// Ten small values, whatever the number of keys. Built while the source is listed.
#[derive(Debug, Clone, Default)]
pub struct Spans {
    levels: [Span; Level::COUNT],
}

impl Spans {
    /// Adds one key of the source. Keys of one level must come in key order, which is the order of listings.
    pub fn observe(&mut self, key: ReplicaKey) {
        let span = &mut self.levels[key.level.index()];
        if span.reach == 0 {
            *span = Span { first: key.min.0, reach: key.max.0, broken: false };
        } else {
            span.broken |= key.min.0 > span.reach.saturating_add(1);
            span.reach = span.reach.max(key.max.0);
        }
    }

    /// The last transaction that the levels above `level` reach without a hole, once all their keys are staged.
    /// 0 when they prove nothing.
    #[must_use]
    pub fn covered_above(&self, level: Level) -> Txid {
        let mut covered = 0_u64;
        for span in self.levels[level.index() + 1..].iter().rev() {
            if !span.broken && span.reach > 0 && span.first <= covered.saturating_add(1) {
                covered = covered.max(span.reach);
            }
        }
        Txid(covered)
    }

    /// The newest transaction of the source, whatever its level; `None` without keys.
    #[must_use]
    pub fn newest(&self) -> Option<Txid> {
        self.levels.iter().map(|span| span.reach).max().filter(|reach| *reach > 0).map(Txid)
    }

    /// Whether the levels above already hold all that this key holds. A restore skips such a key, so nothing is lost
    /// when it vanishes before its turn. Without any other key no later key may be copied, or a hole would open.
    #[must_use]
    pub fn is_covered(&self, key: ReplicaKey) -> bool {
        key.max <= self.covered_above(key.level)
    }

    /// Whether this key may be copied beside others of its level: it is covered, or it begins with the first
    /// transaction and needs no predecessor. Any other key extends the chain: it must be copied after its
    /// predecessor has arrived, or a cut between the two would leave a hole.
    #[must_use]
    pub fn is_free(&self, key: ReplicaKey) -> bool {
        key.min.0 == 1 || self.is_covered(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(level: u8, min: u64, max: u64) -> ReplicaKey {
        ReplicaKey { level: Level::new(level).unwrap(), min: Txid(min), max: Txid(max) }
    }

    fn spans(keys: &[ReplicaKey]) -> Spans {
        let mut spans = Spans::default();
        keys.iter().for_each(|key| spans.observe(*key));
        spans
    }

    #[test]
    fn keys_that_the_levels_above_cover_are_free_and_the_tail_is_not() {
        let spans = spans(&[key(0, 80, 80), key(0, 81, 120), key(1, 71, 90), key(1, 91, 110), key(9, 1, 75)]);
        assert!(spans.is_free(key(9, 1, 75)), "a snapshot needs no predecessor");
        assert!(!spans.is_covered(key(9, 1, 75)), "but nothing else holds what it holds");
        assert!(!spans.is_free(key(1, 71, 90)), "it reaches beyond the snapshot");
        assert!(spans.is_free(key(0, 80, 80)));
        assert!(!spans.is_free(key(0, 81, 120)), "110 is as far as the levels above reach");
        assert_eq!(spans.newest(), Some(Txid(120)));
    }

    #[test]
    fn a_level_with_a_hole_proves_nothing() {
        assert!(!spans(&[key(1, 1, 10), key(1, 12, 20)]).is_free(key(0, 5, 5)));
        assert!(spans(&[key(1, 1, 10), key(1, 11, 20)]).is_free(key(0, 5, 5)));
        assert_eq!(Spans::default().newest(), None);
    }

    #[test]
    fn a_level_that_does_not_join_the_chain_proves_nothing() {
        assert!(!spans(&[key(1, 50, 90), key(9, 1, 40)]).is_free(key(0, 60, 60)));
    }

    /// litestream's plan, as of 0.5.17: the newest snapshot, then the candidate of any level that reaches furthest;
    /// it fails when a file begins beyond a hole. Gives the restored transaction.
    fn restores_to(staged: &[ReplicaKey]) -> Result<Option<u64>, ()> {
        let mut reach =
            staged.iter().filter(|k| k.level == Level::SNAPSHOT).max_by_key(|k| (k.min, k.max)).map_or(0, |k| k.max.0);
        loop {
            let next = staged
                .iter()
                .filter(|k| k.level != Level::SNAPSHOT && k.min.0 <= reach + 1 && k.max.0 > reach)
                .map(|k| k.max.0)
                .max();
            match next {
                Some(max) => reach = max,
                None => break,
            }
        }
        if staged.iter().any(|k| k.level != Level::SNAPSHOT && k.min.0 > reach + 1) {
            return Err(());
        }
        Ok((reach > 0).then_some(reach))
    }

    /// A replica as litestream leaves one: raw files, compactions of several widths, snapshots, prefixes pruned.
    fn replica(txids: u64, widths: [u64; 3], snapshot_every: u64, keep: u64) -> Vec<ReplicaKey> {
        let mut keys = Vec::new();
        let mut below = txids;
        let snapshot = txids / snapshot_every * snapshot_every;
        for (level, width) in
            [1_u64, widths[0], widths[0] * widths[1], widths[0] * widths[1] * widths[2]].into_iter().enumerate()
        {
            let done = below / width * width;
            let level_no = u8::try_from(level).unwrap();
            // Raw files are pruned once compacted, compactions once a snapshot covers them.
            let pruned = if level == 0 {
                (txids / widths[0] * widths[0]).saturating_sub(keep)
            } else {
                snapshot.saturating_sub(keep)
            };
            let mut min = 1;
            while min + width - 1 <= done {
                if min + width - 1 > pruned {
                    keys.push(key(level_no, min, min + width - 1));
                }
                min += width;
            }
            below = done;
        }
        let mut max = snapshot_every;
        while max <= snapshot {
            keys.push(key(9, 1, max));
            max += snapshot_every;
        }
        keys
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// M-046 as a model: whatever the scheduler does within its freedom, and wherever it is cut, a staging that
        /// could be restored stays restorable and never goes back. `before` stays staged, as in a delta round.
        #[test]
        fn the_copy_order_keeps_the_staging_restorable_at_every_cut(
            before in 0_u64..120, added in 1_u64..120, keep in 0_u64..12,
            widths in [2_u64..5, 2_u64..4, 2_u64..4], snapshot_every in 7_u64..40, picks in prop::collection::vec(any::<u16>(), 600),
            lost in 0_usize..200,
        ) {
            let mut staged = if before == 0 { Vec::new() } else { replica(before, widths, snapshot_every, keep) };
            let source = replica(before + added, widths, snapshot_every, keep);
            let spans = spans(&source);
            let mut best = restores_to(&staged).expect("the old staging restores");
            let mut picks = picks.into_iter().cycle();
            let mut copies = 0;
            'copies: for rank in (0..10_usize).rev() {
                let (mut free, ordered): (Vec<_>, Vec<_>) =
                    source.iter().copied().filter(|k| k.level.index() == rank).partition(|k| spans.is_free(*k));
                let mut turn = Vec::new();
                while !free.is_empty() {
                    turn.push(free.swap_remove(usize::from(picks.next().expect("endless")) % free.len()));
                }
                for next in turn.into_iter().chain(ordered) {
                    copies += 1;
                    if copies == lost {
                        // The source pruned it before its turn.
                        if spans.is_covered(next) { continue } else { break 'copies }
                    }
                    staged.push(next);
                    let now = restores_to(&staged);
                    prop_assert!(now.is_ok_and(|now| now >= best), "cut after {:?}: {:?} after {:?}", next, now, best);
                    best = best.max(now.expect("checked"));
                }
            }
            if lost == 0 {
                prop_assert_eq!(best, Some(before + added));
                // Deletes follow in key order, raw files first; they too may be cut anywhere.
                let mut pruned: Vec<_> = staged.iter().copied().filter(|k| !source.contains(k)).collect();
                pruned.sort_by_key(|k| (k.level, k.min, k.max));
                for gone in pruned {
                    staged.retain(|k| *k != gone);
                    prop_assert_eq!(restores_to(&staged), Ok(best), "cut after deleting {:?}", gone);
                }
            }
        }
    }
}
