//! Reading the facts of the checks. Every list is limited; nothing is written.

mod queue;
mod server;

pub(super) use queue::{due_work, fences, late_day, leases_of_stopped, partitions, stray_jobs, twin_jobs, workers};
pub(super) use server::{
    durability, invalid_indexes, migrations, old_transactions, oldest_transaction_id, prepared, sequences, slots,
    tables,
};

/// One more than is named, so that a list can say that there is more.
fn one_more(named: usize) -> i64 {
    i64::try_from(named).unwrap_or(i64::MAX).saturating_add(1)
}
