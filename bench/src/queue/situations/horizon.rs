//! A session that holds a snapshot: what died since cannot be removed, and each lease may walk over more of it.

use super::super::course::{Backlog, Course};
use super::super::limit;
use super::super::ours::{self, Staff};
use super::{Sizes, grouped};
use crate::report::{Place, Report};
use crate::stand::Stand;

/// Concurrency keys of the keyed jobs.
const KEYS: i64 = 50;

pub(super) async fn horizon(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let portions = (1..).find(|n| n * sizes.horizon_portion >= sizes.horizon_jobs).unwrap_or(1);
    let course = Course {
        portion: sizes.horizon_portion,
        portions,
        pinned: true,
        ..Course::whole(sizes.horizon_portion * portions, 1)
    };
    let keyed = Course { backlog: Backlog { keys: KEYS, ..course.backlog }, ..course };
    let staff = Staff::of(sizes.concurrency, sizes.engine());
    let name = |who: &str, portion: i64| {
        let upto = grouped(portion * sizes.horizon_portion);
        format!("{who}, snapshot held, up to {upto} drained")
    };
    let mut report = Report::default();
    for _ in 0..sizes.rounds {
        for (portion, figures) in (1..).zip(limit::drain(stand, &course, sizes.batch).await?) {
            report.keep(Place::of_limit(name("limit", portion)), figures);
        }
        for (who, series, course) in [("worker", "ours", &course), ("worker, 50 keys", "keyed", &keyed)] {
            for (portion, figures) in (1..).zip(ours::drain(stand, course, &staff).await?) {
                let place = Place::of_ours(name(who, portion), &name("limit", portion)).in_series(series);
                report.keep(place, figures);
            }
        }
    }
    report.print();
    Ok(())
}
