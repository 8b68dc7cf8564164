//! The SQL of moves.

pub(super) mod keys;
pub(super) mod list;
pub(super) mod marks;
pub(super) mod read;
pub(super) mod write;

/// Whether a statement met the one place that a host has for an open move.
pub(super) fn met_an_open_move(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.constraint()) == Some("moves_one_open")
}
