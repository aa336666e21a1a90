-- Changes are read in the order of epochs and of transaction ids. A transaction that is
-- still running may have any id from pg_snapshot_xmin on, so reading stops there. The
-- transactions of former epochs have ended.
-- name: Changes :many
SELECT c.epoch, c.xid::text::bigint AS xid, c.written, u.rid, u.version, u.ref, u.method, coalesce(u.trace, '')::text AS trace
FROM change c
CROSS JOIN LATERAL (
    SELECT unnest(c.rids)::bigint AS rid, unnest(c.refs)::bigint AS ref, unnest(c.versions)::integer AS version,
        unnest(string_to_array(c.methods, NULL))::"char" AS method, unnest(c.traces) AS trace
) u
WHERE (c.epoch, c.xid) >= (@after_epoch::bigint, sqlc.arg(after_xid)::text::xid8)
    AND ((c.epoch, c.xid) > (@after_epoch::bigint, sqlc.arg(after_xid)::text::xid8) OR (u.rid, u.version) > (@after_rid::bigint, @after_version::integer))
    AND (c.epoch, c.xid) < ((SELECT g.epoch FROM search_registry g), pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY c.epoch, c.xid, u.rid, u.version
LIMIT @count;

-- ChangeHorizon is the epoch and the transaction id below which the change log is complete.
-- name: ChangeHorizon :one
SELECT g.epoch, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid
FROM search_registry g;

-- ChangeSnapshot tells which transactions are over: those before xmin, and those before
-- xmax that are not listed as running.
-- name: ChangeSnapshot :one
SELECT (SELECT g.epoch FROM search_registry g)::bigint AS epoch, pg_snapshot_xmin(c.now)::text::bigint AS xmin, pg_snapshot_xmax(c.now)::text::bigint AS xmax,
    ARRAY(SELECT pg_snapshot_xip(c.now)::text::bigint)::bigint[] AS running
FROM (SELECT pg_current_snapshot() AS now) c;

-- ChangesHeld reports whether there are committed changes that cannot be read yet,
-- for an older transaction is still running.
-- name: ChangesHeld :one
SELECT EXISTS (
    SELECT FROM change c
    WHERE (c.epoch, c.xid) >= ((SELECT g.epoch FROM search_registry g), pg_snapshot_xmin(pg_current_snapshot()))
);

-- ChangeEnds are the transaction ids of the oldest and of the newest row of each epoch that the
-- log has, oldest epoch first.
-- name: ChangeEnds :many
SELECT e.epoch, o.xid::text::bigint AS oldest, n.xid::text::bigint AS newest
FROM epoch e
CROSS JOIN LATERAL (SELECT c.xid FROM change c WHERE c.epoch = e.epoch ORDER BY c.xid LIMIT 1) o
CROSS JOIN LATERAL (SELECT c.xid FROM change c WHERE c.epoch = e.epoch ORDER BY c.xid DESC LIMIT 1) n
ORDER BY e.epoch;

-- name: ChangeWritten :one
SELECT c.written
FROM change c
WHERE c.epoch = @epoch AND c.xid >= sqlc.arg(xid)::text::xid8
ORDER BY c.xid
LIMIT 1;

-- FindChange reports whether the log has a change; rid 0 stands for a row without resources.
-- name: FindChange :one
SELECT EXISTS (
    SELECT FROM change c
    LEFT JOIN LATERAL (SELECT unnest(c.rids)::bigint AS rid, unnest(c.versions)::integer AS version) u ON true
    WHERE c.epoch = @epoch AND c.xid = sqlc.arg(xid)::text::xid8
        AND (coalesce(u.rid, 0), coalesce(u.version, 0)) = (@rid::bigint, @version::integer)
);

-- ChangesAmong lists the changes of some resources at the beginning of an epoch.
-- name: ChangesAmong :many
SELECT u.ref, u.version
FROM change c
CROSS JOIN LATERAL (SELECT unnest(c.refs)::bigint AS ref, unnest(c.versions)::integer AS version) u
WHERE c.epoch = @epoch AND c.written < @before AND u.ref = ANY (@refs::bigint[]);

-- LastChange is the last change before a transaction: no row where the log is empty. Several rows
-- may have one transaction id.
-- name: LastChange :many
SELECT c.epoch, c.xid::text::bigint AS xid, coalesce(u.rid, 0)::bigint AS rid, coalesce(u.version, 0)::integer AS version
FROM (
    SELECT l.epoch, l.xid
    FROM change l
    WHERE (l.epoch, l.xid) < (@epoch::bigint, sqlc.arg(xid)::text::xid8)
    ORDER BY l.epoch DESC, l.xid DESC
    LIMIT 1
) o
JOIN change c ON c.epoch = o.epoch AND c.xid = o.xid
LEFT JOIN LATERAL (SELECT unnest(c.rids)::bigint AS rid, unnest(c.versions)::integer AS version) u ON true
ORDER BY 3 DESC, 4 DESC
LIMIT 1;

-- WrittenUpTo returns when the last change up to a position was written; no row where there is none.
-- name: WrittenUpTo :one
SELECT c.written
FROM change c
WHERE (c.epoch, c.xid) <= (@epoch::bigint, sqlc.arg(xid)::text::xid8)
ORDER BY c.epoch DESC, c.xid DESC
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
        AND (c.written < @unread_before OR NOT EXISTS (SELECT FROM change_reader r WHERE (r.epoch, r.xid) <= (c.epoch, c.xid)))
        AND c.ctid = ANY (ARRAY(
            SELECT o.ctid
            FROM change o
            ORDER BY o.epoch, o.xid
            LIMIT @count
        ))
    RETURNING c.epoch, c.xid, c.written
), noted AS (
    UPDATE change_trim t
    SET epoch = CASE WHEN (g.epoch, g.xid) > (t.epoch, t.xid) THEN g.epoch ELSE t.epoch END,
        xid = CASE WHEN (g.epoch, g.xid) > (t.epoch, t.xid) THEN g.xid ELSE t.xid END, written = greatest(t.written, g.written)
    FROM (SELECT o.epoch, o.xid, o.written FROM gone o ORDER BY o.epoch DESC, o.xid DESC LIMIT 1) g
)
SELECT count(*) FROM gone;

