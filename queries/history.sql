-- Versions, newest first. last_updated increases with every version of a
-- resource, so (last_updated, rid) names a version and is the cursor. With
-- at_only, what was superseded at or before current_after is left out.

-- name: InstanceHistory :many
WITH every AS (
    SELECT r.version, r.last_updated, r.method, r.body
    FROM resource r
    WHERE r.ref = @ref AND r.shard = @shard
    UNION ALL
    SELECT h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = @ref AND h.shard = @shard
), successor AS (
    SELECT e.*, lead(e.last_updated) OVER (ORDER BY e.version) AS superseded
    FROM every e
)
SELECT s.version, s.last_updated, s.method, s.body
FROM successor s
WHERE s.last_updated >= @since::timestamptz AND (s.last_updated, 0::bigint) < (@before::timestamptz, @before_rid::bigint)
    AND (NOT @at_only::boolean OR s.superseded IS NULL OR s.superseded > @current_after::timestamptz)
ORDER BY s.version DESC
LIMIT @count;

-- InstanceHistoryNewer reads towards the present: the oldest versions that are newer
-- than (after, after_rid). In the history of an instance each rid counts as 0.
-- name: InstanceHistoryNewer :many
WITH every AS (
    SELECT r.version, r.last_updated, r.method, r.body
    FROM resource r
    WHERE r.ref = @ref AND r.shard = @shard
    UNION ALL
    SELECT h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = @ref AND h.shard = @shard
), successor AS (
    SELECT e.*, lead(e.last_updated) OVER (ORDER BY e.version) AS superseded
    FROM every e
)
SELECT s.version, s.last_updated, s.method, s.body
FROM successor s
WHERE s.last_updated >= @since::timestamptz AND s.last_updated < @before::timestamptz
    AND (s.last_updated, 0::bigint) > (@after::timestamptz, @after_rid::bigint)
    AND (NOT @at_only::boolean OR s.superseded IS NULL OR s.superseded > @current_after::timestamptz)
ORDER BY s.version
LIMIT @count;

-- name: CountInstanceHistory :one
WITH every AS (
    SELECT r.version, r.last_updated
    FROM resource r
    WHERE r.ref = @ref AND r.shard = @shard
    UNION ALL
    SELECT h.version, h.last_updated
    FROM resource_history h
    WHERE h.ref = @ref AND h.shard = @shard
), successor AS (
    SELECT e.*, lead(e.last_updated) OVER (ORDER BY e.version) AS superseded
    FROM every e
)
SELECT count(*) AS existing,
    count(*) FILTER (
        WHERE s.last_updated >= @since::timestamptz AND s.last_updated < @before::timestamptz
            AND (NOT @at_only::boolean OR s.superseded IS NULL OR s.superseded > @current_after::timestamptz)
    ) AS matching
FROM successor s;

-- name: TypeHistory :many
SELECT t.name, v.id, v.rid, v.version, v.last_updated, v.method, v.body
FROM resource_type t
CROSS JOIN LATERAL (
    (
        SELECT r.id, r.rid, r.version, r.last_updated, r.method, r.body
        FROM resource r
        WHERE r.typ = t.typ AND r.last_updated >= @since::timestamptz AND (r.last_updated, r.rid) < (@before::timestamptz, @before_rid::bigint)
        ORDER BY r.last_updated DESC, r.rid DESC
        LIMIT @count
    )
    UNION ALL
    (
        SELECT h.id, h.rid, h.version, h.last_updated, h.method, h.body
        FROM resource_history h
        WHERE h.typ = t.typ AND h.last_updated >= @since::timestamptz AND (h.last_updated, h.rid) < (@before::timestamptz, @before_rid::bigint)
            AND (NOT @at_only::boolean OR NOT EXISTS (
                SELECT FROM resource_history n
                WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
            ) AND NOT EXISTS (
                SELECT FROM resource n
                WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
            ))
        ORDER BY h.last_updated DESC, h.rid DESC
        LIMIT @count
    )
) v
WHERE t.typ = ANY (@typs::smallint[])
ORDER BY v.last_updated DESC, v.rid DESC
LIMIT @count;

-- TypeHistoryNewer reads towards the present: the oldest versions that are newer than
-- (after, after_rid).
-- name: TypeHistoryNewer :many
SELECT t.name, v.id, v.rid, v.version, v.last_updated, v.method, v.body
FROM resource_type t
CROSS JOIN LATERAL (
    (
        SELECT r.id, r.rid, r.version, r.last_updated, r.method, r.body
        FROM resource r
        WHERE r.typ = t.typ AND r.last_updated >= @since::timestamptz AND r.last_updated < @before::timestamptz
            AND (r.last_updated, r.rid) > (@after::timestamptz, @after_rid::bigint)
        ORDER BY r.last_updated, r.rid
        LIMIT @count
    )
    UNION ALL
    (
        SELECT h.id, h.rid, h.version, h.last_updated, h.method, h.body
        FROM resource_history h
        WHERE h.typ = t.typ AND h.last_updated >= @since::timestamptz AND h.last_updated < @before::timestamptz
            AND (h.last_updated, h.rid) > (@after::timestamptz, @after_rid::bigint)
            AND (NOT @at_only::boolean OR NOT EXISTS (
                SELECT FROM resource_history n
                WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
            ) AND NOT EXISTS (
                SELECT FROM resource n
                WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
            ))
        ORDER BY h.last_updated, h.rid
        LIMIT @count
    )
) v
WHERE t.typ = ANY (@typs::smallint[])
ORDER BY v.last_updated, v.rid
LIMIT @count;

-- name: CountTypeHistory :one
SELECT ((
    SELECT count(*)
    FROM resource r
    WHERE r.typ = ANY (@typs::smallint[]) AND r.last_updated >= @since::timestamptz AND r.last_updated < @before::timestamptz
) + (
    SELECT count(*)
    FROM resource_history h
    WHERE h.typ = ANY (@typs::smallint[]) AND h.last_updated >= @since::timestamptz AND h.last_updated < @before::timestamptz
))::bigint AS matching;

-- CountTypeHistoryAt is CountTypeHistory with at_only; the other one is answered
-- from the indexes alone.
-- name: CountTypeHistoryAt :one
SELECT ((
    SELECT count(*)
    FROM resource r
    WHERE r.typ = ANY (@typs::smallint[]) AND r.last_updated >= @since::timestamptz AND r.last_updated < @before::timestamptz
) + (
    SELECT count(*)
    FROM resource_history h
    WHERE h.typ = ANY (@typs::smallint[]) AND h.last_updated >= @since::timestamptz AND h.last_updated < @before::timestamptz
        AND NOT EXISTS (
            SELECT FROM resource_history n
            WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
        ) AND NOT EXISTS (
            SELECT FROM resource n
            WHERE n.ref = h.ref AND n.shard = h.shard AND n.version = h.version + 1 AND n.last_updated <= @current_after::timestamptz
        )
))::bigint AS matching;
