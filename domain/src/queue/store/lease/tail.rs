//! What both texts of the lease statement have in common: the walk of jobs without a key, and everything from the lock on.

/// The lease statement, around the parts that choose among jobs: `finding` ends in `held`, those that were locked
/// (`place`, `id`, `lease_ms`), and has before it `served`, the ranges that are walked, and `open`, the first jobs without a
/// key of all ranges that are `walked`, in whose order none is missing.
///
/// `fence` is what gives each its fence, `allowed` a condition that each must meet. `in_turn` says whether there is work that
/// needs turns, `rated` whether starts of any of it are limited, `contested` whether another lease got a place that one of
/// these wanted, and `cut` the queues of whose keys only a part was looked at, with the last key.
///
/// Parameters: `$1` to `$3` and `$11` to `$15` the ranges, `$4` how far all of them are, `$5` limit, `$6` worker, `$7` ended
/// batches, `$8` look, `$9` wall clock, `$10` seconds after which a worker counts as silent; those of `finding` follow.
macro_rules! leasing {
    (
        $worker:ident, $request:ident, $asked:ident,
        walked = $walked:literal,
        finding = $finding:literal,
        fence = $fence:literal,
        allowed = $allowed:literal,
        in_turn = $in_turn:literal,
        rated = $rated:literal,
        contested = $contested:literal,
        cut_queues = $cut_queues:literal,
        cut_keys = $cut_keys:literal
        $(, $parameter:expr)* $(,)?
    ) => {
        sqlx::query_as!(
            Row,
            r#"
        with recursive served as (
            select *
              from unnest($1::text[], $2::text[], $3::bigint[], $11::smallint[], $12::timestamptz[], $13::uuid[],
                          $14::smallint[], $15::bigint[])
                   as s(queue, kind, lease_ms, from_priority, from_run_at, from_id, to_priority, walk)
             where not exists (select from pauses p where p.scope = 'queue' and p.name = s.queue)
               and not exists (select from pauses p where p.scope = 'kind' and p.name = s.kind)
        ), walked as materialized (
            select j.place, j.id, j.priority, j.run_at, s.queue, s.lease_ms,
                   -- All that was asked of this range, and less than was wanted: there may be more behind it.
                   j.n = s.walk and s.walk < $4 as cut
              from served s
             cross join lateral (
                   select b.place, b.id, b.priority, b.run_at, row_number() over () as n
                     from (
                          select a.ctid as place, a.id, a.priority, a.run_at
                            from jobs a
                           where a.queue = s.queue
                             and a.kind = s.kind
                             and not a.keyed
                             and a.ready
                             and (a.priority, a.run_at, a.id) >= (s.from_priority, s.from_run_at, s.from_id)
                             and a.priority <= s.to_priority
                             -- Those that run keep their place in the index; the walk passes them by.
                             and a.state = 'available'
                           order by a.priority, a.run_at, a.id
                           -- A number that the planner can see: of a parameter it believes a tenth of the table,
                           -- and would then read all of it to join the rest.
                           limit 4000
                          ) b
                    limit s.walk
                   ) j
             where "#
                + $walked
                + r#"
        ), brim as materialized (
            -- Behind the first of these may stand jobs that come before those of other ranges.
            select priority, run_at, id
              from walked
             where cut
             order by priority, run_at, id
             limit 1
        ), open as (
            select w.place, w.id, w.priority, w.run_at, w.queue, w.lease_ms
              from walked w
             where not exists (select from brim b where (w.priority, w.run_at, w.id) > (b.priority, b.run_at, b.id))
        ), "# + $finding
                + r#"
        , leased as (
            update jobs j
               set state = 'running',
                   fence = "# + $fence + r#",
                   attempt = j.attempt + 1,
                   revision = j.revision + 1,
                   worker_id = $6,
                   leased_at = (select lh_now()),
                   lease_expires_at = (select lh_now()) + h.lease_ms * interval '1 ms',
                   progress = null
              from held h
             where j.ctid = h.place
               and "# + $allowed + r#"
            returning j.id, j.kind, j.queue, j.args, j.attempt, j.max_attempts, j.interruptions, j.deadline_ms,
                      j.created_at, j.run_at, j.priority, j.fence, j.leased_at, j.lease_expires_at, j.concurrency_key,
                      j.traceparent
        ), batch as (
            insert into lease_batches (worker_id, expires_at, first_fence, last_fence, jobs)
            select $6, min(lease_expires_at), min(fence), max(fence), array_agg(id)
              from leased
            having count(*) > 0
            returning id
        ), ended as materialized (
            -- What a sweep holds just now is the sweep's: leasing waits for no bookkeeping.
            select id
              from lease_batches
             where id = any($7)
               and worker_id = $6
               for update skip locked
        ), removed as (
            delete from lease_batches b using ended e where b.id = e.id
        ), me as materialized (
            select id
              from workers
             where id = $6
               and $9::timestamptz is not null
               for update skip locked
        ), beat as (
            update workers w
               set seen_at = (select lh_now()),
                   clock_skew_ms = (extract(epoch from $9::timestamptz - (select lh_now())) * 1000)::bigint
              from me
             where w.id = me.id
        ), peers as materialized (
            -- Who polls for the same jobs: nobody, where nobody asked to look.
            select count(*) as live, count(*) filter (where id < $6) as rank
              from (
                   select id
                     from workers
                    where $8
                      and seen_at > (select lh_now()) - $10::float8 * interval '1 second'
                      and stopped_at is null
                      and draining_at is null
                      and queues && $1::text[]
                    order by id
                    limit 1000
                   ) w
        ), look as (
            select case when $8 then (select expires_at from lease_batches order by expires_at limit 1) end as batch_at,
                   case when $8 then (select run_at from jobs where parked order by run_at, id limit 1) end as due_at,
                   "# + $in_turn + r#" as in_turn,
                   live, rank,
                   (select lh_now()) as now
              from peers
        )
        select l.id as "id?: JobId", l.kind as "kind?: Kind", l.queue as "queue?: QueueName", l.args as "args?",
               l.attempt as "attempt?", l.max_attempts as "max_attempts?", l.interruptions as "interruptions?",
               l.deadline_ms as "deadline_ms?", l.created_at as "created_at?", l.run_at as "run_at?",
               l.priority as "priority?", l.fence as "fence?: Fence", l.leased_at as "leased_at?",
               l.lease_expires_at as "expires_at?", l.concurrency_key as "concurrency_key?",
               l.traceparent as "traceparent?",
               (select id from batch) as "batch?: BatchId",
               k.batch_at as "batch_at?", k.due_at as "due_at?", k.live as "live!", k.rank as "rank!", k.now as "now!",
               k.in_turn as "in_turn!",
               exists (select from brim) as "cut!",
               "# + $rated + r#" as "rated!",
               "# + $contested + r#" as "contested!",
               "# + $cut_queues + r#" as "cut_queues!: Vec<QueueName>", "# + $cut_keys + r#" as "cut_keys!"
          from look k
          left join leased l on true
        "#,
            &$asked.ranges.queues as &[&str],
            &$asked.ranges.kinds as &[&str],
            &$asked.ranges.lease_ms,
            $asked.window,
            $asked.limit,
            $worker.worker.0,
            &$asked.ended,
            $request.look,
            $request.wall_clock,
            SILENT_AFTER.as_secs_f64(),
            &$asked.ranges.from_priority,
            &$asked.ranges.from_run_at,
            &$asked.ranges.from_id,
            &$asked.ranges.to_priority,
            &$asked.ranges.walk
            $(, $parameter)*
        )
    };
}

pub(super) use leasing;
