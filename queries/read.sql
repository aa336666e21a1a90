-- name: ReadResource :one
SELECT r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.ref = @ref AND r.shard = @shard;

-- name: ReadResources :many
SELECT r.ref, r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.ref = ANY (@refs::bigint[]);

-- ReadResourcesIf reads resources under a condition each: that a resource has a term of its
-- list in @one, one of its list in @another, and none of its list in @without. The lists of a
-- parameter follow each other in the order of @refs, which ascend; each is as long as the
-- width says, with NULLs at its end. A width of 0 asks nothing. A resource for which its
-- condition does not hold comes without its body.
-- name: ReadResourcesIf :many
SELECT r.ref, r.id, r.version, r.last_updated, r.method,
    CASE
        WHEN (q.one_width = 0 OR r.terms && (q.one)[q.one_width * (width_bucket(r.ref, q.refs) - 1) + 1:q.one_width * width_bucket(r.ref, q.refs)])
            AND (q.another_width = 0 OR r.terms && (q.another)[q.another_width * (width_bucket(r.ref, q.refs) - 1) + 1:q.another_width * width_bucket(r.ref, q.refs)])
            AND (q.without_width = 0 OR NOT r.terms && (q.without)[q.without_width * (width_bucket(r.ref, q.refs) - 1) + 1:q.without_width * width_bucket(r.ref, q.refs)])
        THEN r.body
    END AS body
FROM (SELECT @refs::bigint[] AS refs, @one::bigint[] AS one, @one_width::integer AS one_width, @another::bigint[] AS another,
    @another_width::integer AS another_width, @without::bigint[] AS without, @without_width::integer AS without_width) AS q
JOIN resource r ON r.ref = ANY (q.refs);

-- ReadResourcesHaving is ReadResourcesIf with the list @one alone, which most conditions are:
-- that a resource is in a patient's compartment. An expression costs when it is prepared, for
-- each query, more than when it is asked.
-- name: ReadResourcesHaving :many
SELECT r.ref, r.id, r.version, r.last_updated, r.method,
    CASE WHEN r.terms && (q.one)[q.width * (width_bucket(r.ref, q.refs) - 1) + 1:q.width * width_bucket(r.ref, q.refs)] THEN r.body END AS body
FROM (SELECT @refs::bigint[] AS refs, @one::bigint[] AS one, @width::integer AS width) AS q
JOIN resource r ON r.ref = ANY (q.refs);

-- LastHistory is the newest row that is no longer current: of a deleted
-- resource, its deletion.
-- name: LastHistory :one
SELECT h.version, h.last_updated, h.method
FROM resource_history h
WHERE h.ref = @ref AND h.shard = @shard
ORDER BY h.version DESC
LIMIT 1;

-- name: ReadVersion :one
SELECT r.id, r.last_updated, r.method, r.body
FROM resource r
WHERE r.ref = @ref AND r.shard = @shard AND r.version = @version
UNION ALL
SELECT h.id, h.last_updated, h.method, h.body
FROM resource_history h
WHERE h.ref = @ref AND h.shard = @shard AND h.version = @version;

-- name: ResourceTypes :many
SELECT t.typ, t.name
FROM resource_type t;

-- Two servers may choose the same number: then one of them adds nothing, sees so
-- when it reads the table, and asks again.
-- name: AddResourceType :exec
INSERT INTO resource_type (typ, name)
SELECT coalesce(max(t.typ), 0) + 1, @name
FROM resource_type t
ON CONFLICT DO NOTHING;

-- ReserveRIDs takes the next numbers of a type, and tells how many more are announced; no row where
-- they are not usable yet.
-- name: ReserveRIDs :one
INSERT INTO rid_next (typ, next, usable, announced)
VALUES (@typ::smallint, 1 + sqlc.arg(count)::bigint, 1048576, 1048576)
ON CONFLICT (typ) DO UPDATE SET next = rid_next.next + sqlc.arg(count)::bigint
    WHERE rid_next.next + sqlc.arg(count)::bigint <= rid_next.usable
RETURNING (next - sqlc.arg(count)::bigint)::bigint AS first, (announced - next)::bigint AS announced;

-- AnnounceParts announces so many numbers more than are given out, and makes usable what was announced
-- long enough ago.
-- name: AnnounceParts :exec
UPDATE rid_next
SET usable = CASE WHEN clock_timestamp() >= rid_next.announced_at + make_interval(secs => @after_seconds::float8) THEN rid_next.announced ELSE rid_next.usable END,
    announced = greatest(rid_next.announced, (rid_next.next + sqlc.arg(ahead)::bigint + 1048575) >> 20 << 20),
    announced_at = CASE WHEN rid_next.announced < rid_next.next + sqlc.arg(ahead)::bigint THEN clock_timestamp() ELSE rid_next.announced_at END
WHERE rid_next.typ = @typ::smallint;

-- name: AddUnits :exec
INSERT INTO quantity_unit (id, system, code, unit)
SELECT unnest(@ids::bigint[]), unnest(@systems::text[]), unnest(@codes::text[]), unnest(@units::text[])
ON CONFLICT DO NOTHING;

-- name: AddTexts :exec
INSERT INTO token_text (key, value, text)
SELECT unnest(@keys::bigint[]), unnest(@values::bigint[]), unnest(@texts::text[])
ON CONFLICT DO NOTHING;
