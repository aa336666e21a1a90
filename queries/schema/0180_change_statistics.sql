-- +goose Up

-- No plan asks what the arrays of the change log hold, and ANALYZE counted every element of 30,000 rows with some
-- hundred each: 1.7 s a time among 13,000 rows, at every tenth of growth. `written` and `xid` keep theirs.
ALTER TABLE change ALTER COLUMN rids SET STATISTICS 0, ALTER COLUMN refs SET STATISTICS 0,
    ALTER COLUMN versions SET STATISTICS 0, ALTER COLUMN methods SET STATISTICS 0;

-- +goose Down
ALTER TABLE change ALTER COLUMN rids SET STATISTICS -1, ALTER COLUMN refs SET STATISTICS -1,
    ALTER COLUMN versions SET STATISTICS -1, ALTER COLUMN methods SET STATISTICS -1;
