//! Batches of finished jobs: each looks at the next rows along the index of ids, and nothing else.

use chrono::NaiveDate;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::queue::pruned::{FinishedJobs, Pruned};
use crate::queue::retention::{Day, Retention};
use crate::queue::state::JobState;

/// Where a batch begins, how far it looks, and as of when rows are past.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) behind: Uuid,
    pub(super) limit: i64,
    pub(super) as_of: Timestamp,
}

/// What a batch did.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) pruned: Pruned,
    /// Rows that were looked at.
    pub(super) looked: i64,
    /// The last of them; `None` where there was none.
    pub(super) last: Option<Uuid>,
}

impl Walked {
    /// Whether it came to the end.
    pub(super) fn ended(&self, batch: &Batch) -> bool {
        self.looked < batch.limit
    }
}

/// A statement about the next rows of a table and, of them, `past`: those that are over and that nobody holds.
///
/// `$1` to `$3` are the retentions, `$4` the place, `$5` the limit, `$6` the moment; what narrows the rows may take more.
macro_rules! finished {
    ($from:literal, $narrowed:literal, $($rest:literal);+ $(, $parameter:expr)*) => {
        sqlx::query!(
            r#"
            with keep as materialized (
                select * from unnest($1::text[], $2::text[], $3::float8[]) as k(state, kind, seconds)
            ), looked as materialized (
                select f.id, f.state, f.kind, f.finished_at
                  from "# + $from + r#" f
                 where f.id > $4 "# + $narrowed + r#"
                 order by f.id
                 limit $5
            ), past as materialized (
                select l.id, l.state, l.kind, l.finished_at
                  from looked l
                  join keep d on d.state = l.state and d.kind = ''
                  left join keep k on k.state = l.state and k.kind = l.kind
                 where l.finished_at < $6::timestamptz - coalesce(k.seconds, d.seconds) * interval '1 second'
                   and not exists (select from prune_holds h where h.job_id = l.id)
            )"#
            $(+ $rest)+
            $(, $parameter)*
        )
    };
}

/// Removes what `$gone` names (id, state, kind), with all that belongs to these jobs.
///
/// One statement, keyed by the rows that it truly deletes: a job that an operator brings back meanwhile is not among them,
/// and keeps its parts. They are found by a list, which only an index can look up: a join would be planned for tables as
/// small as they were once.
macro_rules! removed {
    ($day:expr, $conn:expr, $from:literal, $narrowed:literal, $gone:literal $(, $parameter:expr)*) => {{
        let row = finished!(
            $from,
            $narrowed,
            $gone;
            r#"
            , attempts as (
                delete from job_attempts where job_id = any (array(select id from gone)) returning job_id
            ), steps as (
                delete from job_steps where job_id = any (array(select id from gone)) returning job_id
            ), lines as (
                delete from job_logs where job_id = any (array(select id from gone)) returning job_id
            ), refused as (
                delete from fenced_writes where job_id = any (array(select id from gone)) returning job_id
            ), counted as (
                delete from fenced_write_totals where job_id = any (array(select id from gone))
            )
            select (select count(*) from looked) as "looked!",
                   (select id from looked order by id desc limit 1) as last,
                   (select coalesce(jsonb_agg(jsonb_build_array(c.state, c.kind, c.total)), '[]')
                      from (select state, kind, count(*) as total from gone group by state, kind) c)
                       as "gone!: Json<Vec<(JobState, String, i64)>>",
                   (select count(*) from attempts) as "attempts!",
                   (select count(*) from steps) as "steps!",
                   (select count(*) from lines) as "lines!",
                   (select count(*) from refused) as "refused!"
            "#
            $(, $parameter)*
        )
        .fetch_one($conn)
        .await?;
        Ok(Walked {
            looked: row.looked,
            last: row.last,
            pruned: Pruned {
                jobs: counted($day, row.gone.0),
                attempts: row.attempts,
                steps: row.steps,
                log_lines: row.lines,
                refused_writes: row.refused,
                ..Pruned::default()
            },
        })
    }};
}

/// Counts what of the next rows is past, without removing it.
macro_rules! tallied {
    ($day:expr, $conn:expr, $from:literal, $narrowed:literal $(, $parameter:expr)*) => {{
        let row = finished!(
            $from,
            $narrowed,
            r#"
            select (select count(*) from looked) as "looked!",
                   (select coalesce(jsonb_agg(jsonb_build_array(c.state, c.kind, c.total)), '[]')
                      from (select state, kind, count(*) as total from past group by state, kind) c)
                       as "past!: Json<Vec<(JobState, String, i64)>>"
            "#
            $(, $parameter)*
        )
        .fetch_one($conn)
        .await?;
        Ok((counted($day, row.past.0), row.looked))
    }};
}

