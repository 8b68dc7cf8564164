//! The long text of the lease statement: keyed jobs in turn by key, and every limit.
//!
//! # Limits
//! A place under a limit is a row of `slots` with the fence that took it last. Which places are free is read from one
//! snapshot; each is then taken by a write that names the fence it was read with, so two leases that saw the same free
//! place get it once. A job is leased only where it got every place that it needs. Nobody frees a place: it is free again
//! when its job no longer runs under its fence, which is as true after a crash as after a completion.
//!
//! # Fairness
//! Keys are visited by jumps along an index, from behind the key that was served last, around. Of each key the oldest job
//! comes first, then of each the second: the cost is that of the keys visited and the jobs leased, whatever the backlog
//! of any key. Jobs without a key take turns with those that have one, one by one.
//!
//! Source: the PostgreSQL wiki, "Loose indexscan".

use sqlx::PgConnection;

use super::tail::leasing;
use super::{Asked, Row};
use crate::ids::{BatchId, JobId, Kind, QueueName};
use crate::lease::Fence;
use crate::queue::low_water::Ranges;
use crate::queue::policy::SILENT_AFTER;
use crate::queue::{PollRequest, Turns, WorkerSpec};

pub(super) async fn lease(
    conn: &mut PgConnection,
    worker: &WorkerSpec,
    request: &PollRequest<'_>,
    asked: &Asked<'_>,
    turns: &Turns,
) -> Result<Vec<Row>, sqlx::Error> {
    let pairs = Ranges::whole(worker, asked.window);
    let after: Vec<&str> = pairs.queues.iter().map(|queue| turns.after(queue)).collect();
    leasing!(
        worker,
        request,
        asked,
        walked = "not exists (select from keys k where k.queue = s.queue and k.key = '' and k.free = 0)",
        finding = r#"
        limits as materialized (
            select queue, running, running_per_key, starts_per_key, starts_span_ms
              from queue_limits
             where queue = any($1)
        ), due as materialized (
            select o.place, o.id, o.priority, o.run_at, o.lease_ms
              from open o
             where not exists (select from limits l where l.queue = o.queue and l.running is not null)
             order by o.priority, o.run_at, o.id
             limit $4
        ), pairs as (
            -- Each queue and kind once: keys are walked from where the turn stands.
            select p.queue, p.kind, p.lease_ms, p.after
              from unnest($16::text[], $17::text[], $18::bigint[], $19::text[]) as p(queue, kind, lease_ms, after)
             where $5::bigint > 0
               and exists (select from served s where s.queue = p.queue and s.kind = p.kind)
        ), levels as (
            -- The priorities of keyed jobs.
            select p.queue, p.kind, p.lease_ms, p.after, f.priority
              from pairs p
             cross join lateral (
                   select a.priority
                     from jobs a
                    where a.keyed
                      and a.queue = p.queue
                      and a.kind = p.kind
                      and a.ready
                    order by a.priority, a.run_at, a.id
                    limit 1
                   ) f
             union all
            select l.queue, l.kind, l.lease_ms, l.after, n.priority
              from levels l
             cross join lateral (
                   select a.priority
                     from jobs a
                    where a.keyed
                      and a.queue = l.queue
                      and a.kind = l.kind
                      and a.ready
                      and a.priority > l.priority
                    order by a.priority, a.run_at, a.id
                    limit 1
                   ) n
        ), walk as (
            -- Their keys: those behind the one that was served last, and (again) those up to it.
            select l.queue, l.kind, l.lease_ms, l.after, l.priority, e.again, k.key, 1::bigint as n
              from levels l
             cross join (values (false), (true)) as e(again)
             cross join lateral (
                   select a.concurrency_key as key
                     from jobs a
                    where a.keyed
                      and a.ready
                      and a.queue = l.queue
                      and a.kind = l.kind
                      and a.priority = l.priority
                      and a.concurrency_key > case when e.again then '' else l.after end
                    order by a.concurrency_key, a.run_at, a.id
                    limit 1
                   ) k
             where not e.again
                or k.key <= l.after
             union all
            select w.queue, w.kind, w.lease_ms, w.after, w.priority, w.again, k.key, w.n + 1
              from walk w
             cross join lateral (
                   select a.concurrency_key as key
                     from jobs a
                    where a.keyed
                      and a.ready
                      and a.queue = w.queue
                      and a.kind = w.kind
                      and a.priority = w.priority
                      and a.concurrency_key > w.key
                    order by a.concurrency_key, a.run_at, a.id
                    limit 1
                   ) k
             where w.n < greatest($4::bigint, 256)
               and (not w.again or k.key <= w.after)
        ), spots as (
            -- Each key's place in the turn. Jobs without a key, of queues with a limit, are as those of one more key.
            select w.queue, w.kind, w.lease_ms, w.priority, w.key,
                   dense_rank() over (partition by w.queue, w.priority order by w.again, w.key) as spot,
                   -- More than the even share of what is wanted, since some keys have less.
                   ceil(greatest(2.0 * $5::bigint, 256) / (select count(*) from (select distinct queue, key from walk) d))::bigint
                       as depth
              from walk w
             union all
            select l.queue, null, null, null, '', 0, $4::bigint
              from limits l
             where l.running is not null
        ), keys as materialized (
            -- Its free places. Taken ones count wherever they are: after a limit was lowered some are beyond it.
            select s.queue, s.kind, s.lease_ms, s.priority, s.key, s.spot, s.depth, p.run_ns, p.run_before, p.start_ns,
                   p.start_before, p.free
              from spots s
              left join limits l on l.queue = s.queue
             cross join lateral (
                   select max(r.ns) filter (where m.what = 'running') as run_ns,
                          max(r.before) filter (where m.what = 'running') as run_before,
                          max(r.ns) filter (where m.what = 'start') as start_ns,
                          max(r.before) filter (where m.what = 'start') as start_before,
                          min(greatest(least(m.most - r.taken, r.free), 0)) as free
                     from (values ('running', case when s.key = '' then l.running else l.running_per_key end, 0),
                                  ('start', case when s.key <> '' then l.starts_per_key end, l.starts_span_ms)
                          ) as m(what, most, span_ms)
                    cross join lateral (
                          select array_agg(t.n order by t.n) filter (where t.free and t.n < m.most) as ns,
                                 array_agg(t.before order by t.n) filter (where t.free and t.n < m.most) as before,
                                 count(*) filter (where t.free and t.n < m.most) as free,
                                 count(*) filter (where not t.free) as taken
                            from (
                                 select coalesce(g.n, c.n) as n, coalesce(c.fence, 0) as before,
                                        coalesce(c.free, true) as free
                                   -- No more than there can be use for: a limit may be a thousand times what runs.
                                   from generate_series(
                                            0,
                                            least(
                                                m.most,
                                                s.depth
                                                + (select count(*)
                                                     from slots e
                                                    where e.queue = s.queue
                                                      and e.what = m.what
                                                      and e.key = s.key)
                                            )::integer - 1
                                        ) as g(n)
                                   full join (
                                        select o.n, o.fence,
                                               case o.what
                                                   when 'start'
                                                   then o.taken_at <= (select lh_now()) - m.span_ms * interval '1 ms'
                                                   else not exists (
                                                       select
                                                         from jobs j
                                                        where j.id = o.job_id
                                                          and j.fence = o.fence
                                                          and j.state = 'running'
                                                   )
                                               end as free
                                          from slots o
                                         where o.queue = s.queue
                                           and o.what = m.what
                                           and o.key = s.key
                                        ) c on c.n = g.n
                                 ) t
                          ) r
                    where m.most is not null
                   ) p
        ), found as (
            select k.queue, k.key, k.priority, k.lease_ms, k.spot, k.run_ns, k.run_before, k.start_ns, k.start_before,
                   k.free, r.place, r.run_at, r.id,
                   row_number() over (partition by k.queue, k.key order by k.priority, r.run_at, r.id) as in_key,
                   row_number() over (partition by k.queue, k.priority, k.key order by r.run_at, r.id) as round
              from keys k
             cross join lateral (
                   select *
                     from (
                          select a.ctid as place, a.id, a.run_at
                            from jobs a
                           where a.keyed
                             and a.ready
                             and a.state = 'available'
                             and a.queue = k.queue
                             and a.kind = k.kind
                             and a.priority = k.priority
                             and a.concurrency_key = k.key
                           order by a.run_at, a.id
                           limit 4000
                          ) b
                    limit least(k.depth, k.free)
                   ) r
             where k.key <> ''
             union all
            select o.queue, '', o.priority, o.lease_ms, 0, null, null, null, null, null, o.place, o.run_at, o.id, 0,
                   row_number() over (partition by o.queue, o.priority order by o.run_at, o.id)
              from keys k
             -- The offset keeps the planner from turning the two around where more jobs wait.
             cross join lateral (select * from open where open.queue = k.queue offset 0) o
             where k.key = ''
        ), fitting as (
            -- Those for which their key has a place, in turn.
            select f.queue, f.key, f.priority, f.lease_ms, f.place, f.in_key, f.run_ns, f.run_before, f.start_ns,
                   f.start_before,
                   row_number() over (partition by f.queue order by f.priority, f.round, f.spot, f.run_at, f.id)
                       as in_queue,
                   row_number() over (order by f.priority, f.round, f.spot, f.queue <= $20, f.queue, f.run_at, f.id)
                       as turn
              from found f
             where f.in_key <= coalesce(f.free, f.in_key)
        ), in_turn as materialized (
            -- Those for which their queue has one, too.
            select f.queue, f.key, f.priority, f.lease_ms, f.place, f.turn, k.run_ns[f.in_queue] as queue_n,
                   k.run_before[f.in_queue] as queue_before, f.run_ns[f.in_key] as key_n,
                   f.run_before[f.in_key] as key_before, f.start_ns[f.in_key] as start_n,
                   f.start_before[f.in_key] as start_before
              from fitting f
              left join (select queue, run_ns, run_before, free from keys where key = '') k on k.queue = f.queue
             where f.in_queue <= coalesce(k.free, f.in_queue)
             order by f.turn
             limit $4
        ), chosen as (
            select d.place, d.lease_ms, null as queue, null as key, null::int as queue_n, null::bigint as queue_before,
                   null::int as key_n, null::bigint as key_before, null::int as start_n, null::bigint as start_before,
                   d.priority, 2 * row_number() over (partition by d.priority order by d.run_at, d.id) as at
              from due d
             union all
            select t.place, t.lease_ms, t.queue, t.key, t.queue_n, t.queue_before, t.key_n, t.key_before, t.start_n,
                   t.start_before, t.priority,
                   2 * row_number() over (partition by t.priority order by t.turn) + case when $21 then -1 else 1 end
              from in_turn t
             order by priority, at
        ), held as materialized (
            -- As the short text does it; the fences rise in turn.
            select j.place, j.id, c.lease_ms, c.queue, c.key, c.queue_n, c.queue_before, c.key_n, c.key_before,
                   c.start_n, c.start_before, num_nonnulls(c.queue_n, c.key_n) as needs_running,
                   num_nonnulls(c.queue_n, c.key_n, c.start_n) as needs,
                   nextval('lease_fence') as fence
              from chosen c
             cross join lateral (
                   select l.ctid as place, l.id
                     from jobs l
                    where l.ctid = c.place
                      and l.state = 'available'
                      for update skip locked
                   ) j
             -- A row that moved meanwhile is locked where it is now: the update would not find it, and would have spent
             -- a start on it.
             where j.place = c.place
             limit $5
        ), wanted as materialized (
            -- A place that another lease is about to take is that lease's: nobody waits here, except for whoever takes
            -- it for the first time.
            select h.queue, v.what, v.key, v.n, h.id, h.fence, v.before, h.needs_running
              from held h
             cross join lateral (values ('running', '', h.queue_n, h.queue_before),
                                        ('running', h.key, h.key_n, h.key_before),
                                        ('start', h.key, h.start_n, h.start_before)) as v(what, key, n, before)
              left join lateral (
                   select o.fence
                     from slots o
                    where o.queue = h.queue
                      and o.what = v.what
                      and o.key = v.key
                      and o.n = v.n
                      and o.fence = v.before
                      for update skip locked
                   ) s on true
             where v.n is not null
               and (v.before = 0 or s.fence is not null)
        ), taken_running as (
            insert into slots (queue, what, key, n, job_id, fence, before, taken_at)
            select queue, what, key, n, id, fence, before, (select lh_now())
              from wanted
             where what = 'running'
             order by queue, key, n
                on conflict (queue, what, key, n) do update
               set job_id = excluded.job_id,
                   fence = excluded.fence,
                   before = excluded.before,
                   taken_at = excluded.taken_at
             where slots.fence = excluded.before
            returning fence
        ), taken_starts as (
            -- Only by those that have every place to run in: a start that is counted is one that happens.
            insert into slots (queue, what, key, n, job_id, fence, before, taken_at)
            select w.queue, w.what, w.key, w.n, w.id, w.fence, w.before, (select lh_now())
              from wanted w
             where w.what = 'start'
               and w.needs_running = (select count(*) from taken_running t where t.fence = w.fence)
             order by w.queue, w.key, w.n
                on conflict (queue, what, key, n) do update
               set job_id = excluded.job_id,
                   fence = excluded.fence,
                   before = excluded.before,
                   taken_at = excluded.taken_at
             where slots.fence = excluded.before
            returning fence
        ), taken as materialized (
            select fence from taken_running
             union all
            select fence from taken_starts
        )
        "#,
        fence = "h.fence",
        allowed = "(h.needs = 0 or h.needs = (select count(*) from taken t where t.fence = h.fence))",
        in_turn = "(exists (select from limits where running is not null) or exists (select from levels))",
        rated = "exists (select from limits where starts_per_key is not null)",
        contested = "((select count(*) from held) > (select count(*) from leased))",
        cut_queues = "array(select queue from walk where n = greatest($4::bigint, 256) order by queue, again, key)",
        cut_keys = "array(select key from walk where n = greatest($4::bigint, 256) order by queue, again, key)",
        &pairs.queues as &[&str],
        &pairs.kinds as &[&str],
        &pairs.lease_ms,
        &after as &[&str],
        turns.last.as_ref().map_or("", |queue| queue.as_str()),
        turns.keyed_first,
    )
    .fetch_all(conn)
    .await
}
