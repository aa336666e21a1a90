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
