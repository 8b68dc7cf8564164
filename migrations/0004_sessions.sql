-- What: browser sessions of the dashboard, each bound to the API key that opened it.
-- Why: a browser must not keep the key; a session ends by itself, on sign-out, and with its key.
-- Lock: new objects only; the foreign key takes SHARE ROW EXCLUSIVE on api_keys for the moment of its creation.

create table sessions (
    id         uuid primary key,
    key_id     uuid not null references api_keys on delete cascade,
    -- SHA-256 of the cookie's value; the value itself is with the browser only.
    token_hash bytea not null constraint sessions_token_hash_key unique,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    constraint sessions_token_hash_check check (octet_length(token_hash) = 32),
    constraint sessions_expires_at_check check (expires_at > created_at)
);
create index sessions_key_id on sessions (key_id, created_at);
create index sessions_expires_at on sessions (expires_at);
