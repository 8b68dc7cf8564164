-- What: limits of queues, pauses, the slots that make limits exact, and an index that finds waiting jobs key by key.
-- Why: a limit counts what runs on all workers together, and holds when any of them dies at any line; jobs that carry a
-- concurrency key are leased in turn by key, so that one tenant's backlog is not before everyone else's.
-- Lock: jobs is written anew under ACCESS EXCLUSIVE, for the column that the index of waiting jobs now begins with:
-- enqueues and reads wait for as long as that takes, and it needs the space of the table beside it. Workers must be
-- stopped: one of before knows no limits, and would lease keyed jobs without one.
lock table jobs in access exclusive mode;
do $$
begin
    if exists (select
                 from workers
                where stopped_at is null
                  and seen_at > (select lh_now()) - interval '30 seconds') then
        raise exception 'workers are running: stop them, and migrate again 30 seconds after the last was heard'
            using errcode = 'LH003';
    end if;
end $$;

drop index jobs_ready;
alter table jobs add column keyed boolean not null generated always as (concurrency_key is not null) stored;
-- The order of leasing inside one queue and kind, of jobs without a key; of those with one, what figures are read from.
create index jobs_ready on jobs (keyed, queue, kind, priority, run_at, id) where ready;
-- The order of leasing jobs that carry a key: from key to key by jumps, and by age within each.
create index jobs_ready_keys on jobs (queue, kind, priority, concurrency_key, run_at, id) where ready and keyed;

-- One row for a queue that somebody limited; a limit that is null does not hold.
create table queue_limits (
    queue            text primary key,
    -- Jobs of the queue that run at once, on all workers together.
    running          integer,
    -- Jobs of each concurrency key that run at once.
    running_per_key  integer,
    -- Jobs of each concurrency key that start within any span of so many milliseconds.
    starts_per_key   integer,
    starts_span_ms   bigint,
    revision         bigint not null default 1,
    -- Null for the program itself.
    set_by           uuid,
    reason           text not null,
    set_at           timestamptz not null,
    constraint queue_limits_running_check check (running between 1 and 10000),
    constraint queue_limits_running_per_key_check check (running_per_key between 1 and 1000),
    constraint queue_limits_starts_per_key_check check (starts_per_key between 1 and 1000),
    constraint queue_limits_starts_span_check check (
        (starts_per_key is null) = (starts_span_ms is null) and starts_span_ms between 1000 and 86400000
    )
);

-- What leases pass by: a queue, or a kind on all queues.
create table pauses (
    scope     text not null,
    name      text not null,
    paused_by uuid,
    reason    text not null,
    paused_at timestamptz not null,
    primary key (scope, name),
    constraint pauses_scope_check check (scope in ('queue', 'kind'))
);

-- Who took which place under a limit last. Nobody frees a place: one of running jobs is free where the job that took it
-- no longer runs under the fence that took it, one of starts where the span has passed. So a worker that dies holds no
-- place beyond its lease, and a late one cannot free its successor's. A place is taken by a write that names the fence
-- it was read with, so two leases never get the same.
create table slots (
    queue    text not null,
    -- 'running' or 'start'.
    what     text not null,
    -- Empty for the queue as a whole.
    key      text not null,
    n        integer not null,
    job_id   uuid not null,
    fence    bigint not null,
    -- The fence of who had it before.
    before   bigint not null,
    taken_at timestamptz not null,
    primary key (queue, what, key, n),
    constraint slots_what_check check (what in ('running', 'start'))
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
-- Where the walk after places that nobody needs goes on: one for all workers.
create table slot_walk (
    one    boolean primary key default true constraint slot_walk_one_check check (one),
    queue  text not null default '',
    what   text not null default '',
    key    text not null default '',
    n      integer not null default 0
);
insert into slot_walk default values;
