GRANT USAGE ON SCHEMA leasehold TO locks;
GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.locks TO locks;
-- For fenced transactions:
GRANT SELECT, INSERT, UPDATE ON leasehold.fences TO locks;
-- For jobs whose effects happen once:
GRANT SELECT, INSERT, UPDATE ON leasehold.jobs TO locks;
