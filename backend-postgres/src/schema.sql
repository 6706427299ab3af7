-- The tables of leasehold. Run this once for each database, as the owner of the schema.
CREATE SCHEMA leasehold;

-- One row for each key that is in use, or was until some minutes ago.
CREATE TABLE leasehold.locks (
    key bytea PRIMARY KEY,
    version bigint NOT NULL,
    state bytea NOT NULL,
    -- In µs since 1970. No index: updates then stay within their page.
    keep_until bigint NOT NULL
) WITH (fillfactor = 50);

-- The highest fencing token that a transaction has carried, for each key.
CREATE TABLE leasehold.fences (
    key bytea PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- Fails unless the token is at least as high as every token before it. Call it in the transaction that
-- writes. The failure aborts the transaction.
CREATE FUNCTION leasehold.fence(name text, new_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = leasehold, pg_temp AS $$
BEGIN
    INSERT INTO leasehold.fences AS fence (key, token)
    VALUES (convert_to(name, 'UTF8'), new_token)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the fencing token % is stale', new_token USING ERRCODE = 'LH001';
    END IF;
END
$$;
