-- name: ReadResource :one
SELECT r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.ref = @ref AND r.shard = @shard;

-- name: ReadResources :many
SELECT r.ref, r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.ref = ANY (@refs::bigint[]);

-- ReadResourcesIf reads resources under a condition each, whose tests are slices of @terms:
-- of the six bounds of a resource the first two pairs are lists of which it must have a
-- term, an upper bound of -1 for no such list; the third of what it must not have. A
-- resource for which they do not hold comes without its body.
-- name: ReadResourcesIf :many
SELECT q.n, r.id, r.version, r.last_updated, r.method,
    CASE
        WHEN ((@bounds::integer[])[6 * q.n - 4] < 0 OR r.terms && (@terms::bigint[])[(@bounds::integer[])[6 * q.n - 5]:(@bounds::integer[])[6 * q.n - 4]])
            AND ((@bounds::integer[])[6 * q.n - 2] < 0 OR r.terms && (@terms::bigint[])[(@bounds::integer[])[6 * q.n - 3]:(@bounds::integer[])[6 * q.n - 2]])
            AND NOT r.terms && (@terms::bigint[])[(@bounds::integer[])[6 * q.n - 1]:(@bounds::integer[])[6 * q.n]]
        THEN r.body
    END AS body
FROM (SELECT u.ref, u.n::integer AS n FROM unnest(@refs::bigint[]) WITH ORDINALITY AS u (ref, n)) AS q
JOIN resource r ON r.ref = q.ref;

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

-- name: ReserveRIDs :one
UPDATE rid_block
SET next = next + sqlc.arg(count)::bigint
RETURNING (next - sqlc.arg(count)::bigint)::bigint AS first;

-- name: AddUnits :exec
INSERT INTO quantity_unit (id, system, code, unit)
SELECT unnest(@ids::bigint[]), unnest(@systems::text[]), unnest(@codes::text[]), unnest(@units::text[])
ON CONFLICT DO NOTHING;

-- name: AddTexts :exec
INSERT INTO token_text (key, value, text)
SELECT unnest(@keys::bigint[]), unnest(@values::bigint[]), unnest(@texts::text[])
ON CONFLICT DO NOTHING;
