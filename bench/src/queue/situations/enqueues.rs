//! Enqueueing, one at a time and in bulk.

use super::super::{limit, ours};
use super::{Sizes, counted};
use crate::report::{Place, Report};
use crate::stand::Stand;

pub(super) async fn enqueue(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let mut report = Report::default();
    for _ in 0..sizes.rounds {
        for connections in [1, 8] {
            let what = format!("enqueue one at a time, {}", counted(connections, "connection"));
            let beside = format!("limit, {what}");
            let figures = limit::enqueue_single(stand, sizes.singles, connections).await?;
            report.keep(Place::of_limit(&beside), figures);
            let figures = ours::enqueue_single(stand, sizes.singles, connections).await?;
            report.keep(Place::of_ours(what, &beside), figures);
        }
        let beside = "limit, enqueue in bulk, 1,000 a call";
        report.keep(Place::of_limit(beside).in_series("bulk limit"), limit::enqueue_bulk(stand, sizes.jobs).await?);
        let place = Place::of_ours("enqueue in bulk, 1,000 a call", beside).in_series("bulk");
        report.keep(place, ours::enqueue_bulk(stand, sizes.jobs).await?);
    }
    report.print();
    Ok(())
}
