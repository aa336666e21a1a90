-- Settings, servers, rates and shapes: what operators see and change.

-- name: Signals :many
SELECT s.name, s.version, s.detail
FROM server_signal s;

-- name: RaiseSignal :one
UPDATE server_signal s
SET version = s.version + 1, detail = @detail
WHERE s.name = @name
RETURNING s.version;

-- name: Settings :many
SELECT s.name, s.value, s.percentage, s.clients, s.changed, s.changed_by
FROM setting s
ORDER BY s.name;

-- name: PutSetting :exec
INSERT INTO setting AS s (name, value, percentage, clients, changed, changed_by)
VALUES (@name, @value, sqlc.narg(percentage)::integer, sqlc.narg(clients)::text[], @changed, @changed_by)
ON CONFLICT (name) DO UPDATE
SET value = excluded.value, percentage = excluded.percentage, clients = excluded.clients,
    changed = excluded.changed, changed_by = excluded.changed_by;

-- name: DeleteSetting :execrows
DELETE FROM setting s
WHERE s.name = @name;

-- name: SeeServer :exec
INSERT INTO server_instance AS i (id, address, version, started, seen, load, connections, streams)
VALUES (@id, @address, @version, @started, @seen, @load, @connections, @streams)
ON CONFLICT (id) DO UPDATE
SET seen = excluded.seen, load = excluded.load, connections = excluded.connections, streams = excluded.streams;

-- name: HasServer :one
SELECT EXISTS (
    SELECT FROM server_instance i
    WHERE i.id = @id
);

-- name: ForgetServer :exec
DELETE FROM server_instance i
WHERE i.id = @id;

-- ForgetServers drops those that have not been seen since a time.
-- name: ForgetServers :exec
DELETE FROM server_instance i
WHERE i.seen < @before;

-- name: Servers :many
SELECT i.id, i.address, i.version, i.started, i.seen, i.load, i.connections, i.streams
FROM server_instance i
WHERE i.seen >= @since
ORDER BY i.started;

-- AddRates adds what this server has counted and returns what all have. Rows are
-- written in one order, so that servers do not wait for each other in a circle.
-- name: AddRates :many
INSERT INTO rate_window AS r (client, starts, expires, count)
SELECT n.client, n.starts, n.expires, n.count
FROM (
    SELECT unnest(@clients::bigint[]) AS client, unnest(@starts::bigint[]) AS starts,
        unnest(@expires::bigint[]) AS expires, unnest(@counts::bigint[]) AS count
) n
ORDER BY n.client, n.starts
ON CONFLICT (client, starts) DO UPDATE
SET count = r.count + excluded.count
RETURNING r.client, r.starts, r.count;

-- Rates are the windows of some clients.
-- name: Rates :many
SELECT r.client, r.starts, r.count
FROM rate_window r
WHERE r.client = ANY (@clients::bigint[]);

-- name: DropRates :exec
DELETE FROM rate_window r
WHERE r.expires < @now;

-- name: AddSearchShapes :exec
INSERT INTO search_shape AS s (shape, resource_type, parameters, calls, total_us, rows_read, buckets, last_run)
VALUES (@shape, @resource_type, @parameters, @calls, @total_us, @rows_read, @buckets, @last_run)
ON CONFLICT (shape) DO UPDATE
SET calls = s.calls + excluded.calls, total_us = s.total_us + excluded.total_us, rows_read = s.rows_read + excluded.rows_read,
    buckets = (
        SELECT array_agg(coalesce(a.n, 0) + coalesce(b.n, 0) ORDER BY i.i)
        FROM generate_series(1, cardinality(excluded.buckets)) i(i)
        LEFT JOIN unnest(s.buckets) WITH ORDINALITY a(n, i) ON a.i = i.i
        LEFT JOIN unnest(excluded.buckets) WITH ORDINALITY b(n, i) ON b.i = i.i
    ),
    last_run = excluded.last_run;

-- name: SearchShapes :many
SELECT s.shape, s.resource_type, s.parameters, s.calls, s.total_us, s.rows_read, s.buckets, s.last_run
FROM search_shape s
ORDER BY s.total_us DESC
LIMIT 1000;

