-- Fencing: what transactions need that work under a lock. You can run this again at any time, also to upgrade.
DO $leasehold$ BEGIN
-- Programs that run it at the same time take turns. Without that, one of two that replace a function fails.
PERFORM pg_advisory_xact_lock(hashtext('leasehold'), 0);
CREATE SCHEMA IF NOT EXISTS leasehold;

-- The highest fencing token that has claimed a key, for each key.
CREATE TABLE IF NOT EXISTS leasehold.fences (
    key bytea PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- The older forms. They claimed in each transaction, and so again after a claim that was rolled back.
DROP FUNCTION IF EXISTS leasehold.fence(text, bigint);
DROP FUNCTION IF EXISTS leasehold.fence(text, bigint, text);

-- What `claim` and `fence` do: check the token, and keep the key's row locked until the transaction ends.
CREATE OR REPLACE FUNCTION leasehold.lock_fence(
    name text, new_token bigint, key_prefix text, max_wait_ms integer, claims boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = leasehold, pg_temp AS $$
DECLARE
    row_key bytea := convert_to(name, 'UTF8');
    own_wait text := current_setting('lock_timeout');
    -- The transaction and the command of the last fence.
    last_xid text := split_part(coalesce(current_setting('leasehold.fenced', true), ''), ':', 1);
    last_command text := split_part(current_setting('leasehold.fenced', true), ':', 2);
    highest bigint;
    writer xid;
    command cid;
BEGIN
    IF name IS NULL OR key_prefix IS NULL OR coalesce(new_token, 0) < 1 OR coalesce(max_wait_ms, 0) < 1 THEN
        RAISE EXCEPTION 'a fence needs a key, a token above 0, a prefix that is not NULL, and a time to wait'
        USING ERRCODE = '22023';
    END IF;
    -- The transaction has written before, and so perhaps read.
    IF pg_current_xact_id_if_assigned()::text <> last_xid THEN
        RAISE EXCEPTION 'leasehold.fence must come first in its transaction' USING ERRCODE = 'LH002';
    END IF;
    -- No text contains the byte FF, so each prefix and name has a row of its own.
    IF key_prefix <> '' THEN
        row_key := convert_to(key_prefix, 'UTF8') || decode('ff', 'hex') || row_key;
    END IF;
    -- An older transaction that is not finished keeps the row locked. This one waits for it.
    PERFORM set_config('lock_timeout', max_wait_ms::text, true);
    IF claims THEN
        INSERT INTO leasehold.fences AS fence (key, token) VALUES (row_key, new_token)
        ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
        RETURNING fence.xmin, fence.cmin INTO writer, command;
    ELSE
        UPDATE leasehold.fences AS fence SET token = new_token
        WHERE fence.key = row_key AND fence.token = new_token
        RETURNING fence.xmin, fence.cmin INTO writer, command;
    END IF;
    IF NOT FOUND THEN
        SELECT token INTO highest FROM leasehold.fences WHERE key = row_key;
        IF highest > new_token THEN
            RAISE EXCEPTION 'the fencing token % of % is stale', new_token, name
            USING ERRCODE = 'LH001', DETAIL = name;
        END IF;
        RAISE EXCEPTION '% is not claimed with the fencing token %', name, new_token
        USING ERRCODE = 'LH003', DETAIL = name,
            HINT = 'Call leasehold.claim before you read. If you have, its transaction was rolled back, or lost.';
    END IF;
    PERFORM set_config('lock_timeout', own_wait, true);
    -- A savepoint has a transaction id of its own. If the program rolls back to it, a failure is undone too, and
    -- the transaction goes on.
    IF writer <> pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'leasehold.fence must not be called within a savepoint or a block with EXCEPTION'
        USING ERRCODE = 'LH002';
    END IF;
    -- Each command that writes has the next number. So something was written since the last fence.
    IF last_xid <> '' AND last_command::bigint + 1 <> command::text::bigint THEN
        RAISE EXCEPTION 'leasehold.fence must come before everything that the transaction writes'
        USING ERRCODE = 'LH002';
    END IF;
    PERFORM set_config('leasehold.fenced', pg_current_xact_id()::text || ':' || command::text, true);
END
$$;

-- Claims a key for a fencing token, unless a higher one has claimed it. Call it once, before you read what the lock
-- protects.
CREATE OR REPLACE FUNCTION leasehold.claim(
    name text, new_token bigint, key_prefix text DEFAULT '', max_wait_ms integer DEFAULT 10000
) RETURNS void
LANGUAGE sql AS $$ SELECT leasehold.lock_fence($1, $2, $3, $4, true) $$;

-- Fails unless the key is still claimed with this token. Call it first in each transaction that reads or writes what
-- the lock protects: no other holder has written since the claim.
CREATE OR REPLACE FUNCTION leasehold.fence(
    name text, new_token bigint, key_prefix text DEFAULT '', max_wait_ms integer DEFAULT 10000
) RETURNS void
LANGUAGE sql AS $$ SELECT leasehold.lock_fence($1, $2, $3, $4, false) $$;

-- The fire time up to which a job is done, for each job. In milliseconds since 1970.
CREATE TABLE IF NOT EXISTS leasehold.jobs (
    key bytea PRIMARY KEY,
    done bigint NOT NULL
);

-- Records that the occurrence of a job is done, in the transaction that has its effects. Call it first in that
-- transaction. Fails as leasehold.claim does, with LH004 if this occurrence or a later one is done, and with LH005 if
-- one of the two is more than two days ahead of the clock: a clock was wrong, and must not silence the job.
CREATE OR REPLACE FUNCTION leasehold.done(name text, fire bigint, new_token bigint, key_prefix text DEFAULT '')
RETURNS void LANGUAGE plpgsql SET search_path = leasehold, pg_temp AS $$
DECLARE
    row_key bytea := convert_to(name, 'UTF8');
    latest bigint := extract(epoch FROM clock_timestamp() + interval '2 days') * 1000;
    last_done bigint;
BEGIN
    -- Nobody else is between this line and the end of the transaction.
    PERFORM leasehold.claim(name, new_token, key_prefix);
    IF key_prefix <> '' THEN
        row_key := convert_to(key_prefix, 'UTF8') || decode('ff', 'hex') || row_key;
    END IF;
    SELECT done INTO last_done FROM leasehold.jobs WHERE key = row_key;
    IF greatest(last_done, fire) > latest THEN
        RAISE EXCEPTION 'the fire time % of % is ahead of the clock', greatest(last_done, fire), name
        USING ERRCODE = 'LH005', DETAIL = name,
            HINT = 'If it is recorded, delete the row of the job in leasehold.jobs. The job can then run again.';
    END IF;
    IF fire <= last_done THEN
        RAISE EXCEPTION '% is done up to the fire time %', name, last_done
        USING ERRCODE = 'LH004', DETAIL = name;
    END IF;
    INSERT INTO leasehold.jobs AS job (key, done) VALUES (row_key, fire)
    ON CONFLICT (key) DO UPDATE SET done = excluded.done;
END
$$;
END $leasehold$;
