-- +goose Up

-- index_date and index_quantity have the entries of a key in parts, each of a million surrogates of a
-- type: an entry of resource rid is stored under key + (rid >> 20 & (1 << 28) - 1). New entries then go
-- to the pages of the last part, however many there are. A search asks all parts that it knows of, so
-- a part is announced some seconds before it is used (store/announce.go).
--   usable        numbers below this may be given out
--   announced     searches ask the parts below this
--   announced_at  when it was raised
ALTER TABLE rid_next ADD COLUMN usable bigint, ADD COLUMN announced bigint, ADD COLUMN announced_at timestamptz NOT NULL DEFAULT 'epoch';
UPDATE rid_next SET usable = ((next >> 20) + 1) << 20, announced = ((next >> 20) + 1) << 20;
ALTER TABLE rid_next ALTER COLUMN usable SET NOT NULL, ALTER COLUMN announced SET NOT NULL;

-- How many parts a type has before any of its resources is stored: more than one where surrogates of
-- types begin behind those of before.
-- +goose StatementBegin
CREATE FUNCTION parts_of_new_types() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
    'SELECT ((b.first_of_type + 524288) >> 20) + 1 FROM rid_block b';
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION parts_of_new_types;
ALTER TABLE rid_next DROP COLUMN usable, DROP COLUMN announced, DROP COLUMN announced_at;
