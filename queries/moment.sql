-- The state of resources at a moment, for bulk exports (store/moment.go).

-- RaiseMoment sets the moment to the latest of these: the time of the database, the latest update of any
-- committed version, a given time. It rounds the moment up to a millisecond.
-- name: RaiseMoment :one
UPDATE search_registry g
SET moment = greatest(g.moment, date_trunc('milliseconds', greatest(@least::timestamptz, clock_timestamp(), (
    SELECT max(u.last_updated)
    FROM resource_type t
    CROSS JOIN LATERAL (
        (SELECT r.last_updated FROM resource r WHERE r.typ = t.typ ORDER BY r.last_updated DESC LIMIT 1)
        UNION ALL
        (SELECT h.last_updated FROM resource_history h WHERE h.typ = t.typ ORDER BY h.last_updated DESC LIMIT 1)
    ) u
)) + interval '999 microseconds'))
RETURNING g.moment;

-- LaterTransaction is a transaction id that is higher than every id that was assigned before. The xmax of a snapshot is
-- not: it is the id behind the latest transaction that is over, and a running one may have a higher id.
-- name: LaterTransaction :one
SELECT pg_current_xact_id()::text::bigint AS xid;

-- TornAt is the latest update, 1970 for none, of the transactions, from one id up to before another one, that have
-- versions on both sides of a moment.
-- name: TornAt :one
SELECT coalesce(max(t.latest), 'epoch')::timestamptz AS latest
FROM (
    SELECT max(v.last_updated) AS latest
    FROM change c
    CROSS JOIN LATERAL (SELECT unnest(c.refs) AS ref, unnest(c.versions) AS version) u
    CROSS JOIN LATERAL (
        SELECT r.last_updated FROM resource r WHERE r.ref = u.ref AND r.shard = (u.ref & 255)::smallint AND r.version = u.version
        UNION ALL
        SELECT h.last_updated FROM resource_history h WHERE h.ref = u.ref AND h.shard = (u.ref & 255)::smallint AND h.version = u.version
    ) v
    WHERE c.xid >= sqlc.arg(from_xid)::text::xid8 AND c.xid < sqlc.arg(to_xid)::text::xid8
    GROUP BY c.xid
    HAVING min(v.last_updated) <= @moment::timestamptz AND max(v.last_updated) > @moment::timestamptz
) t;

-- TypeSpan is the lowest and the highest surrogate that a resource of a type has or, until it was
-- deleted after a moment, had; 0 and 0 for none.
-- name: TypeSpan :one
SELECT coalesce(least(c.low, d.low), 0)::bigint AS low, coalesce(greatest(c.high, d.high), 0)::bigint AS high
FROM (SELECT min(r.rid) AS low, max(r.rid) AS high FROM resource r WHERE r.rid >= @low::bigint AND r.rid <= @high::bigint) c
CROSS JOIN (
    SELECT min(h.rid) AS low, max(h.rid) AS high
    FROM resource_history h
    WHERE h.typ = @typ AND h.last_updated > @moment::timestamptz AND h.method = 'D'
) d;

