-- The orders that the index keeps because an administrator wants it.

-- name: SortIndexes :many
SELECT x.resource_type, x.code, x.key, x.created, (x.removed IS NOT NULL)::boolean AS removed
FROM sort_index x
ORDER BY x.resource_type, x.code;

-- name: InsertSortIndex :exec
INSERT INTO sort_index (resource_type, code, key, created)
VALUES (@resource_type, @code, @key, @created);

-- name: SetSortIndexKey :exec
UPDATE sort_index x
SET key = @key
WHERE x.resource_type = @resource_type AND x.code = @code;

-- SetSortIndexRemoved takes an index back from searches, or gives it to them again.
-- name: SetSortIndexRemoved :exec
UPDATE sort_index x
SET removed = CASE WHEN @removed::boolean THEN clock_timestamp() END
WHERE x.resource_type = @resource_type AND x.code = @code AND (x.removed IS NOT NULL) <> @removed::boolean;

-- DeleteSortIndexes deletes what was taken back so long ago, by the clock of the
-- database, and returns the types.
-- name: DeleteSortIndexes :many
DELETE FROM sort_index x
WHERE x.removed <= clock_timestamp() - make_interval(secs => @seconds::double precision)
RETURNING x.resource_type;
