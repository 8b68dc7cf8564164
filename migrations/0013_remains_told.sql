-- What: what a purge has deleted so far, and replicas that are an instance's own again, apart from those that are purged.
-- Why: a receipt tells how much went, over all runs of the purge; and a replica that another landing took over was never
--      deleted, so it has no time of a purge and no receipt.
-- Lock: remains, exclusively, for its catalogue entry and for one pass over it.

alter table remains
    -- Keys, and versions of keys, that a purge deleted: at least these, as one that died may have deleted more.
    add column deleted_keys bigint not null default 0,
    add column deleted_versions bigint not null default 0,
    -- Since when it is the instance's own again, and the move that landed there; null where it was pointed back by hand.
    add column superseded_at timestamptz,
    add column superseded_by uuid references moves;

update remains
   set superseded_at = purged_at, superseded_by = (receipt ->> 'superseded_by')::uuid, purged_at = null, receipt = null
 where receipt ? 'superseded_by'
    or receipt ? 'pointed_back';

alter table remains
    add constraint remains_superseded_check check (
        superseded_at is null and superseded_by is null or superseded_at is not null and purge_began_at is null
    );
drop index remains_due;
create index remains_due on remains (keep_until) where purged_at is null and superseded_at is null;
