-- The tables of leasehold. Run this for each database, as the owner of the schema. You can run it again at any time.
DO $leasehold$ BEGIN
-- Programs that run it at the same time take turns. Without that, IF NOT EXISTS may fail.
PERFORM pg_advisory_xact_lock(hashtext('leasehold'), 0);
CREATE SCHEMA IF NOT EXISTS leasehold;

-- One row for each key that is in use, or was until some minutes ago.
CREATE TABLE IF NOT EXISTS leasehold.locks (
    key bytea PRIMARY KEY,
    version bigint NOT NULL,
    state bytea NOT NULL,
    -- In µs since 1970.
    keep_until bigint NOT NULL
) WITH (
    fillfactor = 50,
    -- A queue of some dozen waiters stays within the row. To move it out of the row takes longer than to write it.
    toast_tuple_target = 4080
);

-- Finds the rows to remove. It is cheap: keep_until of a key in use changes about every 75 s.
CREATE INDEX IF NOT EXISTS locks_keep_until ON leasehold.locks (keep_until);
END $leasehold$;
