//! Pruning: what is over and past its time leaves, in small steps that any worker may take at any time.
//!
//! A day of which nothing is kept leaves as a whole: its partition is detached, the parts of its jobs are removed in
//! batches, and the file is given back. Of any other day the rows that are past are deleted in batches along the
//! index of ids. A day is looked at when one of the retentions ends for all of it, once for each, whatever is kept of it;
//! between two such moments pruning reads the list of days and nothing else.
//!
//! # Crash consistency
//! A step is one transaction, and its place is a row of it: what was cut goes on where it was.

use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::prune_batch::{self, Batch};
use super::prune_days::{self, Place};
use super::prune_rest;
use crate::audit;
use crate::clock::Timestamp;
use crate::db;
use crate::queue::Error;
use crate::queue::pruned::{Prunable, PruneStep, Pruned};
use crate::queue::retention::{Day, Retention};

/// Rows of one day that did not complete, and rows that somebody holds, among which a day that could leave as a whole is
/// looked through. Where there are more, it goes row by row.
const MOST_ENDED: i64 = 10_000;

/// Takes one step: looks at no more than `limit` finished jobs, and removes at most `limit` of whatever else is past.
///
/// # Errors
/// [`Error::Invalid`] for a retention below the shortest one, or the database's.
pub async fn prune_step(conn: &mut PgConnection, kept: &Retention, limit: u16) -> Result<PruneStep, Error> {
    kept.check()?;
    let mut tx = conn.begin().await?;
    let done = step(&mut tx, kept, i64::from(limit.max(1))).await;
    match db::finish(tx, done).await {
        Ok(step) => Ok(step),
        Err(error) if db::lock_timed_out(&error) => Ok(PruneStep { held: true, ..PruneStep::default() }),
        Err(error) => Err(error.into()),
    }
}

/// Begins the pruning that an operator asked for: every day is looked at anew, under the retentions as they are now, by the
/// steps that follow. The act is recorded in the same transaction (I11).
///
/// # Errors
/// [`Error::Invalid`] for a retention below the shortest one, or the database's.
pub async fn begin_pruning(conn: &mut PgConnection, kept: &Retention, act: &audit::Event<'_>) -> Result<(), Error> {
    kept.check()?;
    let mut tx = conn.begin().await?;
    let done = async {
        prune_days::begin_anew(&mut tx).await?;
        audit::record(&mut tx, act).await
    }
    .await;
    Ok(db::finish(tx, done).await?)
}

async fn step(conn: &mut PgConnection, kept: &Retention, limit: i64) -> Result<PruneStep, sqlx::Error> {
    prune_days::tread_softly(&mut *conn).await?;
    let Some(mut place) = prune_days::take_place(&mut *conn).await? else {
        return Ok(PruneStep { held: true, ..PruneStep::default() });
    };
    prune_days::await_holds(&mut *conn).await?;
    let mut done = finished_jobs(&mut *conn, &mut place, kept, limit).await?;
    if !done.more {
        rest(&mut *conn, &mut place, kept, limit, &mut done).await?;
    }
    prune_days::leave_place(conn, &place).await?;
    Ok(done)
}

/// One batch of a day, or the change from one day to the next. More is to be done until no day is due.
async fn finished_jobs(
    conn: &mut PgConnection,
    place: &mut Place,
    kept: &Retention,
    limit: i64,
) -> Result<PruneStep, sqlx::Error> {
    if let Some(day) = place.leaving {
        let batch = Batch { behind: place.behind, limit, as_of: place.now };
        let walked = prune_batch::of_leaving(&mut *conn, day, kept, batch).await?;
        place.behind = walked.last.unwrap_or(place.behind);
        if walked.ended(&batch) {
            prune_days::clear_leaving(conn).await?;
            place.leaving = None;
            place.behind = Uuid::nil();
        }
        return Ok(PruneStep { pruned: walked.pruned, more: true, held: false });
    }
    let now = place.now;
    let days = prune_days::days(&mut *conn).await?;
    let mut held = false;
    for day in days.into_iter().filter(|day| kept.is_due(*day, now)) {
        let completed_are_past = kept.completed_are_past(day, now);
        if held && completed_are_past {
            // Whoever holds one day's table holds the other's: settling is held up for one try alone.
            continue;
        }
        // A walk that has begun goes to its end: there is something that is kept.
        if completed_are_past && place.day != Some(day.day) && nothing_is_kept(&mut *conn, day, kept, now).await? {
            if !prune_days::detach(&mut *conn, day.day).await? {
                place.is_late(day.day);
                held = true;
                continue;
            }
            place.is_in_time(Some(day.day));
            (place.day, place.leaving, place.behind) = (None, Some(day.day), Uuid::nil());
            return Ok(PruneStep { pruned: Pruned { days: 1, ..Pruned::default() }, more: true, held });
        }
        let pruned = walk_day(conn, day, place, kept, limit).await?;
        return Ok(PruneStep { pruned, more: true, held });
    }
    // What was walked may not be due any more, under longer retentions, and what was late neither.
    place.day = None;
    if !held {
        place.is_in_time(None);
    }
    Ok(PruneStep { held, ..PruneStep::default() })
}

