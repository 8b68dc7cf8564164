//! What stands between a move and its accidents; each can be taken away.

/// The guards of a move.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    /// A write to PostgreSQL proves its lease.
    pub fence: bool,
    /// The route is closed before the child is stopped.
    pub closes_first: bool,
    /// What follows the stop waits for the child's proven end.
    pub proves_the_end: bool,
    /// The replica is proven to carry the tail.
    pub proves_the_tail: bool,
    /// The staging is made equal once more after that proof.
    pub final_delta: bool,
    /// The purge is begun in PostgreSQL before anything is deleted.
    pub begins_the_purge: bool,
    /// The flip comes last, compared with what it leaves.
    pub flips_last: bool,
    /// A pending landing decides what a landing restores.
    pub pending_decides: bool,
    /// A landing leaves nothing in the own prefix but what was staged.
    pub empties_own: bool,
    /// An abort sweeps a second time, when nothing sent earlier can arrive any more.
    pub sweeps_twice: bool,
    /// A landing deletes the staging only once it serves.
    pub cleans_last: bool,
    /// The old replica is kept while its landing does not serve.
    pub keeps_old: bool,
    /// No move into a region begins while remains there are purged.
    pub moves_wait: bool,
    /// A landing waits while remains in its region are purged, and no record is pointed there.
    pub landings_wait: bool,
    /// A cut is taken back only before its purge.
    pub unsticks_in_time: bool,
    /// A record is pointed elsewhere by hand only while no box that lives serves it.
    pub points_away_from_the_dead: bool,
    /// A move begins only from a route that serves.
    pub starts_from_serving: bool,
    /// Whether a second sweep may end an abort is decided before it sweeps.
    pub settles_before_sweeping: bool,
    /// Parked is not taken for down: the child may still end, or start.
    pub parks_provenly: bool,
    /// A landing's staging counts as deleted only when nothing sent earlier can arrive any more.
    pub cleans_settled: bool,
    /// A box's own database wins only where no newer one was served elsewhere meanwhile.
    pub local_is_last: bool,
}

impl Guards {
    /// Every one, those that the product lacks included.
    pub const ALL: Self = Self {
        fence: true,
        closes_first: true,
        proves_the_end: true,
        proves_the_tail: true,
        final_delta: true,
        begins_the_purge: true,
        flips_last: true,
        pending_decides: true,
        empties_own: true,
        sweeps_twice: true,
        cleans_last: true,
        keeps_old: true,
        moves_wait: true,
        landings_wait: true,
        unsticks_in_time: true,
        points_away_from_the_dead: true,
        starts_from_serving: true,
        settles_before_sweeping: true,
        parks_provenly: true,
        cleans_settled: true,
        local_is_last: true,
    };
}
