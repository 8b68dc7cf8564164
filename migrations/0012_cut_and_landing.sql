-- What: what a cut, a landing and an abort need: the proof of the tail, the moments of the steps that cannot be taken back,
--       old replicas that are kept for a while, a nudge of a job that runs, and where a child answers.
-- Why: a move that is killed anywhere goes on from these rows, and its region changes once, with the proof beside it.
-- Lock: jobs, moves, instances and routes, exclusively, for the change of their catalogue entries, and for one look at
--       instances, moves and routes.

-- Somebody asked the holder of this fence to look again soon: a snooze under it ends at once.
alter table jobs add column nudged_fence bigint;

alter table moves
    -- The platform closes the route and cuts by itself as soon as the move is ready.
    add column cut_auto boolean not null default false,
    add column cut_at timestamptz,
    add column aborted_at timestamptz,
    -- A fresh listing of the staging was empty for the first time after the abort.
    add column swept_at timestamptz,
    -- What was proven at the cut: the newest transaction, and the file that a restore of it must equal.
    add column tail_txid text,
    add column tail_sha256 text,
    add column tail_size bigint,
    -- From here on the source's own database may be gone.
    add column purge_began_at timestamptz,
    -- The target serves.
    add column landed_at timestamptz,
    -- Nothing of this move is staged any more.
    add column staging_deleted_at timestamptz,
    add constraint moves_tail_check check (
        (tail_txid is null) = (tail_sha256 is null) and (tail_txid is null) = (tail_size is null)
        and tail_txid ~ '^[0-9a-f]{16}$' and tail_sha256 ~ '^[0-9a-f]{64}$' and tail_size > 0
    ),
    -- Nothing is deleted, and no region changes, before the tail is proven.
    add constraint moves_purge_check check (purge_began_at is null or tail_txid is not null),
    add constraint moves_moved_check check (outcome is distinct from 'moved' or purge_began_at is not null),
    add constraint moves_landed_check check (landed_at is null or outcome = 'moved');
-- Moves whose staging a landing still has to delete.
create index moves_staged on moves (id) where outcome = 'moved' and staging_deleted_at is null;

alter table instances
    -- Not running, and nobody started it since.
    add column parked boolean not null default false,
    -- When a box first served it. Only a record that no box ever served may begin with nothing.
    add column landed_at timestamptz;
update instances i set landed_at = r.created_at from routes r where r.instance_id = i.id;

alter table routes
    -- What holds a landing up: {"code", "message", "permanent"}, and since when.
    add column held jsonb,
    add column held_since timestamptz,
    -- Where the child answers; null while it does not run.
    add column address text,
    add constraint routes_held_check check ((held is null) = (held_since is null));
-- Every page asks whether some landing is held up.
create index routes_held on routes (host) where held is not null;

-- What a move left behind in a region: its old replica, kept for a while after the landing, or a staging that will never
-- land. It is purged, with a receipt.
create table remains (
    move_id       uuid not null references moves,
    instance_id   uuid not null references instances,
    host          text not null,
    region        text not null references regions,
    bucket        text not null,
    bucket_region text not null,
    prefix        text not null,
    -- Null until the landing serves.
    keep_until    timestamptz,
    purge_began_at timestamptz,
    -- A fresh listing of it was empty for the first time.
    emptied_at    timestamptz,
    purged_at     timestamptz,
    -- What the purge deleted, and what it could not.
    receipt       jsonb,
    primary key (move_id, region),
    constraint remains_purged_check check ((purged_at is null) = (receipt is null)),
    constraint remains_purge_check check (purge_began_at is null or keep_until is not null)
);
create index remains_host on remains (host, region);
create index remains_due on remains (keep_until) where purged_at is null;