fn counted(day: Option<NaiveDate>, rows: Vec<(JobState, String, i64)>) -> Vec<FinishedJobs> {
    let mut jobs: Vec<FinishedJobs> =
        rows.into_iter().map(|(state, kind, rows)| FinishedJobs { day, state, kind, rows }).collect();
    jobs.sort();
    jobs
}

/// Removes what is past of the next rows of a day.
pub(super) async fn of_day(
    conn: &mut PgConnection,
    day: Day,
    kept: &Retention,
    batch: Batch,
) -> Result<Walked, sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    removed!(
        Some(day.day),
        conn,
        "jobs_finished",
        "and f.finished_at >= $7 and f.finished_at < $8",
        r#"
        , gone as (
            delete from jobs_finished f
             using past p
             where f.id = p.id
               and f.finished_at = p.finished_at
               -- Said once more, so that the other days are not even opened.
               and f.finished_at >= $7
               and f.finished_at < $8
            returning f.id, f.state, f.kind
        )"#,
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of,
        day.begin(),
        day.end()
    )
}

/// Removes what is past of the next rows that have no day of their own.
pub(super) async fn of_no_day(conn: &mut PgConnection, kept: &Retention, batch: Batch) -> Result<Walked, sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    removed!(
        None,
        conn,
        "jobs_finished_default",
        "",
        r#"
        , gone as (
            delete from jobs_finished_default f
             using past p
             where f.id = p.id
               and f.finished_at = p.finished_at
            returning f.id, f.state, f.kind
        )"#,
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of
    )
}

/// Removes what belongs to the next jobs of the day that left: all of them, and none of their rows, since the table goes as
/// a whole.
pub(super) async fn of_leaving(
    conn: &mut PgConnection,
    day: NaiveDate,
    kept: &Retention,
    batch: Batch,
) -> Result<Walked, sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    removed!(
        Some(day),
        conn,
        "jobs_leaving",
        "",
        ", gone as (select id, state, kind from looked)",
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of
    )
}

/// What of a day is past, and how many rows were looked at.
pub(super) async fn tally_day(
    conn: &mut PgConnection,
    day: Day,
    kept: &Retention,
    batch: Batch,
) -> Result<(Vec<FinishedJobs>, i64), sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    tallied!(
        Some(day.day),
        conn,
        "jobs_finished",
        "and f.finished_at >= $7 and f.finished_at < $8",
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of,
        day.begin(),
        day.end()
    )
}

/// What is past of the rows that have no day of their own, and how many were looked at.
pub(super) async fn tally_no_day(
    conn: &mut PgConnection,
    kept: &Retention,
    batch: Batch,
) -> Result<(Vec<FinishedJobs>, i64), sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    tallied!(
        None,
        conn,
        "jobs_finished_default",
        "",
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of
    )
}

/// Whether nothing of a day is kept whose completed jobs are all past: none of the few that did not complete, and none that
/// somebody holds.
///
/// Looks at no more than `limit` of either; where there are more, the answer is no.
pub(super) async fn nothing_is_kept(
    conn: &mut PgConnection,
    day: Day,
    kept: &Retention,
    batch: Batch,
) -> Result<bool, sqlx::Error> {
    let (states, kinds, seconds) = kept.columns();
    let row = finished!(
        "jobs_finished",
        "and f.finished_at >= $7 and f.finished_at < $8 and f.state in ('cancelled', 'discarded')",
        r#"
        , holds as materialized (
            select job_id from prune_holds limit $5
        )
        select (select count(*) from looked) < $5
               and (select count(*) from looked) = (select count(*) from past)
               and (select count(*) from holds) < $5
               and not exists (
                   select
                     from holds h
                    cross join lateral (
                          select
                            from jobs_finished f
                           where f.id = h.job_id
                             and f.finished_at >= $7
                             and f.finished_at < $8
                           limit 1) held
               ) as "nothing!"
        "#,
        &states as &[&str],
        &kinds as &[&str],
        &seconds,
        batch.behind,
        batch.limit,
        batch.as_of,
        day.begin(),
        day.end()
    )
    .fetch_one(conn)
    .await?;
    Ok(row.nothing)
}
