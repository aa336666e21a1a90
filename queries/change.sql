-- Changes are read in the order of transaction ids. A transaction that is still
-- running may have any id from pg_snapshot_xmin on, so reading stops there.
-- name: Changes :many
SELECT c.xid::text::bigint AS xid, c.written, u.rid, u.version, u.ref, u.method
FROM change c
CROSS JOIN LATERAL (
    SELECT unnest(c.rids)::bigint AS rid, unnest(c.refs)::bigint AS ref, unnest(c.versions)::integer AS version,
        unnest(string_to_array(c.methods, NULL))::"char" AS method
) u
WHERE c.xid >= sqlc.arg(after_xid)::text::xid8
    AND (c.xid > sqlc.arg(after_xid)::text::xid8 OR (u.rid, u.version) > (@after_rid::bigint, @after_version::integer))
    AND c.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY c.xid, u.rid, u.version
LIMIT @count;

-- ChangeHorizon is the transaction id below which the change log is complete.
-- name: ChangeHorizon :one
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid;

-- TrimChanges deletes the oldest rows, a limited number at a time so that no
-- transaction is long.
-- name: TrimChanges :execrows
DELETE FROM change c
WHERE c.written < @before AND c.ctid = ANY (ARRAY(
    SELECT o.ctid
    FROM change o
    ORDER BY o.xid
    LIMIT @count
));