async fn nothing_is_kept(
    conn: &mut PgConnection,
    day: Day,
    kept: &Retention,
    as_of: Timestamp,
) -> Result<bool, sqlx::Error> {
    prune_batch::nothing_is_kept(conn, day, kept, Batch { behind: Uuid::nil(), limit: MOST_ENDED, as_of }).await
}

async fn walk_day(
    conn: &mut PgConnection,
    day: Day,
    place: &mut Place,
    kept: &Retention,
    limit: i64,
) -> Result<Pruned, sqlx::Error> {
    let goes_on = place.as_of.filter(|_| place.day == Some(day.day));
    let as_of = goes_on.unwrap_or(place.now);
    if goes_on.is_none() {
        (place.day, place.as_of, place.keeps, place.behind) = (Some(day.day), Some(as_of), false, Uuid::nil());
    }
    let batch = Batch { behind: place.behind, limit, as_of };
    let walked = prune_batch::of_day(&mut *conn, day, kept, batch).await?;
    place.behind = walked.last.unwrap_or(place.behind);
    place.keeps |= walked.looked > walked.pruned.jobs.iter().map(|it| it.rows).sum();
    if walked.ended(&batch) {
        (place.day, place.behind) = (None, Uuid::nil());
        // Where nothing is left and nothing will be kept, the day stays due, and so leaves as a whole next.
        if place.keeps || !kept.completed_are_past(day, as_of) {
            prune_days::note_walked(conn, day.day, as_of).await?;
        }
    }
    Ok(walked.pruned)
}

/// A batch of everything that has no day.
async fn rest(
    conn: &mut PgConnection,
    place: &mut Place,
    kept: &Retention,
    limit: i64,
    done: &mut PruneStep,
) -> Result<(), sqlx::Error> {
    let batch = Batch { behind: place.undated_behind, limit, as_of: place.now };
    let walked = prune_batch::of_no_day(&mut *conn, kept, batch).await?;
    let ended = walked.ended(&batch);
    // From the beginning again where the end was reached.
    place.undated_behind = walked.last.filter(|_| !ended).unwrap_or_else(Uuid::nil);
    done.pruned.add(walked.pruned);
    let workers = prune_rest::workers(&mut *conn, kept.workers, limit).await?;
    let throughput = prune_rest::throughput(&mut *conn, kept.throughput, limit).await?;
    let refused = prune_rest::refused_writes(conn, kept.refused_writes, limit).await?;
    done.pruned.workers += workers;
    done.pruned.throughput += throughput;
    done.pruned.refused_writes += refused;
    done.more = !ended || [workers, throughput, refused].contains(&limit);
    Ok(())
}

/// What pruning would remove now, without removing it. Bounded: it looks at no more than [`Prunable::COUNT_LIMIT`] rows of
/// each day that is due.
///
/// # Errors
/// [`Error::Invalid`] for a retention below the shortest one, or the database's.
pub async fn prunable(conn: &mut PgConnection, kept: &Retention) -> Result<Prunable, Error> {
    kept.check()?;
    let mut tx = conn.begin().await?;
    let done = tally(&mut tx, kept).await;
    Ok(db::finish(tx, done).await?)
}

async fn tally(conn: &mut PgConnection, kept: &Retention) -> Result<Prunable, sqlx::Error> {
    prune_days::tread_softly(&mut *conn).await?;
    let now = crate::clock::now(&mut *conn).await?;
    let batch = Batch { behind: Uuid::nil(), limit: Prunable::COUNT_LIMIT, as_of: now };
    let mut prunable = Prunable::default();
    let days = prune_days::days(&mut *conn).await?;
    // As an operator's pruning will: every day, whatever was walked before.
    let anew = days.into_iter().map(|day| Day { walked_as_of: None, ..day });
    for day in anew.filter(|day| kept.is_due(*day, now)) {
        let (jobs, looked) = prune_batch::tally_day(&mut *conn, day, kept, batch).await?;
        prunable.jobs.extend(jobs);
        prunable.beyond.extend((looked >= batch.limit).then_some(Some(day.day)));
    }
    let (jobs, looked) = prune_batch::tally_no_day(&mut *conn, kept, batch).await?;
    prunable.jobs.extend(jobs);
    prunable.beyond.extend((looked >= batch.limit).then_some(None));
    prunable.jobs.sort();
    (prunable.workers, prunable.throughput, prunable.refused_writes) =
        prune_rest::tally(conn, kept.workers, kept.throughput, kept.refused_writes, batch.limit).await?;
    Ok(prunable)
}
