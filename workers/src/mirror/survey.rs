//! One complete listing of both sides, merged with the journal into difference sets.

use std::io;
use std::path::PathBuf;

use domain::instances::plan::{Differences, Entry, KeyPlace, KeyVerdict, Level, Spans, decide};

use super::cursor::{CursorError, JournalCursor, SideCursor};
use super::spill::Spill;
use super::{KeyJournal, MirrorError, Pair, Place, Reason};
use crate::objects;

/// What a complete listing of one pair found.
pub(super) struct Survey {
    /// Copies by rank; most passes need one or two ranks.
    pub(super) copies: [Option<Spill>; Level::COUNT],
    /// Keys to delete at the target.
    pub(super) deletes: Option<Spill>,
    /// Journal rows that nothing stands behind.
    pub(super) forgets: Option<Spill>,
    /// What the source's levels cover.
    pub(super) spans: Spans,
    /// The numbers.
    pub(super) found: Differences,
    /// Objects of the source that take part.
    pub(super) source_keys: u64,
    /// Objects of the target that take part.
    pub(super) staged_keys: u64,
    /// Their bytes.
    pub(super) staged_bytes: u64,
}

/// Why there is no survey.
pub(super) enum Stop {
    /// The source cannot be read until somebody acts (M-055).
    Unreadable {
        /// Which bucket and prefix.
        at: String,
        /// What the store said.
        error: objects::Error,
    },
    /// Anything else.
    Mirror(MirrorError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Mirror(MirrorError::Spill(error))
    }
}

/// Lists both sides of a pair at once, one sequential pass each, and compares them on the way.
pub(super) async fn survey(
    source: &Place,
    target: &Place,
    (index, pair): (usize, &Pair),
    (journal, page): (&dyn KeyJournal, usize),
    folder: Option<&PathBuf>,
) -> Result<Survey, Stop> {
    let mut sources = SideCursor::of_source(source, pair);
    let mut targets = SideCursor::new(target.list(pair.staging_prefix()), pair.staging_prefix(), pair.rule());
    let mut copied = JournalCursor::new(journal, index, page);
    let mut found = Survey {
        copies: Default::default(),
        deletes: None,
        forgets: None,
        spans: Spans::default(),
        found: Differences::default(),
        source_keys: 0,
        staged_keys: 0,
        staged_bytes: 0,
    };
    loop {
        sources.fill().await.map_err(|error| of_source(error, source, pair))?;
        targets.fill().await.map_err(|error| of_target(error, target, pair))?;
        copied.fill().await.map_err(|error| Stop::Mirror(error.into()))?;
        while sources.is_known() && targets.is_known() && copied.is_known() {
            let Some(decision) = decide(sources.head(), targets.head(), copied.head()) else { return Ok(found) };
            match decision.verdict {
                KeyVerdict::Equal => {}
                KeyVerdict::Copy => found.copy(sources.head(), (source, pair), folder)?,
                KeyVerdict::Delete => {
                    found.found.deletes += 1;
                    push(&mut found.deletes, folder, targets.head().map(|entry| entry.key))?;
                }
                KeyVerdict::Forget => push(&mut found.forgets, folder, copied.head().map(|row| row.key))?,
            }
            if decision.advance.source {
                found.see(sources.head(), pair);
                sources.advance();
            }
            if decision.advance.target {
                found.staged_keys += 1;
                found.staged_bytes += targets.head().map_or(0, |entry| entry.size);
                targets.advance();
            }
            if decision.advance.journal {
                copied.advance();
            }
        }
    }
}

impl Survey {
    fn see(&mut self, entry: Option<Entry<'_>>, pair: &Pair) {
        self.source_keys += 1;
        if let Some(KeyPlace::Mirrored { replica: Some(key), .. }) = entry.map(|entry| pair.rule().place(entry.key)) {
            self.spans.observe(key);
        }
    }

    fn copy(
        &mut self,
        entry: Option<Entry<'_>>,
        (source, pair): (&Place, &Pair),
        folder: Option<&PathBuf>,
    ) -> Result<(), Stop> {
        let Some(entry) = entry else { return Ok(()) };
        let KeyPlace::Mirrored { rank, .. } = pair.rule().place(entry.key) else { return Ok(()) };
        let Some(etag) = entry.etag else {
            let about = source.at_key(&format!("{}{}", pair.source_prefix(), entry.key));
            return Err(Stop::Mirror(MirrorError::permanent(Reason::SourceWithoutEtags, about)));
        };
        self.found.copies += 1;
        self.found.copy_bytes += entry.size;
        let spill = self.copies[usize::from(rank)].get_or_insert_with(|| Spill::new(folder));
        Ok(spill.push(entry.key, etag, entry.size)?)
    }
}

fn push(spill: &mut Option<Spill>, folder: Option<&PathBuf>, key: Option<&str>) -> io::Result<()> {
    key.map_or(Ok(()), |key| spill.get_or_insert_with(|| Spill::new(folder)).push(key, "", 0))
}

fn of_source(error: CursorError, source: &Place, pair: &Pair) -> Stop {
    match error {
        CursorError::Foreign { key, rule } => {
            Stop::Mirror(MirrorError::permanent(Reason::SourceFormat, format!("{}: {rule}", source.at_key(&key))))
        }
        CursorError::Store(error) => match MirrorError::of_source(error, || source.at_prefix(pair.source_prefix())) {
            Ok(error) => Stop::Mirror(error),
            Err(error) => Stop::Unreadable { at: source.at_prefix(pair.source_prefix()), error },
        },
    }
}

fn of_target(error: CursorError, target: &Place, pair: &Pair) -> Stop {
    Stop::Mirror(match error {
        CursorError::Foreign { key, rule } => {
            MirrorError::permanent(Reason::TargetFormat, format!("{}: {rule}", target.at_key(&key)))
        }
        CursorError::Store(error) => {
            MirrorError::of_target(error, Reason::TargetForbidden, target.at_prefix(pair.staging_prefix()))
        }
    })
}
