-- What: a view of the first due jobs, and since when a day of finished jobs cannot leave.
-- Why: several figures walk along the due jobs, and should do it in one way. A day whose table is always being read never
-- leaves, and nobody learnt of it.
-- Lock: ACCESS EXCLUSIVE on prune_walk, a table of one row, for the change of the catalogue alone.

-- The first due job of each queue, kind and priority, of jobs with a key and of those without: one jump along the index for
-- each, whatever the backlog. Source: the PostgreSQL wiki, "Loose indexscan".
create view due_heads as
with recursive heads as (
    (select keyed, queue, kind, priority, run_at
       from jobs
      where ready
        and state = 'available'
      order by keyed, queue, kind, priority, run_at, id
      limit 1)
     union all
    select n.keyed, n.queue, n.kind, n.priority, n.run_at
      from heads h
     cross join lateral (
           select j.keyed, j.queue, j.kind, j.priority, j.run_at
             from jobs j
            where j.ready
              and j.state = 'available'
              and (j.keyed, j.queue, j.kind, j.priority) > (h.keyed, h.queue, h.kind, h.priority)
            order by j.keyed, j.queue, j.kind, j.priority, j.run_at, j.id
            limit 1
           ) n
)
select queue, kind, run_at from heads;

alter table prune_walk
    -- The oldest day that is to leave and whose table others held at each try, since when, and the last try: where nobody
    -- prunes any more, a day is not late.
    add column late_day      date,
    add column late_since    timestamptz,
    add column late_tried_at timestamptz,
    add constraint prune_walk_late_check check (num_nonnulls(late_day, late_since, late_tried_at) in (0, 3));

-- How a hold is made, in place of what migration 10 says of a lock on the job's row: a delete that waited for such a lock
-- goes on with the holds that it saw before.
comment on table prune_holds is
    'Finished jobs that outlive their retention, and for whom. Whoever needs a job''s row as proof inserts its hold first '
    'and looks for the row in jobs_finished then, in one transaction that is rolled back where the row is not there. A step '
    'of pruning takes this table in share mode before it looks at the holds: it comes after that transaction and sees the '
    'hold, or came before it and the row is gone already.';
