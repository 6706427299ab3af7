-- Fencing: what transactions need that work under a lock. You can run this again at any time, also to upgrade.
CREATE SCHEMA IF NOT EXISTS leasehold;

-- The highest fencing token that a transaction has carried, for each key.
CREATE TABLE IF NOT EXISTS leasehold.fences (
    key bytea PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- The form before there were prefixes.
DROP FUNCTION IF EXISTS leasehold.fence(text, bigint);

-- Fails unless the token is at least as high as every token before it. Call it first in each transaction
-- that reads or writes what the lock protects: it then sees each write of an older token, or there is none.
CREATE OR REPLACE FUNCTION leasehold.fence(name text, new_token bigint, key_prefix text DEFAULT '') RETURNS void
LANGUAGE plpgsql SET search_path = leasehold, pg_temp AS $$
DECLARE
    row_key bytea := convert_to(name, 'UTF8');
    writer xid;
BEGIN
    -- The transaction has written before, and so perhaps read.
    IF pg_current_xact_id_if_assigned()::text <> coalesce(current_setting('leasehold.fenced', true), '') THEN
        RAISE EXCEPTION 'leasehold.fence must come first in its transaction' USING ERRCODE = 'LH002';
    END IF;
    -- No text contains the byte FF, so each prefix and name has a row of its own.
    IF key_prefix <> '' THEN
        row_key := convert_to(key_prefix, 'UTF8') || '\xff' || row_key;
    END IF;
    -- An older transaction that is not finished keeps the row locked. This one waits for it.
    INSERT INTO leasehold.fences AS fence (key, token) VALUES (row_key, new_token)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
    RETURNING fence.xmin INTO writer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the fencing token % is stale', new_token USING ERRCODE = 'LH001';
    END IF;
    -- A savepoint has a transaction id of its own. If the program rolls back to it, a failure is undone too, and
    -- the transaction goes on.
    IF writer <> pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'leasehold.fence must not be called within a savepoint or a block with EXCEPTION'
        USING ERRCODE = 'LH002';
    END IF;
    PERFORM set_config('leasehold.fenced', pg_current_xact_id()::text, true);
END
$$;
