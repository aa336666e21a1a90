-- The Apps in force.

-- name: AppsVersion :one
SELECT a.version
FROM app_registry a;

-- BumpApps locks the row until the transaction ends: those who write Apps come one
-- after the other.
-- name: BumpApps :exec
UPDATE app_registry
SET version = version + 1;

-- name: AppSecrets :many
SELECT s.app, s.name, s.value, s.sealed
FROM app_secret s
WHERE @app::text = '' OR s.app = @app
ORDER BY s.app, s.name;

-- name: PutAppSecret :exec
INSERT INTO app_secret (app, name, value, sealed)
VALUES (@app, @name, @value, @sealed)
ON CONFLICT (app, name) DO UPDATE
SET value = excluded.value, sealed = excluded.sealed;

-- name: DeleteAppSecret :execrows
DELETE FROM app_secret s
WHERE s.app = @app AND s.name = @name;

-- name: DeleteAppSecrets :exec
DELETE FROM app_secret s
WHERE s.app = @app;

-- AddAppChains records which Apps led to versions.
-- name: AddAppChains :exec
INSERT INTO app_write (resource_type, resource_id, version, chain)
SELECT unnest(@resource_types::text[]), unnest(@resource_ids::text[]), unnest(@versions::integer[]), @chain::text[]
ON CONFLICT DO NOTHING;

-- AppChain is the chain of a version; none where no App has written it.
-- name: AppChain :many
SELECT w.chain
FROM app_write w
WHERE w.resource_type = @resource_type AND w.resource_id = @resource_id AND w.version = @version;

-- name: TrimAppChains :execrows
DELETE FROM app_write w
WHERE w.written < @before;

-- name: AddAppInvocations :exec
INSERT INTO app_invocation (id, app, at, operation, subscription, resource_type, resource_id, duration_us, outcome, status, request_id, level, lines)
SELECT unnest(@ids::uuid[]), unnest(@apps::text[]), unnest(@ats::timestamptz[]), unnest(@operations::text[]), unnest(@subscriptions::text[]),
    unnest(@resource_types::text[]), unnest(@resource_ids::text[]), unnest(@durations::bigint[]), unnest(@outcomes::text[]),
    unnest(@statuses::integer[]), unnest(@request_ids::text[]), unnest(@levels::smallint[]), unnest(@lines::text[])::jsonb
ON CONFLICT DO NOTHING;

-- AddAppLine adds a line to what is told of an invocation.
-- name: AddAppLine :exec
UPDATE app_invocation i
SET lines = i.lines || @line::jsonb, level = greatest(i.level, sqlc.arg(level)::smallint)
WHERE i.id = @id;

-- AppInvocations is the log of an App, newest first, from before an entry.
-- name: AppInvocations :many
SELECT i.id, i.app, i.at, i.operation, i.subscription, i.resource_type, i.resource_id, i.duration_us, i.outcome, i.status, i.request_id, i.level, i.lines
FROM app_invocation i
WHERE i.app = @app AND i.at >= @since AND (i.at, i.id) < (@before::timestamptz, @before_id::uuid) AND i.level >= sqlc.arg(level)::smallint
ORDER BY i.at DESC, i.id DESC
LIMIT @count;

-- TrimAppInvocations deletes what is old, and of each App what is more than keep.
-- name: TrimAppInvocations :execrows
DELETE FROM app_invocation i
WHERE i.id IN (
    SELECT o.id FROM app_invocation o WHERE o.at < @before
    UNION ALL
    SELECT n.id
    FROM (SELECT r.id, row_number() OVER (PARTITION BY r.app ORDER BY r.at DESC, r.id DESC) AS place FROM app_invocation r) n
    WHERE n.place > sqlc.arg(keep)::bigint
);

-- AppSubscriptions are the subscriptions that an App has or had; of all Apps where app is ''.
-- name: AppSubscriptions :many
SELECT s.app, s.number, s.name, s.content, s.current
FROM app_subscription s
WHERE @app::text = '' OR s.app = @app
ORDER BY s.app, s.number;

-- PutAppSubscriptions stores the subscriptions of an App that are new or have changed.
-- name: PutAppSubscriptions :exec
INSERT INTO app_subscription (app, number, name, content, current)
SELECT @app::text, unnest(@numbers::integer[]), unnest(@names::text[]), unnest(@contents::text[]), unnest(@currents::boolean[])
ON CONFLICT (app, number) DO UPDATE
SET name = excluded.name, content = excluded.content, current = excluded.current;

-- AppQueue tells of each App how many deliveries wait for its subscriptions, and how old the oldest is.
-- name: AppQueue :many
SELECT split_part(d.subscriber, '/', 2)::text AS app, count(*) AS depth, extract(epoch FROM now() - min(d.queued))::float8 AS age
FROM notification_delivery d
WHERE d.status IN ('p', 'i') AND d.subscriber LIKE 'App/%'
GROUP BY 1;

-- AppsWithoutGrant returns ids of active Apps whose own client has no scopes, or is disabled,
-- although their subscriptions or a handler with auth app need some.
-- name: AppsWithoutGrant :many
SELECT r.id
FROM resource_json r
WHERE r.type = 'App' AND r.body ->> 'status' = 'active'
    AND (r.body ? 'subscriptions' OR r.body @> '{"operations": [{"handler": {"auth": "app"}}]}')
    AND NOT EXISTS (
        SELECT FROM oauth_client c
        WHERE c.id = 'app-' || r.id AND c.active AND jsonb_typeof(c.registration -> 'scopes') = 'array' AND c.registration -> 'scopes' <> '[]'
    )
ORDER BY r.id
LIMIT @count;
