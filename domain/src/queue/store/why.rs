//! Reading the facts of why a job does not run. One statement beside the job itself, whatever the backlog.

use std::time::Duration;

use serde::Deserialize;
use sqlx::PgConnection;
use sqlx::types::Json;

use crate::clock::Timestamp;
use crate::ids::{IdentityId, WorkerId};
use crate::queue::policy::SILENT_AFTER;
use crate::queue::why::{AHEAD_LIMIT, Facts, HOLDERS_LIMIT, Holder, Limited, Places, Standing, Why, Workers, decide};
use crate::queue::{Job, JobState, Pause};

/// Why this job does not run (Q-050); what it does instead of waiting where it does.
///
/// Bounded: it looks at no more than 10,000 workers, counts at most [`AHEAD_LIMIT`] jobs for each of at most twenty sets
/// of queues and kinds that workers serve, and reads the places under the limits that the job falls under, of which
/// there are as many as the limits say. Read the job and ask in one snapshot: then the two agree.
///
/// # Errors
/// Only the database's.
pub async fn why(conn: &mut PgConnection, job: Job) -> Result<Why, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        with held as materialized (
            select worker_id, count(*) as running from running_jobs group by worker_id
        ), named as materialized (
            select w.id, w.queues, w.kinds, w.seen_at, w.concurrency, coalesce(h.running, 0) as running,
                   $3 = any (w.kinds) as serve_kind,
                   case
                       when w.seen_at <= (select lh_now()) - $8::float8 * interval '1 second' then 'silent'
                       when w.draining_at is not null then 'draining'
                       when coalesce(h.running, 0) >= w.concurrency then 'full'
                       else 'free'
                   end as standing
              from workers w
              left join held h on h.worker_id = w.id
             where w.stopped_at is null
               and w.seen_at > (select lh_now()) - interval '1 day'
               and $2 = any (w.queues)
             order by w.id desc
             limit 10000
        ), alike as (
            select serve_kind, standing, count(*) as workers, sum(running)::bigint as running,
                   sum(concurrency)::bigint as concurrency, max(seen_at) as heard_at,
                   (array_agg(id order by seen_at desc, id))[1] as heard
              from named
             group by serve_kind, standing
        ), served as materialized (
            -- What each worker that takes such jobs serves: few sets, however many workers.
            select distinct queues, kinds
              from named
             where serve_kind
               and standing in ('free', 'full')
               and $7
             limit 20
        ), ahead as materialized (
            select coalesce(min(c.jobs), 0) as jobs
              from served s
             cross join lateral (
                   select count(*) as jobs
                     from (
                          select
                            from unnest(s.queues) as q(queue)
                           cross join unnest(s.kinds) as k(kind)
                           cross join lateral (
                                 (select
                                    from jobs j
                                   where $9::text is null
                                     and not j.keyed
                                     and j.queue = q.queue
                                     and j.kind = k.kind
                                     and j.ready
                                     and j.state = 'available'
                                     and (j.priority, j.run_at, j.id) < ($4, $5, $1)
                                   order by j.priority, j.run_at, j.id
                                   limit 1000)
                                  union all
                                 -- Of jobs that take turns by key, those of its own key stand before it.
                                 (select
                                    from jobs j
                                   where j.keyed
                                     and j.queue = q.queue
                                     and q.queue = $2
                                     and j.kind = k.kind
                                     and j.concurrency_key = $9
                                     and j.priority = $4
                                     and j.ready
                                     and j.state = 'available'
                                     and (j.run_at, j.id) < ($5, $1)
                                   order by j.run_at, j.id
                                   limit 1000)
                                 ) a
                           limit $6
                          ) b
                   ) c
        ), paused as (
            select jsonb_agg(jsonb_build_object('scope', p.scope, 'name', p.name, 'by', p.paused_by, 'by_name', i.name,
                                                'reason', p.reason, 'at', p.paused_at)
                             order by p.scope desc) as pauses
              from pauses p
              left join identities i on i.id = p.paused_by
             where (p.scope, p.name) in (('queue', $2), ('kind', $3))
        ), limited as (
            -- The limits that the job falls under, as a lease sees them.
            select v.what, v.key, v.most, v.span_ms
              from queue_limits l
             cross join lateral (values ('running', '', l.running, 0::bigint),
                                        ('running', $9, l.running_per_key, 0),
                                        ('start', $9, l.starts_per_key, l.starts_span_ms)
                                ) as v(what, key, most, span_ms)
             where l.queue = $2
               and $7
               and v.key is not null
               and v.most is not null
        ), places as materialized (
            select m.what, m.key, m.most, m.span_ms, t.taken, t.holders, t.free_at
              from limited m
             cross join lateral (
                   select count(*) as taken,
                          -- The longest first, some of them.
                          (array_agg(jsonb_build_object('job', o.job_id, 'worker', j.worker_id) order by o.fence)
                               filter (where j.worker_id is not null))[1:$10] as holders,
                          -- One is free again when so many spans are over that less than all are taken.
                          (array_agg(o.taken_at order by o.taken_at) filter (where o.what = 'start'))
                               [count(*)::int - m.most + 1] + m.span_ms * interval '1 ms' as free_at
                     from slots o
                     left join lateral (
                          select r.worker_id
                            from jobs r
                           where r.id = o.job_id
                             and r.fence = o.fence
                             and r.state = 'running'
                             and o.what = 'running'
                           limit 1
                          ) j on true
                    where o.queue = $2
                      and o.what = m.what
                      and o.key = m.key
                      and case o.what
                              when 'start' then o.taken_at > (select lh_now()) - m.span_ms * interval '1 ms'
                              else j.worker_id is not null
                          end
                   ) t
             where t.taken >= m.most
        )
        select (select lh_now()) as "now!", a.serve_kind as "serve_kind?", a.standing as "standing?: Standing",
               a.workers as "workers?", a.running as "running?", a.concurrency as "concurrency?",
               a.heard_at as "heard_at?", a.heard as "heard?: WorkerId", n.jobs as "ahead!",
               j.cancel_requested_at as "cancel_requested_at?", j.cancel_reason,
               p.pauses as "pauses?: Json<Vec<PauseRow>>",
               (select jsonb_agg(jsonb_build_object('what', l.what, 'key', l.key, 'most', l.most, 'span_ms', l.span_ms,
                                                    'taken', l.taken, 'holders', coalesce(l.holders, '{}'),
                                                    'free_at', l.free_at)
                                 order by l.what, l.key)
                  from places l) as "limits?: Json<Vec<PlacesRow>>"
          from ahead n
         cross join paused p
          left join jobs j on j.id = $1
          left join alike a on true
         order by a.serve_kind desc, a.standing
        "#,
        job.id.0,
        job.queue.as_str(),
        job.kind.as_str(),
        job.priority,
        job.run_at,
        AHEAD_LIMIT,
        job.state == JobState::Available,
        SILENT_AFTER.as_secs_f64(),
        job.concurrency_key,
        i32::try_from(HOLDERS_LIMIT).unwrap_or(i32::MAX),
    )
    .fetch_all(conn)
    .await?;
    let mut facts = Facts {
        now: job.created_at,
        job,
        cancel: None,
        workers: Vec::new(),
        ahead: 0,
        pauses: Vec::new(),
        limits: Vec::new(),
    };
    for row in rows {
        // The same in each row.
        facts.pauses = row.pauses.map_or_else(Vec::new, |Json(rows)| rows.into_iter().map(PauseRow::view).collect());
        facts.limits = row.limits.map_or_else(Vec::new, |Json(rows)| rows.into_iter().map(PlacesRow::view).collect());
        facts.now = row.now;
        facts.ahead = row.ahead;
        facts.cancel = row.cancel_requested_at.map(|at: Timestamp| (at, row.cancel_reason.unwrap_or_default()));
        if let (Some(serve_kind), Some(standing), Some(heard_at), Some(heard)) =
            (row.serve_kind, row.standing, row.heard_at, row.heard)
        {
            let [workers, running, concurrency] =
                [row.workers, row.running, row.concurrency].map(Option::unwrap_or_default);
            facts.workers.push(Workers { serve_kind, standing, workers, running, concurrency, heard_at, heard });
        }
    }
    Ok(decide(&facts))
}

#[derive(Debug, Deserialize)]
struct PauseRow {
    scope: String,
    name: String,
    by: Option<IdentityId>,
    by_name: Option<String>,
    reason: String,
    at: Timestamp,
}

impl PauseRow {
    fn view(self) -> Pause {
        let Self { scope, name, by, by_name, reason, at } = self;
        Pause { scope, name, paused_by: by, paused_by_name: by_name, reason, paused_at: at }
    }
}

#[derive(Debug, Deserialize)]
struct PlacesRow {
    what: String,
    key: String,
    most: i64,
    span_ms: u64,
    taken: i64,
    holders: Vec<Holder>,
    free_at: Option<Timestamp>,
}

impl PlacesRow {
    fn view(self) -> Places {
        let of = match (self.what.as_str(), self.key.is_empty()) {
            ("start", _) => Limited::Starts(Duration::from_millis(self.span_ms)),
            (_, true) => Limited::Queue,
            (_, false) => Limited::Key,
        };
        Places { of, most: self.most, taken: self.taken, holders: self.holders, free_at: self.free_at }
    }
}
