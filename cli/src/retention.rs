//! How long what is over is kept: as the settings and the kinds say.

use domain::queue::Retention;

use crate::settings::{Settings, table};

/// The retentions of this installation.
pub(crate) fn of(settings: &Settings) -> Retention {
    let kept = Retention {
        completed: settings.hours(&table::PRUNE_COMPLETED_HOURS),
        cancelled: settings.hours(&table::PRUNE_CANCELLED_HOURS),
        discarded: settings.hours(&table::PRUNE_DISCARDED_HOURS),
        kinds: Vec::new(),
        workers: settings.hours(&table::PRUNE_WORKERS_HOURS),
        throughput: settings.hours(&table::PRUNE_THROUGHPUT_HOURS),
        refused_writes: settings.hours(&table::PRUNE_REFUSED_WRITES_HOURS),
    };
    kept.with_kinds(&workers::jobs::catalogue())
}
