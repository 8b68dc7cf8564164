-- What: a check of a lease that fails the transaction around it.
-- Why: a handler may settle its job in the transaction of its own change. Under a stale fence that change must not be
-- kept, whatever the program makes of the error: one that the server raises leaves nothing to commit.
-- Lock: new objects only.

-- Holds the job's row until the transaction ends. Raises LH001 where the lease is not the job's, and LH004 where its
-- holder settled under it before: that transaction committed and its answer was lost, so this one must not come on top.
create function lh_require_lease(asked uuid, held bigint) returns void
    language plpgsql
    as $$
begin
    perform from jobs where id = asked and fence = held and state = 'running' for update;
    if found then
        return;
    end if;
    if exists (select from jobs where id = asked and settled_fence = held)
       or exists (select from jobs_finished where id = asked and settled_fence = held) then
        raise exception 'job % was settled under fence % before', asked, held using errcode = 'LH004';
    end if;
    raise exception 'the lease on job % under fence % is lost', asked, held using errcode = 'LH001';
end $$;
