//! The SQL of moves.

pub(in crate::instances) mod cut;
pub(super) mod keys;
pub(super) mod list;
pub(super) mod marks;
pub(in crate::instances) mod read;
pub(in crate::instances) mod write;

/// Whether a statement met the one place that a host has for an open move.
pub(super) fn met_an_open_move(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.constraint()) == Some("moves_one_open")
}
