-- LockResources locks the current versions, in the order every writer uses.
-- name: LockResources :many
SELECT r.ref, r.rid, r.version, r.last_updated, r.method, r.ranges, (CASE WHEN @with_body::boolean THEN r.body END)::bytea AS body
FROM resource r
WHERE r.ref = ANY (@refs::bigint[])
ORDER BY r.ref
FOR UPDATE;

-- LastVersions are the newest history rows of resources that are not current.
-- name: LastVersions :many
SELECT DISTINCT ON (h.ref) h.ref, h.rid, h.version, h.last_updated, h.method
FROM resource_history h
WHERE h.ref = ANY (@refs::bigint[])
ORDER BY h.ref, h.version DESC;

-- name: InsertResources :exec
INSERT INTO resource (rid, ref, last_updated, version, typ, shard, method, id, terms, targets, body, ranges)
SELECT u.rid, u.ref, u.last_updated, u.version, (u.rid >> 48)::smallint, (u.ref & 255)::smallint, u.method::"char", u.id,
    (@terms::bigint[])[u.terms_low:u.terms_high], (@targets::bigint[])[u.targets_low:u.targets_high], u.body, u.ranges
FROM (
    SELECT unnest(@rids::bigint[]) AS rid, unnest(@refs::bigint[]) AS ref,
        unnest(@last_updateds::timestamptz[]) AS last_updated, unnest(@versions::integer[]) AS version,
        unnest(@methods::text[]) AS method, unnest(@ids::text[]) AS id,
        unnest(@terms_lows::integer[]) AS terms_low, unnest(@terms_highs::integer[]) AS terms_high,
        unnest(@targets_lows::integer[]) AS targets_low, unnest(@targets_highs::integer[]) AS targets_high,
        unnest(@bodies::bytea[]) AS body, unnest(@ranges::bigint[]) AS ranges
) u;

-- name: MoveToHistory :exec
INSERT INTO resource_history (rid, ref, last_updated, version, typ, shard, method, id, body)
SELECT r.rid, r.ref, r.last_updated, r.version, r.typ, r.shard, r.method, r.id, r.body
FROM resource r
WHERE r.ref = ANY (@refs::bigint[]);

-- name: UpdateResources :exec
UPDATE resource r
SET last_updated = u.last_updated, version = u.version, method = u.method::"char",
    terms = (@terms::bigint[])[u.terms_low:u.terms_high], targets = (@targets::bigint[])[u.targets_low:u.targets_high],
    body = u.body, ranges = u.ranges
FROM (
    SELECT unnest(@refs::bigint[]) AS ref,
        unnest(@last_updateds::timestamptz[]) AS last_updated, unnest(@versions::integer[]) AS version,
        unnest(@methods::text[]) AS method,
        unnest(@terms_lows::integer[]) AS terms_low, unnest(@terms_highs::integer[]) AS terms_high,
        unnest(@targets_lows::integer[]) AS targets_low, unnest(@targets_highs::integer[]) AS targets_high,
        unnest(@bodies::bytea[]) AS body, unnest(@ranges::bigint[]) AS ranges
) u
WHERE r.ref = u.ref AND r.shard = (u.ref & 255)::smallint;

-- name: DeleteResources :exec
DELETE FROM resource r
WHERE r.ref = ANY (@refs::bigint[]);

-- name: InsertDeletions :exec
INSERT INTO resource_history (rid, ref, last_updated, version, typ, shard, method, id)
SELECT u.rid, u.ref, u.last_updated, u.version, (u.rid >> 48)::smallint, (u.ref & 255)::smallint, 'D', u.id
FROM (
    SELECT unnest(@rids::bigint[]) AS rid, unnest(@refs::bigint[]) AS ref,
        unnest(@last_updateds::timestamptz[]) AS last_updated, unnest(@versions::integer[]) AS version,
        unnest(@ids::text[]) AS id
) u;

-- name: DeleteIndex :exec
WITH dates AS (
    DELETE FROM index_date x WHERE x.rid = ANY (@rids::bigint[])
), numbers AS (
    DELETE FROM index_number x WHERE x.rid = ANY (@rids::bigint[])
), quantities AS (
    DELETE FROM index_quantity x WHERE x.rid = ANY (@rids::bigint[])
), narratives AS (
    DELETE FROM index_narrative x WHERE x.rid = ANY (@rids::bigint[])
)
DELETE FROM index_string x WHERE x.rid = ANY (@rids::bigint[]);

-- name: DeleteStrings :exec
DELETE FROM index_string x
WHERE x.rid = ANY (@rids::bigint[]);

-- name: InsertDates :exec
INSERT INTO index_date (key, low, high, rid)
SELECT unnest(@keys::bigint[]), unnest(@lows::bigint[]), unnest(@highs::bigint[]), unnest(@rids::bigint[]);

-- name: InsertNumbers :exec
INSERT INTO index_number (key, rid, low, high)
SELECT unnest(@keys::bigint[]), unnest(@rids::bigint[]), unnest(@lows::numeric[]), unnest(@highs::numeric[]);

-- name: InsertQuantities :exec
INSERT INTO index_quantity (key, rid, unit, low, high)
SELECT unnest(@keys::bigint[]), unnest(@rids::bigint[]), unnest(@units::bigint[]), unnest(@lows::numeric[]), unnest(@highs::numeric[]);

-- name: InsertStrings :exec
INSERT INTO index_string (key, rid, text, word)
SELECT unnest(@keys::bigint[]), unnest(@rids::bigint[]), unnest(@texts::text[]), unnest(@words::boolean[]);

-- name: InsertNarratives :exec
INSERT INTO index_narrative (rid, hash, words)
SELECT u.rid, u.hash, to_tsvector('simple', u.text)
FROM (SELECT unnest(@rids::bigint[]) AS rid, unnest(@hashes::bigint[]) AS hash, unnest(@texts::text[]) AS text) u;

-- name: InsertChanges :exec
INSERT INTO change (epoch, shard, rids, refs, versions, methods, traces)
SELECT g.epoch, ((@refs::bigint[])[1] & 255)::smallint, @rids::bigint[], @refs::bigint[], @versions::integer[],
    array_to_string(@methods::text[], ''), CASE WHEN array_to_string(@traces::text[], '') <> '' THEN @traces::text[] END
FROM search_registry g;

-- LostRaces are resources of which a version was committed that the transaction
-- did not know when it gave out its own. It is asked after the insert: from then
-- on the key is held and nobody else can add versions.
-- name: LostRaces :many
SELECT h.ref
FROM resource_history h
JOIN (SELECT unnest(@refs::bigint[]) AS ref, unnest(@versions::integer[]) AS version) u
    ON h.ref = u.ref AND h.version >= u.version
LIMIT 1;

-- name: Lock :exec
SELECT pg_advisory_xact_lock(k.key)
FROM (SELECT unnest(@keys::bigint[]) AS key ORDER BY 1) k;
