-- The console: key, sessions, sent requests.

-- name: AddConsoleKey :exec
INSERT INTO console_key (key)
VALUES (@key)
ON CONFLICT DO NOTHING;

-- name: ReadConsoleKey :one
SELECT k.key
FROM console_key k;

-- name: AddConsoleSession :exec
INSERT INTO console_session (id, grant_id, username, started, last_active, address)
VALUES (@id, @grant_id, @username, @started, @last_active, @address);

-- FindConsoleSession is a session whose grant is good and whose user is active.
-- name: FindConsoleSession :one
SELECT s.id, s.grant_id, s.username, s.started, s.last_active, s.address, g.scope, u.profile
FROM console_session s
JOIN oauth_grant g ON g.id = s.grant_id
JOIN oauth_user u ON u.username = s.username
WHERE s.id = @id AND NOT g.revoked AND u.active;

-- name: ListConsoleSessions :many
SELECT s.id, s.grant_id, s.username, s.started, s.last_active, s.address
FROM console_session s
JOIN oauth_grant g ON g.id = s.grant_id
JOIN oauth_user u ON u.username = s.username
WHERE NOT g.revoked AND u.active AND s.last_active > @idle_since AND s.started > @started_after
    AND (s.username = @username::text OR @username::text = '')
ORDER BY s.started DESC, s.grant_id
LIMIT @most;

-- name: TouchConsoleSession :exec
UPDATE console_session s
SET last_active = @now
WHERE s.id = @id AND s.last_active < @now;

-- name: DeleteConsoleSession :many
DELETE FROM console_session s
WHERE s.grant_id = @grant_id
RETURNING s.username;

-- name: SweepConsoleSessions :many
DELETE FROM console_session s
WHERE s.last_active < @idle_since OR s.started < @started_before
RETURNING s.grant_id;

-- name: AddConsoleRequest :exec
INSERT INTO console_request (id, session, at, request)
VALUES (@id, @session, @at, @request);

-- name: FindConsoleRequest :one
SELECT r.id, r.at, r.request
FROM console_request r
WHERE r.id = @id AND r.session = @session;

-- name: ListConsoleRequests :many
SELECT r.id, r.at, r.request
FROM console_request r
WHERE r.session = @session
ORDER BY r.at DESC
LIMIT 20;

-- name: SweepConsoleRequests :exec
DELETE FROM console_request r
WHERE r.at < @before OR r.session = @session AND r.id NOT IN (
    SELECT k.id FROM console_request k WHERE k.session = @session ORDER BY k.at DESC LIMIT 20
);

-- TakeConsoleRequest deletes a row and returns it: of several servers one gets it.
-- name: TakeConsoleRequest :one
DELETE FROM console_request r
WHERE r.id = @id AND r.session = @session
RETURNING r.at, r.request;

-- SweepConsoleSecrets deletes secrets that nobody has looked at.
-- name: SweepConsoleSecrets :exec
DELETE FROM console_request r
WHERE r.session LIKE 'secret %' AND r.at < @before;

-- name: DeleteConsoleRequests :exec
DELETE FROM console_request r
WHERE r.session = @session;

-- name: OAuthGrantLogin :one
SELECT g.login
FROM oauth_grant g
WHERE g.id = @id;
