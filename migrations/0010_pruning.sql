-- What: where the pruning of finished jobs stands, which of them outlive it, and how a day leaves.
-- Why: a day of which nothing is kept goes as a whole, by DROP. Of the others, rows go by a walk along the index of ids
-- that each day has: its place is kept here, so that any worker takes the next small step, and a day is read once for each
-- retention that ends, whatever was kept of it. No index by state, kind or time is made: each settle would write it.
-- Lock: new objects only.

-- One row for all workers: who holds it takes a step, and the others take none meanwhile.
create table prune_walk (
    one            boolean primary key default true constraint prune_walk_one_check check (one),
    -- The day whose rows are walked; null between two walks and while a day leaves.
    day            date,
    -- What the walk counts as past: it began then.
    as_of          timestamptz,
    -- Whether it met a row that is kept.
    keeps          boolean not null default false,
    -- Where it goes on, in that day or in what leaves.
    behind         uuid not null default '00000000-0000-0000-0000-000000000000',
    -- The day in jobs_leaving, whose jobs' attempts, steps, log lines and refused writes are still to go; null where none is.
    leaving        date,
    -- The walk around the rows that have no day of their own.
    undated_behind uuid not null default '00000000-0000-0000-0000-000000000000'
);
insert into prune_walk default values;

-- As of when each day was last walked to its end: it is walked again when another retention ends, and not before.
create table pruned_days (
    day   date primary key,
    as_of timestamptz not null
);

-- Finished jobs that outlive their retention, and for whom: whoever needs a job's row as proof holds it here, on its own
-- transaction, with the job's row locked "for key share".
create table prune_holds (
    job_id uuid primary key,
    holder text not null,
    at     timestamptz not null
);

-- The one day that left jobs_finished and whose jobs' parts are being removed.
create table jobs_leaving (like jobs_finished including storage);

-- Takes a day out of jobs_finished and makes it jobs_leaving; answers whether it did. What jobs_leaving held before is
-- gone: its walk has ended.
-- Lock: ACCESS EXCLUSIVE on jobs_finished, the day and the default partition, for the change of the catalogue alone. Whoever
-- settles meanwhile waits for it, so it is asked for a twentieth of a second at most: a long reader means "later".
-- ("detach ... concurrently" does not go with a default partition.)
create function lh_detach_finished_day(day date) returns boolean
    language plpgsql
    set lock_timeout = '50ms'
    as $$
declare
    name text := 'jobs_finished_' || to_char(day, 'YYYYMMDD');
begin
    execute format('alter table jobs_finished detach partition %I', name);
    drop table jobs_leaving;
    execute format('alter table %I rename to jobs_leaving', name);
    return true;
exception
    when lock_not_available then
        return false;
end $$;
