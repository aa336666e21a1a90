-- Traffic and backups, as operators see them.

-- name: AddTraffic :exec
INSERT INTO traffic_minute AS t (at, server, requests, errors, p50_ms, p95_ms)
VALUES (@at, @server, @requests, @errors, @p50_ms, @p95_ms)
ON CONFLICT (at, server) DO UPDATE
SET requests = t.requests + excluded.requests, errors = t.errors + excluded.errors,
    p50_ms = greatest(t.p50_ms, excluded.p50_ms), p95_ms = greatest(t.p95_ms, excluded.p95_ms);

-- name: ListTraffic :many
SELECT t.at, t.server, t.requests, t.errors, t.p50_ms, t.p95_ms
FROM traffic_minute t
WHERE t.at >= @since
ORDER BY t.at, t.server;

-- name: SweepTraffic :exec
DELETE FROM traffic_minute t
WHERE t.at < @before;

-- name: AddBackup :exec
INSERT INTO backup_run (started, ended, bytes, verified)
VALUES (@started, @ended, @bytes, @verified)
ON CONFLICT (started) DO UPDATE
SET ended = excluded.ended, bytes = excluded.bytes, verified = excluded.verified;

-- name: ListBackups :many
SELECT b.started, b.ended, b.bytes, b.verified
FROM backup_run b
ORDER BY b.started DESC
LIMIT 100;
