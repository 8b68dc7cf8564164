-- What: the clock, identities, API keys, idempotency keys and the audit trail.
-- Why: every later table is read by the database's clock, and every change has an actor.
-- Lock: new objects only; nothing that exists is locked.

-- The one reading of time in SQL, always called as (select lh_now()): a scalar subquery is computed once
-- for a statement and stays an index condition, which a bare volatile call does not.
-- The test schema replaces this function with one that adds a shiftable offset.
create function lh_now() returns timestamptz
    language sql volatile parallel safe
    as $$ select clock_timestamp() $$;

create table identities (
    id          uuid primary key,
    name        text not null constraint identities_name_key unique,
    kind        text not null constraint identities_kind_check check (kind in ('person', 'app', 'node', 'instance')),
    roles       text[] not null default '{}',
    created_at  timestamptz not null,
    disabled_at timestamptz,
    constraint identities_name_check check (char_length(name) between 1 and 200)
);

create table api_keys (
    id          uuid primary key,
    identity_id uuid not null references identities,
    name        text not null,
    -- SHA-256 of the secret; the secret itself is shown once and kept nowhere.
    secret_hash bytea not null constraint api_keys_secret_hash_check check (octet_length(secret_hash) = 32),
    -- Narrows the identity's permissions; null leaves them as the roles give them.
    permissions text[],
    -- Narrows what the key may see: {"app": ["acme"], "node": [...]}; an absent dimension is not narrowed.
    scopes      jsonb not null default '{}',
    created_at  timestamptz not null,
    expires_at  timestamptz,
    revoked_at  timestamptz
);
create index api_keys_identity_id on api_keys (identity_id);

-- Q-022: the stored answer of an accepted call, written in the transaction of its effect.
create table idempotency_keys (
    identity_id  uuid not null references identities,
    route        text not null,
    key          text not null constraint idempotency_keys_key_check check (char_length(key) between 1 and 255),
    request_hash bytea not null,
    status       smallint not null,
    -- Text, since a replay answers byte by byte what was answered first.
    body         text not null,
    created_at   timestamptz not null,
    primary key (identity_id, route, key)
);
create index idempotency_keys_created_at on idempotency_keys (created_at);

create table audit_events (
    id           bigint generated always as identity primary key,
    at           timestamptz not null,
    identity_id  uuid,
    key_id       uuid,
    action       text not null,
    subject_kind text not null,
    subject      text not null,
    reason       text,
    detail       jsonb not null default '{}'
);
create index audit_events_subject on audit_events (subject_kind, subject, id);

create function audit_events_append_only() returns trigger
    language plpgsql
    as $$ begin raise exception 'audit events are append-only' using errcode = 'LH002'; end $$;
create trigger audit_events_append_only
    before update or delete or truncate on audit_events
    for each statement execute function audit_events_append_only();
