-- What: how long a cut may be predicted to freeze an instance, and what was predicted when it was let be cut.
-- Why: a cut beyond what the tenant can bear is refused before anything stops, and a receipt can tell the predicted freeze
--      beside the one that was measured.
-- Lock: moves, exclusively, for the change of its catalogue entry and one look at its rows.

alter table moves
    -- The longest freeze that the cut may be predicted to take; null: any.
    add column freeze_budget_seconds integer,
    -- What was predicted when it was let be cut; null before, and where no cut between the two regions predicted anything.
    add column predicted_freeze_ms bigint,
    -- Somebody let it be cut over its budget.
    add column cut_forced boolean not null default false,
    add constraint moves_freeze_budget_check check (freeze_budget_seconds between 1 and 86400),
    add constraint moves_predicted_freeze_check check (
        predicted_freeze_ms is null or (predicted_freeze_ms >= 0 and cut_at is not null)
    );
-- The newest cuts between two regions, of which a freeze is predicted.
create index moves_landed on moves (from_region, to_region, id) where landed_at is not null;
