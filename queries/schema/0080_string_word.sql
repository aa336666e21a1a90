-- +goose Up

-- word: the row is a string from a further word on, by which the string is found. It is
-- part of another row (under fhir.WordKey), so :contains needs no trigrams of it.
ALTER TABLE index_string ADD COLUMN word boolean NOT NULL DEFAULT false;
DROP INDEX index_string_contains;
CREATE INDEX index_string_contains ON index_string USING gin (text gin_trgm_ops) WHERE NOT word;

-- +goose Down
DROP INDEX index_string_contains;
ALTER TABLE index_string DROP COLUMN word;
CREATE INDEX index_string_contains ON index_string USING gin (text gin_trgm_ops);
