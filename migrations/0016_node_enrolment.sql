-- What: the record of a node as operators keep it, and what a machine proves itself by: enrolment tokens, public keys,
--       nonces and sessions.
-- Why: what a machine becomes is settled in the record when its token is issued, and a rebuilt machine shuts out the one
--      before it in the statement that lets it in.
-- Lock: nodes, exclusively, for its catalogue entry and one look at its rows: the new columns have constant defaults, so
--       none is written again. The new tables' foreign keys take SHARE ROW EXCLUSIVE on nodes and identities for the moment
--       of their creation.

alter table nodes
    -- Null: an operator made the record, and its machine was never heard. A box that registers itself is heard at once.
    alter column seen_at drop not null,
    -- Null for a box that registered itself: nobody said.
    add column hostname text,
    add column display_name text,
    -- A decommissioned node is a tombstone: it keeps its row for ever and never comes back.
    add column lifecycle text not null default 'active',
    add column enabled boolean not null default true,
    -- Rises with each change of lifecycle, enabled, names or credentials, never with heartbeats.
    add column generation bigint not null default 1,
    -- Rises with each redemption: credentials of an older one prove nothing.
    add column incarnation bigint not null default 0,
    add constraint nodes_lifecycle_check check (lifecycle in ('active', 'decommissioned')),
    add constraint nodes_hostname_check check (char_length(hostname) between 1 and 253),
    add constraint nodes_display_name_check check (char_length(display_name) between 1 and 200),
    add constraint nodes_generation_check check (generation >= 1 and incarnation >= 0);

create table node_enrolment_tokens (
    id            uuid primary key,
    node_id       uuid not null references nodes,
    -- SHA-256 of the secret, which has 256 random bits: a slow hash would buy nothing.
    token_sha256  bytea not null constraint node_enrolment_tokens_token_sha256_key unique,
    issued_at     timestamptz not null,
    issued_by     uuid not null references identities,
    expires_at    timestamptz not null,
    -- At most one of these: each ends the token for good.
    spent_at      timestamptz,
    superseded_at timestamptz,
    revoked_at    timestamptz,
    constraint node_enrolment_tokens_token_sha256_check check (octet_length(token_sha256) = 32),
    constraint node_enrolment_tokens_expires_at_check check (expires_at > issued_at),
    constraint node_enrolment_tokens_end_check check (num_nonnulls(spent_at, superseded_at, revoked_at) <= 1)
);
-- At most one that was not ended; one whose time is over stands here until the next one supersedes it.
create unique index node_enrolment_tokens_one_live on node_enrolment_tokens (node_id)
    where spent_at is null and superseded_at is null and revoked_at is null;

create table node_credentials (
    id          uuid primary key,
    node_id     uuid not null references nodes,
    incarnation bigint not null,
    -- Ed25519. Never used twice: a machine that enrols again makes another.
    public_key  bytea not null constraint node_credentials_public_key_key unique,
    created_at  timestamptz not null,
    revoked_at  timestamptz,
    constraint node_credentials_public_key_check check (octet_length(public_key) = 32),
    constraint node_credentials_incarnation_key unique (node_id, incarnation)
);
create unique index node_credentials_one_live on node_credentials (node_id) where revoked_at is null;

-- What a machine must sign to open a session. Any address may ask for one, so it refers to no node: whether the node
-- exists is told to nobody.
create table node_nonces (
    nonce      bytea primary key,
    node_id    uuid not null,
    expires_at timestamptz not null,
    constraint node_nonces_nonce_check check (octet_length(nonce) = 32)
);
create index node_nonces_expires_at on node_nonces (expires_at);

create table node_sessions (
    id            uuid primary key,
    node_id       uuid not null references nodes,
    credential_id uuid not null references node_credentials,
    incarnation   bigint not null,
    -- SHA-256 of the bearer; the bearer itself is with the machine only.
    token_sha256  bytea not null constraint node_sessions_token_sha256_key unique,
    created_at    timestamptz not null,
    expires_at    timestamptz not null,
    constraint node_sessions_token_sha256_check check (octet_length(token_sha256) = 32),
    constraint node_sessions_expires_at_check check (expires_at > created_at)
);
create index node_sessions_node_id on node_sessions (node_id, created_at);
create index node_sessions_expires_at on node_sessions (expires_at);
