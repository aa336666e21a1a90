-- Retention removes old AuditEvents and old versions, a limited number at a time.

-- OldResources are the resources of a type that were stored before an instant, oldest first.
-- name: OldResources :many
SELECT r.id
FROM resource r
WHERE r.typ = @typ AND r.last_updated < @before::timestamptz
ORDER BY r.last_updated, r.rid
LIMIT @count;

-- name: CountOldResources :one
SELECT count(*)
FROM resource r
WHERE r.typ = @typ AND r.last_updated < @before::timestamptz;

-- CountOldVersions counts more than RemoveVersions removes: deletions that are current, and
-- versions that were superseded later.
-- name: CountOldVersions :one
SELECT count(*)
FROM resource_history h
WHERE h.last_updated < @before::timestamptz;

-- RemoveHistory removes the superseded versions and the deletions of resources.
-- name: RemoveHistory :exec
DELETE FROM resource_history h
WHERE h.ref = ANY (@refs::bigint[]) AND h.shard = ANY (@shards::smallint[]) AND h.typ = @typ;

-- RemoveVersions removes, among the next versions of a type behind a cursor, those that a
-- version from before an instant has superseded. It returns how many there were and how many
-- are gone, and the next cursor.
-- name: RemoveVersions :one
WITH batch AS (
    SELECT h.ref, h.shard, h.version, h.last_updated, h.rid
    FROM resource_history h
    WHERE h.typ = @typ AND h.last_updated < @before::timestamptz AND (h.last_updated, h.rid) > (@after::timestamptz, @after_rid::bigint)
    ORDER BY h.last_updated, h.rid
    LIMIT @count
), gone AS (
    DELETE FROM resource_history h
    USING batch b
    WHERE h.ref = b.ref AND h.version = b.version AND h.shard = b.shard
        AND (
            EXISTS (SELECT FROM resource r WHERE r.ref = b.ref AND r.shard = b.shard AND r.version > b.version AND r.last_updated < @before::timestamptz)
            OR EXISTS (SELECT FROM resource_history n WHERE n.ref = b.ref AND n.shard = b.shard AND n.version > b.version AND n.last_updated < @before::timestamptz)
        )
    RETURNING h.version
), last AS (
    SELECT b.last_updated, b.rid
    FROM batch b
    ORDER BY b.last_updated DESC, b.rid DESC
    LIMIT 1
)
SELECT (SELECT count(*) FROM batch) AS seen, (SELECT count(*) FROM gone) AS gone,
    coalesce((SELECT l.last_updated FROM last l), @after::timestamptz)::timestamptz AS after,
    coalesce((SELECT l.rid FROM last l), @after_rid::bigint)::bigint AS after_rid;

-- name: StoredTypes :many
SELECT t.typ, t.name
FROM resource_type t
ORDER BY t.typ;

-- LastRetention is when the newest job of retention was added.
-- name: LastRetention :one
SELECT coalesce(max(j.created), 'epoch')::timestamptz AS created
FROM job j
WHERE j.type = 'retention';
