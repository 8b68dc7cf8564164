-- What: indexes that lists of jobs and of acts follow, and a revision of API keys.
-- Why: a page of rare jobs or of rare acts must not read the whole history; whoever revokes a key may name what they saw.
-- Lock: jobs_finished and audit_events, SHARE, while their indexes are built: settles and audited acts wait for it.
--       api_keys, exclusively, for the change of its catalogue entries alone.

-- The ends that operators look for among many that went well.
create index jobs_finished_ended on jobs_finished (id) where state in ('cancelled', 'discarded');

drop index audit_events_subject;
create index audit_events_subject on audit_events (subject, id);
create index audit_events_subject_kind on audit_events (subject_kind, id);

alter table api_keys add column revision bigint not null default 1;
