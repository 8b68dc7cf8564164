//! Drains of other shapes, each with the limit's beside it in the same round.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::queue::{Limits, Rate};

use super::super::course::{Backlog, Course};
use super::super::limit;
use super::super::ours::{self, Staff};
use super::{Sizes, counted, grouped};
use crate::report::{Place, Report};
use crate::stand::Stand;

/// The concurrency that makes the most of one worker, and the batch of the limit beside it.
const BEST: u16 = 500;
/// Concurrency keys of the jobs under limits.
const KEYS: i64 = 100;

/// One drain in one portion.
async fn of_limit(stand: &Stand, report: &mut Report, place: Place, course: &Course, batch: u16) -> anyhow::Result<()> {
    for figures in limit::drain(stand, course, batch).await? {
        report.keep(place.clone(), figures);
    }
    Ok(())
}

async fn of_ours(
    stand: &Stand,
    report: &mut Report,
    place: Place,
    course: &Course,
    staff: &Staff,
) -> anyhow::Result<()> {
    for figures in ours::drain(stand, course, staff).await? {
        report.keep(place.clone(), figures);
    }
    Ok(())
}

pub(super) async fn concurrency(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let mut report = Report::default();
    for _ in 0..sizes.rounds {
        let mut measured = BTreeSet::new();
        for (hands, batch, concurrencies) in
            [(1, sizes.batch, &[10, 50][..]), (1, BEST, &[BEST]), (2, sizes.batch, &[10, 50])]
        {
            let course = Course::whole(sizes.jobs, hands);
            let beside = format!("limit, {}, batch {batch}", counted(hands, "connection"));
            // Once a round, also where the batch that was asked for is the best one's: ratios are taken within a round.
            if measured.insert(beside.clone()) {
                of_limit(stand, &mut report, Place::of_limit(&beside), &course, batch).await?;
            }
            for &concurrency in concurrencies {
                let place =
                    Place::of_ours(format!("{} at concurrency {concurrency}", counted(hands, "worker")), &beside);
                of_ours(stand, &mut report, place, &course, &Staff::of(concurrency, sizes.engine())).await?;
            }
        }
    }
    report.print();
    Ok(())
}

/// Ours at the default concurrency beside the limit at the default batch, over several courses.
async fn compare(stand: &Stand, sizes: &Sizes, courses: &[(String, Course)]) -> anyhow::Result<()> {
    let mut report = Report::default();
    for _ in 0..sizes.rounds {
        for (what, course) in courses {
            let beside = format!("limit, {what}");
            of_limit(stand, &mut report, Place::of_limit(&beside), course, sizes.batch).await?;
            let place = Place::of_ours(format!("worker, {what}"), &beside);
            of_ours(stand, &mut report, place, course, &Staff::of(sizes.concurrency, sizes.engine())).await?;
        }
    }
    report.print();
    Ok(())
}

pub(super) async fn depth(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let courses = [sizes.shallow, sizes.deep].map(|behind| {
        let what = format!("{} jobs before {} that wait", grouped(sizes.portion), grouped(behind));
        let backlog = Backlog::of(sizes.portion + behind);
        (what, Course { backlog, ..Course::whole(sizes.portion, 1) })
    });
    compare(stand, sizes, &courses).await
}

pub(super) async fn kept(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let courses = [0, sizes.kept].map(|kept| {
        let what = format!("{} jobs with {} finished kept", grouped(sizes.portion), grouped(kept));
        (what, Course { kept, ..Course::whole(sizes.portion, 1) })
    });
    compare(stand, sizes, &courses).await
}

pub(super) async fn queues(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let courses = [1, 4, 16, 64].map(|queues| {
        let backlog = Backlog { queues, ..Backlog::of(sizes.jobs) };
        (
            format!("{} jobs in {}", grouped(sizes.jobs), counted(queues, "queue")),
            Course { backlog, ..Course::whole(sizes.jobs, 1) },
        )
    });
    compare(stand, sizes, &courses).await
}

pub(super) async fn limits(stand: &Stand, sizes: &Sizes) -> anyhow::Result<()> {
    let none = Limits::default();
    let cases = [
        ("no key, no limit", 0, none),
        ("100 keys in turn", KEYS, none),
        ("at most 1,000 running", 0, Limits { running: Some(1000), ..none }),
        ("100 keys, at most 10 running of each", KEYS, Limits { running_per_key: Some(10), ..none }),
        // Far more than a worker can start.
        (
            "100 keys, at most 1,000 starts a second of each",
            KEYS,
            Limits { starts_per_key: Some(Rate { starts: 1000, span: Duration::from_secs(1) }), ..none },
        ),
    ];
    let mut report = Report::default();
    let whole = Course::whole(sizes.jobs, 1);
    let beside = format!("limit, batch {}, knows no keys and no limits", sizes.concurrency);
    for _ in 0..sizes.rounds {
        of_limit(stand, &mut report, Place::of_limit(&beside), &whole, sizes.concurrency).await?;
        for (what, keys, limits) in cases {
            let course = Course { backlog: Backlog { keys, ..whole.backlog }, ..whole };
            let staff = Staff { limits, ..Staff::of(sizes.concurrency, sizes.engine()) };
            of_ours(stand, &mut report, Place::of_ours(format!("worker, {what}"), &beside), &course, &staff).await?;
        }
    }
    report.print();
    Ok(())
}