-- VersionsAt reads a page of the resources of a type as they were at a moment, and the surrogate
-- that the page ends at. It reads at most count current resources, and beside them those that were
-- changed or deleted after the moment.
-- name: VersionsAt :many
WITH page AS MATERIALIZED (
    SELECT r.rid, r.ref, r.id, r.version, r.last_updated, r.method, r.body,
        CASE WHEN @with_index::boolean THEN r.terms END AS terms, CASE WHEN @with_index::boolean THEN r.targets END AS targets
    FROM resource r
    WHERE r.rid > @after::bigint AND r.rid <= @last::bigint
    ORDER BY r.rid
    LIMIT @count
), bound AS MATERIALIZED (
    SELECT CASE WHEN count(*) < @count THEN @last::bigint ELSE max(p.rid) END AS high
    FROM page p
), changed AS MATERIALIZED (
    SELECT p.ref FROM page p WHERE p.last_updated > @moment::timestamptz
    UNION
    SELECT h.ref
    FROM resource_history h
    CROSS JOIN bound b
    WHERE h.typ = @typ AND h.last_updated > @moment::timestamptz AND h.method = 'D' AND h.rid > @after::bigint AND h.rid <= b.high
)
SELECT b.high, p.rid, p.ref, p.id, p.version, p.last_updated, p.method, p.body, p.terms, p.targets
FROM bound b
LEFT JOIN page p ON p.last_updated <= @moment::timestamptz AND p.last_updated > @since::timestamptz AND p.last_updated < @until::timestamptz
UNION ALL
SELECT b.high, v.rid, v.ref, v.id, v.version, v.last_updated, v.method, v.body, NULL, NULL
FROM bound b
CROSS JOIN changed c
CROSS JOIN LATERAL (
    SELECT h.rid, h.ref, h.id, h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = c.ref AND h.shard = (c.ref & 255)::smallint AND h.last_updated <= @moment::timestamptz
    ORDER BY h.version DESC
    LIMIT 1
) v
WHERE v.method <> 'D' AND v.last_updated > @since::timestamptz AND v.last_updated < @until::timestamptz;

-- VersionsAtByTerms is VersionsAt for the resources that have one of some terms. What was changed or
-- deleted after the moment comes whole: its terms are no longer known.
-- name: VersionsAtByTerms :many
WITH page AS MATERIALIZED (
    SELECT r.rid, r.ref, r.id, r.version, r.last_updated, r.method, r.body, r.terms, r.targets
    FROM resource r
    WHERE r.terms && @terms::bigint[] AND r.rid > @after::bigint AND r.rid <= @last::bigint
    ORDER BY r.rid
    LIMIT @count
), bound AS MATERIALIZED (
    SELECT CASE WHEN count(*) < @count THEN @last::bigint ELSE max(p.rid) END AS high
    FROM page p
), changed AS MATERIALIZED (
    SELECT r.ref
    FROM resource r
    CROSS JOIN bound b
    WHERE r.typ = @typ AND r.last_updated > @moment::timestamptz AND r.rid > @after::bigint AND r.rid <= b.high
    UNION
    SELECT h.ref
    FROM resource_history h
    CROSS JOIN bound b
    WHERE h.typ = @typ AND h.last_updated > @moment::timestamptz AND h.method = 'D' AND h.rid > @after::bigint AND h.rid <= b.high
)
SELECT b.high, p.rid, p.ref, p.id, p.version, p.last_updated, p.method, p.body, p.terms, p.targets
FROM bound b
LEFT JOIN page p ON p.last_updated <= @moment::timestamptz AND p.last_updated > @since::timestamptz AND p.last_updated < @until::timestamptz
UNION ALL
SELECT b.high, v.rid, v.ref, v.id, v.version, v.last_updated, v.method, v.body, NULL, NULL
FROM bound b
CROSS JOIN changed c
CROSS JOIN LATERAL (
    SELECT h.rid, h.ref, h.id, h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = c.ref AND h.shard = (c.ref & 255)::smallint AND h.last_updated <= @moment::timestamptz
    ORDER BY h.version DESC
    LIMIT 1
) v
WHERE v.method <> 'D' AND v.last_updated > @since::timestamptz AND v.last_updated < @until::timestamptz;