-- name: TrimmedChanges :one
SELECT t.epoch, t.xid::text::bigint AS xid, t.written
FROM change_trim t
WHERE t.xid > '0';

-- AddReader makes a reader that begins with what is written from now on.
-- name: AddReader :exec
INSERT INTO change_reader (name, epoch, xid, rid, version)
SELECT @name, g.epoch, pg_snapshot_xmin(pg_current_snapshot()), 0, 0
FROM search_registry g
ON CONFLICT DO NOTHING;

-- LeaseReader gives a reader to a server, unless another one has it.
-- name: LeaseReader :many
UPDATE change_reader r
SET holder = @holder, leased_until = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
WHERE r.name = @name AND (r.holder = @holder OR r.leased_until < now())
RETURNING r.epoch, r.xid::text::bigint AS xid, r.rid, r.version;

-- MoveReader moves a reader on from where its holder found it.
-- name: MoveReader :execrows
UPDATE change_reader r
SET epoch = @epoch, xid = sqlc.arg(xid)::text::xid8, rid = @rid, version = @version,
    leased_until = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
WHERE r.name = @name AND r.holder = @holder
    AND r.epoch = @from_epoch AND r.xid = sqlc.arg(from_xid)::text::xid8 AND r.rid = @from_rid AND r.version = @from_version;

-- name: ReleaseReader :exec
UPDATE change_reader r
SET holder = '', leased_until = 'epoch'
WHERE r.name = @name AND r.holder = @holder;

-- name: RemoveReader :exec
DELETE FROM change_reader r
WHERE r.name = @name;

-- Readers lists the named readers. behind_seconds is the age of the oldest change that a reader has not
-- passed; ahead reports that its position lies behind the end of the database's history.
-- name: Readers :many
SELECT r.name, r.epoch, r.xid::text::bigint AS xid, r.rid, r.version, r.holder, r.leased_until,
    coalesce((
        SELECT extract(epoch FROM clock_timestamp() - c.written)
        FROM change c
        WHERE (c.epoch, c.xid) > (r.epoch, r.xid)
        ORDER BY c.epoch, c.xid
        LIMIT 1
    ), 0)::float8 AS behind_seconds,
    ((r.epoch, r.xid) > (g.epoch, pg_snapshot_xmax(pg_current_snapshot())))::boolean AS ahead
FROM change_reader r
CROSS JOIN search_registry g
ORDER BY r.name;

-- Epochs lists the epochs, the first one first.
-- name: Epochs :many
SELECT e.epoch, e.cause, e.since, e.system_identifier, e.database_oid, e.timeline
FROM epoch e
ORDER BY e.epoch;

-- NoteEpoch returns the last epoch, after storing a new one where the database is on another line, or
-- where forced is not empty: the cause of the new one.
-- name: NoteEpoch :one
SELECT note_epoch(@forced)::bigint AS epoch;

-- LastEpoch returns the last stored epoch.
-- name: LastEpoch :one
SELECT g.epoch
FROM search_registry g;

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
