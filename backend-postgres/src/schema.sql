-- The tables of leasehold. Run this once for each database, as the owner of the schema.
CREATE SCHEMA IF NOT EXISTS leasehold;

-- One row for each key that is in use, or was until some minutes ago.
CREATE TABLE leasehold.locks (
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
CREATE INDEX locks_keep_until ON leasehold.locks (keep_until);
