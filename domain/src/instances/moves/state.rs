//! The states of a move and every edge between them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far a move is. The end, flipped or aborted, is no state: the move is then gone from the record.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum MoveState {
    /// Rounds copy the replica; none has found both sides equal yet.
    Preparing,
    /// A round found both sides equal; rounds go on. A level: later differences do not take it back (M-060).
    Ready,
    /// From here forward only: the source may already be gone.
    Cutting,
    /// The staging is being deleted.
    Aborting,
}

impl MoveState {
    /// Every state, in the order of a move's life.
    pub const ALL: [Self; 4] = [Self::Preparing, Self::Ready, Self::Cutting, Self::Aborting];

    /// The legal former states: what the SQL guards are held against.
    #[must_use]
    pub const fn entered_from(self) -> &'static [Self] {
        use MoveState::{Aborting, Cutting, Preparing, Ready};
        match self {
            Preparing => &[], // POST move, when no move is in flight
            Ready => &[Preparing],
            Cutting => &[Ready], // from here forward only: the source may already be gone
            Aborting => &[Preparing, Ready], // never from Cutting
        }
    }

    /// Whether mirror rounds run in this state (M-043, M-059): never during or after a delete of the staging.
    #[must_use]
    pub const fn mirrors(self) -> bool {
        match self {
            Self::Preparing | Self::Ready => true,
            Self::Cutting | Self::Aborting => false,
        }
    }

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Cutting => "cutting",
            Self::Aborting => "aborting",
        }
    }

    /// Reads a state; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for MoveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a move ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum Outcome {
    /// The record is the target's.
    Moved,
    /// It was given up before that.
    Aborted,
}

impl Outcome {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Moved, Self::Aborted];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Aborted => "aborted",
        }
    }
}

/// A state as it was read: perhaps a word of a newer version, on which nobody of this one acts (M-004).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum StoredState {
    /// One of ours.
    Known(MoveState),
    /// Any other word.
    Unknown(String),
}

impl StoredState {
    /// The state, if it is one of ours.
    #[must_use]
    pub const fn known(&self) -> Option<MoveState> {
        match self {
            Self::Known(state) => Some(*state),
            Self::Unknown(_) => None,
        }
    }

    /// As it stands in the database and on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(state) => state.as_str(),
            Self::Unknown(word) => word,
        }
    }
}

impl From<String> for StoredState {
    fn from(word: String) -> Self {
        MoveState::parse(&word).map_or(Self::Unknown(word), Self::Known)
    }
}

impl From<StoredState> for String {
    fn from(state: StoredState) -> Self {
        state.as_str().to_owned()
    }
}

impl From<MoveState> for StoredState {
    fn from(state: MoveState) -> Self {
        Self::Known(state)
    }
}

impl fmt::Display for StoredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_goes_forward_only_and_an_abort_never_comes_from_it() {
        assert!(!MoveState::Aborting.entered_from().contains(&MoveState::Cutting));
        for state in MoveState::ALL {
            assert!(!state.entered_from().contains(&state), "{state} is entered once");
            assert!(!state.entered_from().contains(&MoveState::Aborting), "nothing follows an abort");
            assert!(!state.entered_from().contains(&MoveState::Cutting), "nothing follows a cut");
        }
    }

    #[test]
    fn a_word_that_is_no_state_is_kept_as_it_is() {
        let read = StoredState::from("limbo".to_owned());
        assert_eq!((read.known(), read.as_str()), (None, "limbo"));
        assert_eq!(StoredState::from("ready".to_owned()), MoveState::Ready.into());
    }
}
