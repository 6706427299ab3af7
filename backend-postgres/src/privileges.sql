GRANT USAGE ON SCHEMA leasehold TO locks;
GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.locks TO locks;
-- For transactions that call leasehold.fence:
GRANT SELECT, INSERT, UPDATE ON leasehold.fences TO locks;
