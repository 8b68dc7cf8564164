-- What: regions, nodes, instance records, moves with their journal, copied keys, and routes.
-- Why: a record says in which region an instance may be written, a route says which box serves it, and a move changes
--      the one without ever having two.
-- Lock: new objects only.

create table regions (
    code               text primary key,
    name               text not null,
    -- Armed: instances may be placed here. Dormant: armed, but hidden from pickers.
    armed              boolean not null default false,
    dormant            boolean not null default false,
    home               boolean not null default false,
    is_default         boolean not null default false,
    -- Where the region's replicas stand; null until known. A box that publishes another bucket is refused.
    data_bucket        text,
    data_bucket_region text,
    -- Rises with every change that the region's boxes and edges must notice.
    serial             bigint not null default 0,
    created_at         timestamptz not null,
    constraint regions_code_check check (code ~ '^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$'),
    constraint regions_bucket_check check ((data_bucket is null) = (data_bucket_region is null))
);
create unique index regions_one_default on regions (is_default) where is_default;

create table nodes (
    id                 uuid primary key,
    identity           text not null constraint nodes_identity_key unique,
    region             text not null references regions,
    -- {"exec": true, ...}: what the box can do, in its own words.
    capabilities       jsonb not null default '{}',
    -- Published by the box; equal to its region's.
    data_bucket        text,
    data_bucket_region text,
    created_at         timestamptz not null,
    seen_at            timestamptz not null,
    constraint nodes_identity_check check (char_length(identity) between 1 and 200),
    constraint nodes_capabilities_check check (jsonb_typeof(capabilities) = 'object')
);
create index nodes_region on nodes (region);

create table instances (
    id              uuid primary key,
    app             text not null,
    host            text not null constraint instances_host_key unique,
    kind            text not null,
    backing         text not null,
    role            text not null,
    placement       text,
    pool            text not null default '',
    hibernate       boolean not null default true,
    region          text not null references regions,
    replica_regions text[] not null default '{}',
    env             jsonb not null default '{}',
    -- Fields of the record that this version does not know; they survive every write.
    extra           jsonb not null default '{}',
    -- While set, the staging of this move is authoritative for the next landing in that region, and nowhere else.
    pending_landing_move uuid,
    pending_landing_to   text references regions,
    revision        bigint not null default 1,
    created_at      timestamptz not null,
    constraint instances_kind_check check (kind in ('instance', 'unit', 'addr', 'static', 'everywhere')),
    constraint instances_role_check check (role in ('original', 'replica')),
    constraint instances_env_check check (jsonb_typeof(env) = 'object'),
    constraint instances_extra_check check (jsonb_typeof(extra) = 'object'),
    constraint instances_pending_landing_check check ((pending_landing_move is null) = (pending_landing_to is null))
);
create index instances_app_host on instances (app, host);
create index instances_region on instances (region, host);

create table moves (
    id                   uuid primary key,
    instance_id          uuid not null references instances,
    host                 text not null,
    from_region          text not null references regions,
    to_region            text not null references regions,
    state                text not null,
    requested_at         timestamptz not null,
    ready_at             timestamptz,
    -- Where the staging stands: read in the edges document at the first round, fixed from then on.
    target_bucket        text,
    target_bucket_region text,
    -- Rounds begun.
    round                integer not null default 0,
    -- How the newest round ended, and why the move is not ready.
    status               jsonb not null default '{}',
    finished_at          timestamptz,
    outcome              text,
    constraint moves_state_check check (state in ('preparing', 'ready', 'cutting', 'aborting')),
    constraint moves_outcome_check check (outcome in ('moved', 'aborted')),
    constraint moves_regions_check check (from_region <> to_region),
    constraint moves_ready_check check (state not in ('ready', 'cutting') or ready_at is not null),
    constraint moves_target_check check ((target_bucket is null) = (target_bucket_region is null)),
    constraint moves_finished_check check ((finished_at is null) = (outcome is null))
);
-- At most one open move a host, whoever asks and how often at once.
create unique index moves_one_open on moves (host) where finished_at is null;
create index moves_instance_id on moves (instance_id, id);
-- Pages show moves in flight before the many that are over.
create index moves_open on moves (id) where finished_at is null;

-- The journal of a move: one row a step, written under the fence of the lease that took it. A step that was begun and
-- never ended stays open: its lease was lost, and the next one began anew.
create table move_steps (
    id         bigint generated always as identity primary key,
    move_id    uuid not null references moves,
    job_id     uuid not null,
    fence      bigint not null,
    step       text not null,
    round      integer,
    iterations integer,
    started_at timestamptz not null,
    ended_at   timestamptz,
    outcome    text,
    evidence   jsonb not null default '{}',
    constraint move_steps_ended_check check ((ended_at is null) = (outcome is null))
);
create index move_steps_move_id on move_steps (move_id, id);

-- What was copied, key by key: the proof that the staging equals the source. An ETag is a name, not a checksum.
create table move_keys (
    move_id     uuid not null references moves,
    pair        smallint not null,
    -- The order of bytes, which is the order of S3's listings: the mirror merges both by one cursor each.
    key         text collate "C" not null,
    src_etag    text not null,
    size        bigint not null,
    copied_etag text not null,
    primary key (move_id, pair, key),
    constraint move_keys_size_check check (size >= 0)
);

create table routes (
    host        text primary key,
    instance_id uuid not null references instances,
    node_id     uuid not null references nodes,
    status      text not null,
    created_at  timestamptz not null,
    constraint routes_instance_id_key unique (instance_id),
    constraint routes_status_check check (status in ('landing', 'serving', 'moving'))
);
create index routes_node_id on routes (node_id);
