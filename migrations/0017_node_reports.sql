-- What: the last report of each node of what it owns, and when a machine was last heard by a report.
-- Why: a machine that was rebuilt asks what the one before it owned, beside what is wanted of it, and so finds orphans. The
--      record is a backup and never a source: nothing decides from it. A node that never reported has no row, so that nobody
--      takes it for one that owns nothing.
-- Lock: nodes, exclusively, for its catalogue entry alone: the column is null and no row is written again. The new table's
--       foreign key takes SHARE ROW EXCLUSIVE on nodes for the moment of its creation.

alter table nodes
    -- Moved by every report of the machine, whatever became of it. Apart from seen_at, which a worker's beat moves and by
    -- which a box is placed on: a machine may report while no worker of it could land anything.
    add column heard_at timestamptz;

create table node_reports (
    node_id     uuid primary key references nodes,
    -- The order of reports: which machine sent it, and which of its reports it is.
    incarnation bigint not null,
    seq         bigint not null,
    -- [{"kind": "instance", "id": "…"}, …]; never null: a node that owns nothing reported an empty list. No outcome stands
    -- here, since a report replaces the row only where the node applied all of it.
    items       jsonb not null,
    -- When the node says that it was so, by its own clock: a claim, compared with nothing.
    reported_at timestamptz not null,
    -- By the database's clock: the record's age is counted from here.
    received_at timestamptz not null,
    constraint node_reports_order_check check (incarnation >= 1 and seq >= 1),
    constraint node_reports_items_check check (jsonb_typeof(items) = 'array')
);