-- DropSearchShapes keeps the most recent ones.
-- name: DropSearchShapes :exec
DELETE FROM search_shape s
WHERE s.shape IN (SELECT o.shape FROM search_shape o ORDER BY o.last_run DESC OFFSET @keep::integer);

-- name: PutIndexSuggestion :exec
INSERT INTO index_suggestion AS s (id, resource_type, parameters, shapes, name, statement, reason, improvement, proof, proved)
VALUES (@id, @resource_type, @parameters, @shapes, @name, @statement, @reason, @improvement, @proof, @proved)
ON CONFLICT (id) DO UPDATE
SET parameters = excluded.parameters, shapes = excluded.shapes, reason = excluded.reason, improvement = excluded.improvement,
    proof = excluded.proof, proved = excluded.proved;

-- name: IndexSuggestions :many
SELECT s.id, s.resource_type, s.parameters, s.shapes, s.name, s.statement, s.reason, s.improvement, s.proof, s.proved
FROM index_suggestion s
ORDER BY s.id;

-- name: DropIndexSuggestion :exec
DELETE FROM index_suggestion s
WHERE s.id = @id;

-- CancelReindexJob ends a job where it is. What it was for stays known as not
-- indexed, so that searches go on to warn of it.
-- name: CancelReindexJob :execrows
WITH cancelled AS (
    UPDATE reindex_job j
    SET finished = @now::timestamptz, planned = coalesce(j.planned, @now::timestamptz), horizon = coalesce(j.horizon, pg_current_xact_id()),
        cancelled = true, failed_keys = j.keys, failure = 'cancelled by an administrator'
    WHERE j.id = @id AND j.finished IS NULL
    RETURNING j.id
), ended AS (
    UPDATE job w
    SET state = 'cancelled', finished = clock_timestamp(), expires = clock_timestamp()
    FROM cancelled x
    WHERE w.id = x.id AND w.finished IS NULL
)
UPDATE search_registry g
SET progress = g.progress + 1
WHERE EXISTS (SELECT FROM cancelled x);

-- name: InsertAuditPending :exec
INSERT INTO audit_pending (events)
SELECT unnest(@groups::bytea[]);

-- name: AuditKept :one
SELECT coalesce(pg_sequence_last_value('audit_pending_id_seq'::regclass), 0)::bigint AS groups,
    coalesce(pg_sequence_last_value('audit_of_write_id_seq'::regclass), 0)::bigint AS of_writes;

-- AuditWaiting counts the groups of events that are not AuditEvents yet.
-- name: AuditWaiting :one
SELECT (SELECT count(*) FROM audit_pending) AS groups, (SELECT count(*) FROM audit_of_write) AS of_writes;

-- A group that another server is making AuditEvents of is passed over.
-- name: TakeAuditPending :one
DELETE FROM audit_pending
WHERE id = (
    SELECT p.id
    FROM audit_pending p
    ORDER BY p.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING events;

-- name: InsertAuditOfWrites :exec
INSERT INTO audit_of_write (events)
SELECT unnest(@events::bytea[]);

-- LastAuditOfWrites is 0 where there is none.
-- name: LastAuditOfWrites :one
SELECT coalesce(max(a.id), 0)::bigint FROM audit_of_write a;

-- Rows that another server is making AuditEvents of are passed over. They are deleted by
-- their places: a plan that joins reads the whole table, which may be long.
-- name: TakeAuditOfWrites :many
DELETE FROM audit_of_write
WHERE ctid = ANY (ARRAY(
    SELECT a.ctid
    FROM audit_of_write a
    ORDER BY a.id
    LIMIT @count
    FOR UPDATE SKIP LOCKED
))
RETURNING id, events;

-- As TakeAuditOfWrites, up to a row, but what another server is making AuditEvents of is
-- waited for.
-- name: AwaitAuditOfWrites :many
DELETE FROM audit_of_write
WHERE ctid = ANY (ARRAY(
    SELECT a.ctid
    FROM audit_of_write a
    WHERE a.id <= @last
    ORDER BY a.id
    LIMIT @count
    FOR UPDATE
))
RETURNING id, events;
