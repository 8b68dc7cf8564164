//! Limits and pauses, as operators set them, and the places under limits that nobody needs any more.

use std::time::Duration;

use sqlx::PgConnection;

use crate::clock::{Timestamp, millis};
use crate::ids::{IdentityId, QueueName};
use crate::queue::Error;
use crate::queue::limits::{Limits, LimitsView, Pause, Paused, Rate};

/// The limits of a queue; without any where nobody set them.
///
/// # Errors
/// Only the database's.
pub async fn limits(conn: &mut PgConnection, queue: &QueueName) -> Result<LimitsView, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select l.running, l.running_per_key, l.starts_per_key, l.starts_span_ms, l.revision,
               l.set_by as "set_by: IdentityId", i.name as "set_by_name?", l.reason, l.set_at
          from queue_limits l
          left join identities i on i.id = l.set_by
         where l.queue = $1
        "#,
        queue.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map_or_else(|| none(queue), |row| row.view(queue)))
}

/// Sets the limits of a queue in place of those that it had; they hold for every lease that begins after the commit. Jobs
/// that run already go on and are counted, also beyond a lower limit; those that a lease takes just while the limit is being
/// set are counted by the next upkeep, which is up to half a minute later. Starts count from the moment that their rate is
/// set. `if_revision` refuses where the limits changed since they were read.
///
/// # Errors
/// [`Error::Invalid`], [`Error::StaleLimits`], or the database's.
pub async fn set_limits(
    conn: &mut PgConnection,
    queue: &QueueName,
    limits: &Limits,
    actor: Option<IdentityId>,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<LimitsView, Error> {
    limits.check()?;
    let set = sqlx::query_scalar!(
        r#"
        insert into queue_limits as l (queue, running, running_per_key, starts_per_key, starts_span_ms, set_by, reason,
                                       set_at)
        select $1, $2, $3, $4, $5, $6, $7, (select lh_now())
         -- Where there is a row, the update below decides.
         where coalesce($8::bigint, 0) = 0
            or exists (select from queue_limits where queue = $1)
            on conflict (queue) do update
           set running = excluded.running,
               running_per_key = excluded.running_per_key,
               starts_per_key = excluded.starts_per_key,
               starts_span_ms = excluded.starts_span_ms,
               set_by = excluded.set_by,
               reason = excluded.reason,
               set_at = excluded.set_at,
               revision = l.revision + 1
         where l.revision = coalesce($8, l.revision)
        returning revision
        "#,
        queue.as_str(),
        limits.running.map(i32::from),
        limits.running_per_key.map(i32::from),
        limits.starts_per_key.map(|rate| i32::from(rate.starts)),
        limits.starts_per_key.map(|rate| millis(rate.span)),
        actor.map(|id| id.0),
        reason,
        if_revision,
    )
    .fetch_optional(&mut *conn)
    .await?;
    if set.is_some() {
        count_running(conn, Some(queue)).await?;
    }
    let now = self::limits(conn, queue).await?;
    match set {
        Some(_) => Ok(now),
        None => {
            let expected = if_revision.unwrap_or_default();
            Err(Error::StaleLimits { queue: queue.clone(), expected, found: now.revision })
        }
    }
}

/// Gives each job that runs in a limited queue, or in the one that is named, a place beyond every limit where it has none:
/// taken places count wherever they are. Returns how many.
///
/// Setting a limit does so, and an upkeep for leases that were under way just then.
///
/// # Errors
/// Only the database's.
pub async fn count_running(conn: &mut PgConnection, queue: Option<&QueueName>) -> Result<u64, sqlx::Error> {
    let counted = sqlx::query!(
        r#"
        with run as materialized (
            select r.queue, k.key, r.id, r.fence
              from queue_limits l
              join running_jobs r on r.queue = l.queue
             cross join lateral (
                   select '' as key where l.running is not null
                    union all
                   select r.concurrency_key where l.running_per_key is not null and r.concurrency_key is not null
                   ) k
             where l.queue = coalesce($1, l.queue)
        ), uncounted as (
            -- No join: in sessions that join by nested loops alone, it would compare each job with every place.
            select queue, key, id, fence
              from run
            except
            select queue, key, job_id, fence
              from slots
             where queue = any(array(select queue from run))
               and what = 'running'
        )
        insert into slots (queue, what, key, n, job_id, fence, before, taken_at)
        select r.queue, 'running', r.key,
               greatest($2, (select max(n) from slots s where s.queue = r.queue and s.what = 'running' and s.key = r.key))
               + row_number() over (partition by r.queue, r.key order by r.id),
               r.id, r.fence, 0, (select lh_now())
          from uncounted r
         order by r.queue, r.key, r.id
            on conflict (queue, what, key, n) do nothing
        "#,
        queue.map(|queue| queue.as_str()),
        i32::from(Limits::MAX_RUNNING),
    )
    .execute(conn)
    .await?;
    Ok(counted.rows_affected())
}

struct Row {
    running: Option<i32>,
    running_per_key: Option<i32>,
    starts_per_key: Option<i32>,
    starts_span_ms: Option<i64>,
    revision: i64,
    set_by: Option<IdentityId>,
    set_by_name: Option<String>,
    reason: String,
    set_at: Timestamp,
}

impl Row {
    fn view(self, queue: &QueueName) -> LimitsView {
        LimitsView {
            queue: queue.clone(),
            limits: of_columns(self.running, self.running_per_key, self.starts_per_key, self.starts_span_ms),
            revision: self.revision,
            set_by: self.set_by,
            set_by_name: self.set_by_name,
            reason: self.reason,
            set_at: Some(self.set_at),
        }
    }
}

/// Limits as their table has them.
pub(super) fn of_columns(
    running: Option<i32>,
    running_per_key: Option<i32>,
    starts_per_key: Option<i32>,
    starts_span_ms: Option<i64>,
) -> Limits {
    // The table's checks keep them within these.
    let small = |n: i32| u16::try_from(n).unwrap_or(u16::MAX);
    let span = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    Limits {
        running: running.map(small),
        running_per_key: running_per_key.map(small),
        starts_per_key: starts_per_key
            .zip(starts_span_ms)
            .map(|(starts, ms)| Rate { starts: small(starts), span: span(ms) }),
    }
}

fn none(queue: &QueueName) -> LimitsView {
    LimitsView {
        queue: queue.clone(),
        limits: Limits::default(),
        revision: 0,
        set_by: None,
        set_by_name: None,
        reason: String::new(),
        set_at: None,
    }
}

/// As [`set_limits`], and tells those that held before beside those that hold now: what the audit trail keeps.
///
/// # Errors
/// As [`set_limits`].
pub async fn change_limits(
    conn: &mut PgConnection,
    queue: &QueueName,
    limits: &Limits,
    actor: Option<IdentityId>,
    reason: &str,
    if_revision: Option<i64>,
) -> Result<(LimitsView, LimitsView), Error> {
    let mut before = lock_limits(conn, queue).await?;
    if before.revision == 0 && if_revision.is_none_or(|expected| expected == 0) {
        match set_limits(conn, queue, limits, actor, reason, Some(0)).await {
            // Somebody else set the first ones meanwhile: now there is a row to lock.
            Err(Error::StaleLimits { .. }) if if_revision.is_none() => before = lock_limits(conn, queue).await?,
            done => return Ok((before, done?)),
        }
    }
    let now = set_limits(conn, queue, limits, actor, reason, if_revision).await?;
    Ok((before, now))
}

/// The limits of a queue, which nobody else changes until the transaction ends; not locked where there are none yet.
async fn lock_limits(conn: &mut PgConnection, queue: &QueueName) -> Result<LimitsView, sqlx::Error> {
    sqlx::query!("select from queue_limits where queue = $1 for update", queue.as_str())
        .fetch_optional(&mut *conn)
        .await?;
    limits(conn, queue).await
}

/// Pauses a queue or a kind: no lease that begins after the commit takes its jobs; those that run go on. Paused already, it stays
/// as it was. Answers whether it was not paused before.
///
/// # Errors
/// Only the database's.
pub async fn pause(
    conn: &mut PgConnection,
    what: &Paused,
    actor: Option<IdentityId>,
    reason: &str,
) -> Result<(Pause, bool), sqlx::Error> {
    let new = sqlx::query_scalar!(
        r#"
        insert into pauses (scope, name, paused_by, reason, paused_at)
        values ($1, $2, $3, $4, (select lh_now()))
            -- Changes nothing, and keeps a resume from coming between this and what is told of it.
            on conflict (scope, name) do update
           set scope = excluded.scope
        returning xmax = 0 as "new!"
        "#,
        what.scope(),
        what.name(),
        actor.map(|id| id.0),
        reason,
    )
    .fetch_one(&mut *conn)
    .await?;
    let pause = sqlx::query_as!(
        Pause,
        r#"
        select p.scope, p.name, p.paused_by as "paused_by: IdentityId", i.name as "paused_by_name?", p.reason, p.paused_at
          from pauses p
          left join identities i on i.id = p.paused_by
         where p.scope = $1
           and p.name = $2
        "#,
        what.scope(),
        what.name(),
    )
    .fetch_one(conn)
    .await?;
    Ok((pause, new))
}

/// Ends a pause, and tells it; `None` where there was none.
///
/// # Errors
/// Only the database's.
pub async fn resume(conn: &mut PgConnection, what: &Paused) -> Result<Option<Pause>, sqlx::Error> {
    sqlx::query_as!(
        Pause,
        r#"
        with ended as (
            delete from pauses
             where scope = $1
               and name = $2
            returning scope, name, paused_by, reason, paused_at
        )
        select p.scope, p.name, p.paused_by as "paused_by: IdentityId", i.name as "paused_by_name?", p.reason, p.paused_at
          from ended p
          left join identities i on i.id = p.paused_by
        "#,
        what.scope(),
        what.name(),
    )
    .fetch_optional(conn)
    .await
}

/// Every pause, by scope and name: those behind `after`, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn pauses_after(
    conn: &mut PgConnection,
    after: Option<(&str, &str)>,
    limit: u16,
) -> Result<Vec<Pause>, sqlx::Error> {
    let (scope, name) = after.unwrap_or_default();
    sqlx::query_as!(
        Pause,
        r#"
        select p.scope, p.name, p.paused_by as "paused_by: IdentityId", i.name as "paused_by_name?", p.reason, p.paused_at
          from pauses p
          left join identities i on i.id = p.paused_by
         where (p.scope, p.name) > ($1, $2)
         order by p.scope, p.name
         limit $3
        "#,
        scope,
        name,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// Looks at the next `limit` places of the walk that all workers share, and forgets those of keys that are free: a place
/// that nobody took is free as well. Returns how many.
///
/// While another session takes a step, this one takes none.
///
/// # Errors
/// Only the database's.
pub async fn forget_slots(conn: &mut PgConnection, limit: u16) -> Result<u64, sqlx::Error> {
    let forgotten = sqlx::query_scalar!(
        r#"
        with walk as materialized (
            select queue, what, key, n from slot_walk for update skip locked
        ), next as materialized (
            select s.queue, s.what, s.key, s.n, s.job_id, s.fence, s.taken_at
              from walk w
             cross join lateral (
                   select *
                     from slots o
                    where (o.queue, o.what, o.key, o.n) > (w.queue, w.what, w.key, w.n)
                    order by o.queue, o.what, o.key, o.n
                    limit $1
                   ) s
        ), last as (
            select queue, what, key, n from next order by queue, what, key, n offset $1 - 1 limit 1
        ), walked as (
            -- From the beginning again where the end was reached.
            update slot_walk
               set queue = coalesce((select queue from last), ''),
                   what = coalesce((select what from last), ''),
                   key = coalesce((select key from last), ''),
                   n = coalesce((select n from last), 0)
             where exists (select from walk)
        ), held as materialized (
            -- One that a lease is about to take is no longer free.
            select o.queue, o.what, o.key, o.n
              from next s
             cross join lateral (
                   select *
                     from slots o
                    where o.queue = s.queue
                      and o.what = s.what
                      and o.key = s.key
                      and o.n = s.n
                      and o.fence = s.fence
                      for update skip locked
                   ) o
             where case s.what
                       when 'start'
                       -- Longer than any span.
                       then s.taken_at < (select lh_now()) - interval '1 day'
                       else not exists (
                           select from jobs j where j.id = s.job_id and j.fence = s.fence and j.state = 'running')
                   end
        ), forgotten as (
            delete from slots o
             using held h
             where o.queue = h.queue
               and o.what = h.what
               and o.key = h.key
               and o.n = h.n
            returning o.n
        )
        select count(*) as "forgotten!"
          from forgotten
        "#,
        i64::from(limit),
    )
    .fetch_one(conn)
    .await?;
    Ok(forgotten.unsigned_abs())
}
