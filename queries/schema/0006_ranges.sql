-- +goose Up

-- Most updates leave the rows of a resource in index_date, index_number,
-- index_quantity and index_string as they are. ranges is a hash of those rows and
-- of the version that they were compared for, so that a writer who does not know
-- the column makes it wrong by what it does and not only by what it leaves; 0 is
-- no hash.
ALTER TABLE resource ADD COLUMN ranges bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE resource DROP COLUMN ranges;
