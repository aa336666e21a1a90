-- Changes are read in the order of transaction ids. A transaction that is still
-- running may have any id from pg_snapshot_xmin on, so reading stops there.
-- name: Changes :many
SELECT c.xid::text::bigint AS xid, c.written, u.rid, u.version, u.ref, u.method, coalesce(u.trace, '')::text AS trace
FROM change c
CROSS JOIN LATERAL (
    SELECT unnest(c.rids)::bigint AS rid, unnest(c.refs)::bigint AS ref, unnest(c.versions)::integer AS version,
        unnest(string_to_array(c.methods, NULL))::"char" AS method, unnest(c.traces) AS trace
) u
WHERE c.xid >= sqlc.arg(after_xid)::text::xid8
    AND (c.xid > sqlc.arg(after_xid)::text::xid8 OR (u.rid, u.version) > (@after_rid::bigint, @after_version::integer))
    AND c.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY c.xid, u.rid, u.version
LIMIT @count;

-- ChangeHorizon is the transaction id below which the change log is complete.
-- name: ChangeHorizon :one
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid;

-- ChangeSnapshot tells which transactions are over: those before xmin, and those before
-- xmax that are not listed as running.
-- name: ChangeSnapshot :one
SELECT pg_snapshot_xmin(c.now)::text::bigint AS xmin, pg_snapshot_xmax(c.now)::text::bigint AS xmax,
    ARRAY(SELECT pg_snapshot_xip(c.now)::text::bigint)::bigint[] AS running
FROM (SELECT pg_current_snapshot() AS now) c;

-- ChangesHeld reports whether there are committed changes that cannot be read yet,
-- for an older transaction is still running.
-- name: ChangesHeld :one
SELECT EXISTS (
    SELECT FROM change c
    WHERE c.xid >= pg_snapshot_xmin(pg_current_snapshot())
);

-- ChangeEnds are the transaction ids of the oldest and of the newest row; none where
-- the log is empty.
-- name: ChangeEnds :many
SELECT o.xid::text::bigint AS oldest, n.xid::text::bigint AS newest
FROM (SELECT c.xid FROM change c ORDER BY c.xid LIMIT 1) o
CROSS JOIN (SELECT c.xid FROM change c ORDER BY c.xid DESC LIMIT 1) n;

-- name: ChangeWritten :one
SELECT c.written
FROM change c
WHERE c.xid >= sqlc.arg(xid)::text::xid8
ORDER BY c.xid
LIMIT 1;

-- ChangedVersions reads versions, superseded ones and deletions too.
-- name: ChangedVersions :many
SELECT r.ref, r.version, r.id, r.last_updated, r.method, r.body
FROM (SELECT unnest(@refs::bigint[]) AS ref, unnest(@versions::integer[]) AS version) u
JOIN resource r ON r.ref = u.ref AND r.shard = (u.ref & 255)::smallint AND r.version = u.version
UNION ALL
SELECT h.ref, h.version, h.id, h.last_updated, h.method, h.body
FROM (SELECT unnest(@refs::bigint[]) AS ref, unnest(@versions::integer[]) AS version) u
JOIN resource_history h ON h.ref = u.ref AND h.shard = (u.ref & 255)::smallint AND h.version = u.version;

-- TrimChanges deletes the oldest rows, a limited number at a time so that no
-- transaction is long: those written before an instant that every reader has
-- passed, and those written before the other, earlier instant whoever has.
-- name: TrimChanges :one
WITH gone AS (
    DELETE FROM change c
    WHERE c.written < @before
        AND (c.written < @unread_before OR NOT EXISTS (SELECT FROM change_reader r WHERE r.xid <= c.xid))
        AND c.ctid = ANY (ARRAY(
            SELECT o.ctid
            FROM change o
            ORDER BY o.xid
            LIMIT @count
        ))
    RETURNING c.xid, c.written
), noted AS (
    UPDATE change_trim t
    SET xid = greatest(t.xid, g.xid), written = greatest(t.written, g.written)
    FROM (SELECT o.xid, o.written FROM gone o ORDER BY o.xid DESC LIMIT 1) g
)
SELECT count(*) FROM gone;

-- name: TrimmedChanges :one
SELECT t.xid::text::bigint AS xid, t.written
FROM change_trim t
WHERE t.xid > '0';

-- AddReader makes a reader that begins with what is written from now on.
-- name: AddReader :exec
INSERT INTO change_reader (name, xid, rid, version)
VALUES (@name, pg_snapshot_xmin(pg_current_snapshot()), 0, 0)
ON CONFLICT DO NOTHING;

-- LeaseReader gives a reader to a server, unless another one has it.
-- name: LeaseReader :many
UPDATE change_reader r
SET holder = @holder, leased_until = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
WHERE r.name = @name AND (r.holder = @holder OR r.leased_until < now())
RETURNING r.xid::text::bigint AS xid, r.rid, r.version;

-- MoveReader moves a reader on from where its holder found it.
-- name: MoveReader :execrows
UPDATE change_reader r
SET xid = sqlc.arg(xid)::text::xid8, rid = @rid, version = @version,
    leased_until = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
WHERE r.name = @name AND r.holder = @holder
    AND r.xid = sqlc.arg(from_xid)::text::xid8 AND r.rid = @from_rid AND r.version = @from_version;

-- name: ReleaseReader :exec
UPDATE change_reader r
SET holder = '', leased_until = 'epoch'
WHERE r.name = @name AND r.holder = @holder;

-- name: RemoveReader :exec
DELETE FROM change_reader r
WHERE r.name = @name;

-- name: Readers :many
SELECT r.name, r.xid::text::bigint AS xid, r.rid, r.version, r.holder, r.leased_until
FROM change_reader r
ORDER BY r.name;

-- LogRead puts the reading of a version into the change log.
-- name: LogRead :exec
INSERT INTO change (shard, rids, refs, versions, methods)
SELECT (v.ref & 255)::smallint, ARRAY[v.rid], ARRAY[v.ref], ARRAY[v.version], 'V'
FROM (
    SELECT r.rid, r.ref, r.version
    FROM resource r
    WHERE r.ref = @ref AND r.shard = @shard AND r.version = @version
    UNION ALL
    SELECT h.rid, h.ref, h.version
    FROM resource_history h
    WHERE h.ref = @ref AND h.shard = @shard AND h.version = @version
) v;
