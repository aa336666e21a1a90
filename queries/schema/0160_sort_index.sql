-- +goose Up

-- Orders that an administrator wants the index to keep: of a token, reference or uri
-- the index has hashes, whose order tells nothing. Resources of the type have entries
-- in index_string with what _sort compares, under a key of their own.
--   key      that of the entries that there are, or that a job makes
--   removed  when it was taken back: searches do without since then. Entries are
--            written until no search may be under way that reads them; then the row
--            goes, and a job takes them away.
CREATE TABLE sort_index (
    resource_type text        NOT NULL COLLATE "C",
    code          text        NOT NULL COLLATE "C",
    key           bigint      NOT NULL,
    created       timestamptz NOT NULL,
    removed       timestamptz,
    PRIMARY KEY (resource_type, code)
);

-- Of such an entry word is null: no trigrams of it. Many resources have the same code,
-- and come by rid in both directions.
ALTER TABLE index_string ALTER COLUMN word DROP NOT NULL;
CREATE INDEX index_string_descending ON index_string (key, left(text, 128) DESC, rid) WHERE word IS NULL;

-- Why there is a job, where neither parameters nor keys say it.
ALTER TABLE reindex_job ADD COLUMN reason text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE reindex_job DROP COLUMN reason;
DROP INDEX index_string_descending;
DELETE FROM index_string WHERE word IS NULL;
ALTER TABLE index_string ALTER COLUMN word SET NOT NULL;
DROP TABLE sort_index;
