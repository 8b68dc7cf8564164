//! Reading the facts of why a job does not run. One statement beside the job itself, whatever the backlog.

use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::why::{AHEAD_LIMIT, Facts, Standing, Why, Workers, decide};
use crate::queue::{Job, JobState};

/// Why this job does not run (Q-050); what it does instead of waiting where it does.
///
/// Bounded: it looks at no more than 10,000 workers, and counts at most [`AHEAD_LIMIT`] jobs for each of at most twenty
/// sets of queues and kinds that workers serve. Read the job and ask in one snapshot: then the two agree.
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
        )
        select (select lh_now()) as "now!", a.serve_kind as "serve_kind?", a.standing as "standing?: Standing",
               a.workers as "workers?", a.running as "running?", a.concurrency as "concurrency?",
               a.heard_at as "heard_at?", a.heard as "heard?: WorkerId", n.jobs as "ahead!",
               j.cancel_requested_at as "cancel_requested_at?", j.cancel_reason
          from ahead n
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
    )
    .fetch_all(conn)
    .await?;
    let mut facts = Facts { now: job.created_at, job, cancel: None, workers: Vec::new(), ahead: 0 };
    for row in rows {
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
