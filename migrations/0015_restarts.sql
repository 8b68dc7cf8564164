-- What: how often somebody asked that an instance's process starts anew.
-- Why: a box that finds a process of an older count ends it and starts another, whatever it saw in between: a park and a wake
--      that follow each other at once left the old process with its old environment.
-- Lock: instances, exclusively, for the change of its catalogue entry alone: a constant default writes no row.

alter table instances
    add column restarts bigint not null default 0;
