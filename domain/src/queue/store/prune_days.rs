//! The days of finished jobs, and the place of the walk through them.

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::queue::retention::Day;

/// Where pruning stands, and the present moment. Held until the transaction ends.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) day: Option<NaiveDate>,
    pub(super) as_of: Option<Timestamp>,
    pub(super) keeps: bool,
    pub(super) behind: Uuid,
    pub(super) leaving: Option<NaiveDate>,
    pub(super) undated_behind: Uuid,
    pub(super) late_day: Option<NaiveDate>,
    pub(super) late_since: Option<Timestamp>,
    pub(super) late_tried_at: Option<Timestamp>,
    pub(super) now: Timestamp,
}

impl Place {
    /// Notes that a day could not leave; the first such moment stays.
    pub(super) fn is_late(&mut self, day: NaiveDate) {
        if self.late_day != Some(day) {
            (self.late_day, self.late_since) = (Some(day), Some(self.now));
        }
        self.late_tried_at = Some(self.now);
    }

    /// Notes that no day is late, or that this one is not any more.
    pub(super) fn is_in_time(&mut self, day: Option<NaiveDate>) {
        if day.is_none() || self.late_day == day {
            (self.late_day, self.late_since, self.late_tried_at) = (None, None, None);
        }
    }
}

/// The place; `None` while another session has it.
pub(super) async fn take_place(conn: &mut PgConnection) -> Result<Option<Place>, sqlx::Error> {
    sqlx::query_as!(
        Place,
        r#"
        select day, as_of, keeps, behind, leaving, undated_behind, late_day, late_since, late_tried_at,
               (select lh_now()) as "now!"
          from prune_walk
           for update skip locked
        "#
    )
    .fetch_optional(conn)
    .await
}

/// Waits for those who are about to hold a job, and keeps others from it until this transaction ends: what the next statement
/// sees of the holds is all that there is. Whoever comes later finds no row of what went.
pub(super) async fn await_holds(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("lock table prune_holds in share mode").execute(conn).await?;
    Ok(())
}

pub(super) async fn leave_place(conn: &mut PgConnection, place: &Place) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update prune_walk
           set day = $1, as_of = $2, keeps = $3, behind = $4, leaving = $5, undated_behind = $6, late_day = $7,
               late_since = $8, late_tried_at = $9
        "#,
        place.day,
        place.as_of,
        place.keeps,
        place.behind,
        place.leaving,
        place.undated_behind,
        place.late_day,
        place.late_since,
        place.late_tried_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Walks along indexes alone, whatever the statistics say of tables that grow from nothing to millions of rows within a day;
/// and waits for no row or table longer than settling may be held up. For this transaction.
pub(super) async fn tread_softly(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        select set_config('enable_seqscan', 'off', true) as "seqscan!",
               set_config('enable_bitmapscan', 'off', true) as "bitmapscan!",
               set_config('enable_hashjoin', 'off', true) as "hashjoin!",
               set_config('enable_mergejoin', 'off', true) as "mergejoin!",
               -- A way that is off counts as dear, and what is dear would be compiled first.
               set_config('jit', 'off', true) as "jit!",
               set_config('lock_timeout', '200ms', true) as "lock_timeout!",
               -- It may hold a lock that settlements wait for: one that stands still gives it up before their leases end.
               set_config('idle_in_transaction_session_timeout', '2s', true) as "idle!"
        "#
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}

/// The days that have a partition, oldest first, at most 10,000.
pub(super) async fn days(conn: &mut PgConnection) -> Result<Vec<Day>, sqlx::Error> {
    sqlx::query_as!(
        Day,
        r#"
        select d.day as "day!", p.as_of as "walked_as_of?"
          from (
               select to_date(right(c.relname::text, 8), 'YYYYMMDD') as day
                 from pg_inherits i
                 join pg_class c on c.oid = i.inhrelid
                where i.inhparent = 'jobs_finished'::regclass
                  and c.relname::text ~ '^jobs_finished_[0-9]{8}$'
               ) d
          left join pruned_days p on p.day = d.day
         order by d.day
         limit 10000
        "#
    )
    .fetch_all(conn)
    .await
}

pub(super) async fn note_walked(conn: &mut PgConnection, day: NaiveDate, as_of: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into pruned_days (day, as_of) values ($1, $2) on conflict (day) do update set as_of = excluded.as_of",
        day,
        as_of,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Has every day looked at anew, and the rows without a day from the first.
pub(super) async fn begin_anew(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("update prune_walk set day = null, undated_behind = '00000000-0000-0000-0000-000000000000'")
        .execute(&mut *conn)
        .await?;
    sqlx::query!("delete from pruned_days").execute(conn).await?;
    Ok(())
}

/// Takes a day out of the finished jobs; `false` where others held the table for longer than settling may wait.
pub(super) async fn detach(conn: &mut PgConnection, day: NaiveDate) -> Result<bool, sqlx::Error> {
    let done =
        sqlx::query_scalar!(r#"select lh_detach_finished_day($1) as "done!""#, day).fetch_one(&mut *conn).await?;
    if done {
        sqlx::query!("delete from pruned_days where day = $1", day).execute(conn).await?;
    }
    Ok(done)
}

/// Gives the room of the day that left back.
pub(super) async fn clear_leaving(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("truncate jobs_leaving").execute(conn).await?;
    Ok(())
}
