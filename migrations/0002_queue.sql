-- What: the job queue: live jobs, finished jobs by day, attempts, steps, log lines, refused writes, workers, counters.
-- Why: Postgres is the only coordinator; a lease and everything written under it stand in these rows.
-- Lock: new objects only.

-- Fences are unique and rising across the whole system. CACHE 1 keeps them unique across the promotion of a
-- synchronous standby: a cached block would be handed out twice.
create sequence lease_fence as bigint start 1 cache 1;

-- Live jobs only: settling moves a row to jobs_finished, so this table stays as small as the work that is left.
create table jobs (
    id               uuid primary key,
    kind             text not null,
    queue            text not null,
    state            text not null,
    priority         smallint not null default 0,
    run_at           timestamptz not null,
    created_at       timestamptz not null,
    args             jsonb not null,
    attempt          integer not null default 0,
    max_attempts     integer not null,
    -- Leases that ended without an outcome (a crash, an expiry): a budget of its own, apart from failures.
    interruptions    integer not null default 0,
    max_interruptions integer not null default 20,
    deadline_ms      bigint,
    protected        boolean not null default false,
    revision         bigint not null default 1,
    -- The fence of the newest lease; kept after it ends and overwritten only by the next one (I1).
    fence            bigint not null default 0,
    -- The fence whose holder settled this row last: what makes a repeated settle "already done by you".
    settled_fence    bigint,
    worker_id        uuid,
    leased_at        timestamptz,
    lease_expires_at timestamptz,
    cancel_requested_at timestamptz,
    cancel_reason    text,
    progress         jsonb,
    -- Numbers of the newest step and log line. Taken from the row that the fence guards, so that two lines written at
    -- once never want the same number.
    steps            integer not null default 0,
    log_lines        integer not null default 0,
    tags             text[] not null default '{}',
    unique_key       text,
    concurrency_key  text,
    parent_id        uuid,
    last_error       jsonb,
    traceparent      text,
    constraint jobs_state_check check (state in ('scheduled', 'available', 'running', 'retryable')),
    constraint jobs_priority_check check (priority between -100 and 100),
    -- No upper bound: the door bounds what is asked for, and an operator's retry allows one attempt more.
    constraint jobs_max_attempts_check check (max_attempts >= 1),
    constraint jobs_max_interruptions_check check (max_interruptions between 1 and 1000),
    constraint jobs_running_check check (
        (state = 'running') = (worker_id is not null) and (state = 'running') = (lease_expires_at is not null)
    )
) with (
    -- Renewals and progress rewrite a row in place; room on the page keeps them heap-only.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
-- The order of leasing inside one queue and kind.
create index jobs_available on jobs (queue, kind, priority, run_at, id) where state = 'available';
-- What becomes due, in the order in which it does.
create index jobs_staged on jobs (run_at, id) where state in ('scheduled', 'retryable');
-- All live leases. The expiry is deliberately no part of it: a renewal would then rewrite every index. The predicate is
-- not "state = 'running'", which stands in every write of a holder and would make the planner walk all leases there.
create index jobs_running on jobs (id) where worker_id is not null;
-- Live rows are exactly the four non-terminal states, so this holds over all of them (Q-023).
create unique index jobs_unique_key on jobs (kind, unique_key) where unique_key is not null;

create table jobs_finished (
    id               uuid not null,
    kind             text not null,
    queue            text not null,
    state            text not null,
    priority         smallint not null,
    run_at           timestamptz not null,
    created_at       timestamptz not null,
    finished_at      timestamptz not null,
    args             jsonb not null,
    attempt          integer not null,
    max_attempts     integer not null,
    interruptions    integer not null,
    revision         bigint not null,
    fence            bigint not null,
    settled_fence    bigint,
    worker_id        uuid,
    leased_at        timestamptz,
    deadline_ms      bigint,
    -- Kept for an operator's retry, which must not make a protected job an ordinary one.
    protected        boolean not null,
    max_interruptions integer not null,
    progress         jsonb,
    tags             text[] not null,
    unique_key       text,
    concurrency_key  text,
    parent_id        uuid,
    last_error       jsonb,
    result           jsonb,
    traceparent      text,
    constraint jobs_finished_state_check check (state in ('completed', 'cancelled', 'discarded'))
) partition by range (finished_at);
create index jobs_finished_id on jobs_finished (id);
-- Rows beyond the partitions that maintenance made ahead land here, so a settle never fails for want of one.
create table jobs_finished_default partition of jobs_finished default;

-- One row for each attempt that did not end the job; the last one is told by the finished row itself.
-- The passes of a snoozing job fold into one row.
create table job_attempts (
    job_id      uuid not null,
    attempt     integer not null,
    outcome     text not null,
    first_fence bigint not null,
    last_fence  bigint not null,
    worker_id   uuid,
    started_at  timestamptz not null,
    ended_at    timestamptz not null,
    passes      integer not null default 1,
    error       jsonb,
    primary key (job_id, last_fence),
    constraint job_attempts_outcome_check check (outcome in ('failed', 'snoozed', 'interrupted', 'released'))
);
create unique index job_attempts_folded on job_attempts (job_id, attempt) where outcome = 'snoozed';

create table job_steps (
    job_id   uuid not null,
    seq      integer not null,
    fence    bigint not null,
    name     text not null,
    cursor   jsonb not null,
    evidence jsonb not null default '{}',
    at       timestamptz not null,
    primary key (job_id, seq)
);

create table job_logs (
    job_id uuid not null,
    seq    integer not null,
    fence  bigint not null,
    at     timestamptz not null,
    level  text not null,
    line   text not null,
    primary key (job_id, seq),
    constraint job_logs_level_check check (level in ('info', 'warn', 'error'))
);

-- Evidence of writes that the fence refused: at most 100 rows for one lost lease, after that only counted.
create table fenced_writes (
    id             bigint generated always as identity primary key,
    job_id         uuid not null,
    kind           text not null,
    queue          text not null,
    worker_id      uuid,
    operation      text not null,
    fence_held     bigint not null,
    fence_current  bigint,
    state_current  text,
    late_ms        bigint,
    at             timestamptz not null
);
create index fenced_writes_job_id on fenced_writes (job_id, id);
create index fenced_writes_at on fenced_writes (at);
create table fenced_write_totals (
    job_id     uuid not null,
    fence_held bigint not null,
    total      bigint not null,
    primary key (job_id, fence_held)
);

create table workers (
    id            uuid primary key,
    host          text not null,
    pid           integer not null,
    version       text not null,
    node          text,
    queues        text[] not null,
    kinds         text[] not null,
    concurrency   integer not null,
    started_at    timestamptz not null,
    seen_at       timestamptz not null,
    draining_at   timestamptz,
    stopped_at    timestamptz,
    clock_skew_ms bigint
);
create index workers_seen_at on workers (seen_at);

-- What processes did, by minute: added to by each process once a second, never by the transaction that works.
create table throughput (
    minute  timestamptz not null,
    queue   text not null,
    kind    text not null,
    outcome text not null,
    total   bigint not null,
    primary key (minute, queue, kind, outcome)
);

-- Day partitions of finished jobs, for today and some days more; answers whether all of them are there.
-- Lock: a plain table is attached, because "create table ... partition of" takes ACCESS EXCLUSIVE on the parent and so
-- waits for, and holds up, every settle. Attaching takes SHARE UPDATE EXCLUSIVE on the parent, which settles and reads
-- do not conflict with, and ACCESS EXCLUSIVE on the default partition, which is scanned for rows of that day. Made days
-- ahead, that partition is as good as empty. Whoever reads it meanwhile makes the day wait for a later call: one that
-- waited longer for the lock would hold up every reader behind it.
create function lh_ensure_finished_partitions(days integer) returns boolean
    language plpgsql
    set lock_timeout = '200ms'
    as $$
declare
    today date := (lh_now() at time zone 'utc')::date;
    day   date;
    name  text;
    low   timestamptz;
    high  timestamptz;
begin
    -- One maker at a time; whoever comes second finds the work done.
    perform pg_advisory_xact_lock(hashtext('lh_ensure_finished_partitions'));
    for i in 0 .. days loop
        day := today + i;
        name := 'jobs_finished_' || to_char(day, 'YYYYMMDD');
        low := day::timestamp at time zone 'utc';
        high := (day + 1)::timestamp at time zone 'utc';
        -- A day that already has rows in the default partition stays there: moving them would lock out settles.
        if to_regclass(name) is null
           and not exists (
               select from jobs_finished_default
                where finished_at >= low
                  and finished_at < high
           ) then
            execute format(
                'create table %I (like jobs_finished including defaults including storage including constraints)', name);
            -- The bound as a check: then the new table itself is not scanned.
            execute format('alter table %I add constraint %I check (finished_at >= %L and finished_at < %L)',
                           name, name || '_day', low, high);
            execute format('alter table jobs_finished attach partition %I for values from (%L) to (%L)',
                           name, low, high);
            execute format('alter table %I drop constraint %I', name, name || '_day');
        end if;
    end loop;
    return true;
exception
    when lock_not_available then
        -- Later: none of this call's tables stays, and rows without a day of their own land in the default partition.
        return false;
end $$;
select lh_ensure_finished_partitions(7);
