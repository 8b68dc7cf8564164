//! What both texts of the lease statement have in common: everything from the lock on.

/// The lease statement. Before it stand the parts that find jobs: `held`, those that were locked (`place`, `id`,
/// `lease_ms`). `fence` is what gives each its fence, `allowed` a condition that each must meet, `in_turn` whether there
/// is work that needs turns, `contested` whether another lease got a place that one of these wanted, and `cut` the queues of whose keys only a part was looked at, with the last key.
///
/// Parameters: `$1` queues, `$5` limit, `$6` worker, `$7` ended batches, `$8` look, `$9` wall clock, `$10` seconds after
/// which a worker counts as silent.
macro_rules! leasing {
    (
        $finding:literal,
        fence = $fence:literal,
        allowed = $allowed:literal,
        in_turn = $in_turn:literal,
        contested = $contested:literal,
        cut_queues = $cut_queues:literal,
        cut_keys = $cut_keys:literal
        $(, $parameter:expr)* $(,)?
    ) => {
        sqlx::query_as!(
            Row,
            $finding
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
               "# + $contested + r#" as "contested!",
               "# + $cut_queues + r#" as "cut_queues!: Vec<QueueName>", "# + $cut_keys + r#" as "cut_keys!"
          from look k
          left join leased l on true
        "#
            $(, $parameter)*
        )
    };
}

pub(super) use leasing;