-- VersionsAtByRefs reads resources by reference as they were at a moment.
-- name: VersionsAtByRefs :many
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT u.ref
    FROM unnest(@refs::bigint[]) AS u(ref)
), live AS MATERIALIZED (
    SELECT r.rid, r.ref, r.id, r.version, r.last_updated, r.method, r.body, r.terms, r.targets
    FROM wanted w
    CROSS JOIN LATERAL (
        SELECT *
        FROM resource r
        WHERE r.ref = w.ref AND r.shard = (w.ref & 255)::smallint AND r.last_updated <= @moment::timestamptz
        OFFSET 0
    ) r
)
SELECT 0::bigint AS high, l.rid, l.ref, l.id, l.version, l.last_updated, l.method, l.body, l.terms, l.targets
FROM live l
UNION ALL
SELECT 0::bigint, v.rid, v.ref, v.id, v.version, v.last_updated, v.method, v.body, NULL, NULL
FROM wanted w
CROSS JOIN LATERAL (
    SELECT h.rid, h.ref, h.id, h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = w.ref AND h.shard = (w.ref & 255)::smallint AND h.last_updated <= @moment::timestamptz
    ORDER BY h.version DESC
    LIMIT 1
) v
WHERE v.method <> 'D' AND NOT EXISTS (SELECT FROM live l WHERE l.ref = w.ref);

-- DeletionsAt are the resources of a type whose latest version at a moment is a deletion after
-- since, by surrogate, with the version before it.
-- name: DeletionsAt :many
SELECT d.rid, d.ref, d.id, d.version - 1 AS version, b.last_updated, b.method, b.body
FROM resource_history d
JOIN resource_history b ON b.ref = d.ref AND b.shard = d.shard AND b.version = d.version - 1
WHERE d.typ = @typ AND d.last_updated > @since::timestamptz AND d.last_updated <= @moment::timestamptz AND d.method = 'D' AND d.rid > @after::bigint
    AND NOT EXISTS (
        SELECT FROM resource_history n
        WHERE n.ref = d.ref AND n.shard = d.shard AND n.version > d.version AND n.last_updated <= @moment::timestamptz)
    AND NOT EXISTS (
        SELECT FROM resource n
        WHERE n.ref = d.ref AND n.shard = d.shard AND n.last_updated <= @moment::timestamptz)
ORDER BY d.rid
LIMIT @count;

-- RIDsByTerms are the surrogates, in order, of the current resources of a span that have one of some terms.
-- name: RIDsByTerms :many
SELECT r.rid
FROM resource r
WHERE r.terms && @terms::bigint[] AND r.rid > @after::bigint AND r.rid <= @last::bigint
ORDER BY r.rid;

-- VersionsAtByRIDs is VersionsAt for the resources with some surrogates. What was changed or deleted after the
-- moment comes whole: its terms are no longer known.
-- name: VersionsAtByRIDs :many
WITH page AS MATERIALIZED (
    SELECT r.rid, r.ref, r.id, r.version, r.last_updated, r.method, r.body, r.terms, r.targets
    FROM unnest(@rids::bigint[]) AS u(rid)
    JOIN resource r ON r.rid = u.rid
    WHERE r.last_updated <= @moment::timestamptz
), changed AS MATERIALIZED (
    SELECT r.ref
    FROM resource r
    WHERE r.typ = @typ AND r.last_updated > @moment::timestamptz AND r.rid > @after::bigint AND r.rid <= @last::bigint
    UNION
    SELECT h.ref
    FROM resource_history h
    WHERE h.typ = @typ AND h.last_updated > @moment::timestamptz AND h.method = 'D' AND h.rid > @after::bigint AND h.rid <= @last::bigint
)
SELECT @last::bigint AS high, p.rid, p.ref, p.id, p.version, p.last_updated, p.method, p.body, p.terms, p.targets
FROM page p
WHERE p.last_updated > @since::timestamptz
UNION ALL
SELECT @last::bigint, v.rid, v.ref, v.id, v.version, v.last_updated, v.method, v.body, NULL, NULL
FROM changed c
CROSS JOIN LATERAL (
    SELECT h.rid, h.ref, h.id, h.version, h.last_updated, h.method, h.body
    FROM resource_history h
    WHERE h.ref = c.ref AND h.shard = (c.ref & 255)::smallint AND h.last_updated <= @moment::timestamptz
    ORDER BY h.version DESC
    LIMIT 1
) v
WHERE v.method <> 'D' AND v.last_updated > @since::timestamptz;
