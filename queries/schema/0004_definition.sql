-- +goose Up

-- What profiles and value sets say is kept in memory by every server. definitions
-- grows with every write of one, in its transaction: servers read it with the
-- version of the search parameters, and drop what they keep when it is another one.
ALTER TABLE search_registry ADD COLUMN definitions bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE search_registry DROP COLUMN definitions;
