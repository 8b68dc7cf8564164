-- What: idempotency keys have 1 to 128 visible ASCII characters.
-- Why: a space or a control character in a key is a mistake of its caller, and the door refuses it alike.
-- Lock: idempotency_keys, exclusively, for the change of its catalogue entries alone: rows that stand are not read, and
--       are swept within 7 days.

alter table idempotency_keys
    drop constraint idempotency_keys_key_check,
    add constraint idempotency_keys_key_check check (key collate "C" ~ '^[!-~]{1,128}$') not valid;
