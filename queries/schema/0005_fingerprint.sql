-- +goose Up

-- What the compiled search parameters leave of a resource in the index depends on
-- the build of the server. fingerprint is a hash of that (search.Registry.
-- Fingerprints) for each resource type: by the build that indexed what is stored
-- last, or is about to by a job. A type that is not here was indexed by nobody
-- knows which.
CREATE TABLE index_fingerprint (
    resource_type text   PRIMARY KEY COLLATE "C",
    fingerprint   bigint NOT NULL
);

-- The hash over all of them, 0 before any server was there. Servers read it with
-- the version, and one of another build neither searches nor writes. Whoever
-- changes it raises the version too: no index that the other build has made
-- passes the comparison then.
ALTER TABLE search_registry ADD COLUMN fingerprint bigint NOT NULL DEFAULT 0;

-- The unit before the value: a comparison in a unit reads that unit alone.
DROP INDEX index_quantity_low, index_quantity_high;
CREATE INDEX index_quantity_low ON index_quantity (key, unit, low, rid);
CREATE INDEX index_quantity_high ON index_quantity (key, unit, high, rid) WHERE high IS NOT NULL;

-- +goose Down
DROP INDEX index_quantity_low, index_quantity_high;
CREATE INDEX index_quantity_low ON index_quantity (key, low, unit, rid);
CREATE INDEX index_quantity_high ON index_quantity (key, high, unit, rid) WHERE high IS NOT NULL;
ALTER TABLE search_registry DROP COLUMN fingerprint;
DROP TABLE index_fingerprint;
