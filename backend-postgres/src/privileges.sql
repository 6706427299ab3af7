DO $leasehold$ BEGIN
-- Programs that run it at the same time take turns. Without that, one of two grants fails.
PERFORM pg_advisory_xact_lock(hashtext('leasehold'), 0);
GRANT USAGE ON SCHEMA leasehold TO locks;
GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.locks TO locks;
-- For fenced transactions:
GRANT SELECT, INSERT, UPDATE ON leasehold.fences TO locks;
-- For jobs whose effects happen once:
GRANT SELECT, INSERT, UPDATE ON leasehold.jobs TO locks;
END $leasehold$;
