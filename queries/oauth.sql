-- name: OAuthClient :one
SELECT c.id, c.registration, c.secret, c.active, c.created, c.updated
FROM oauth_client c
WHERE c.id = @id;

-- name: OAuthClients :many
SELECT c.id, c.registration, c.secret, c.active, c.created, c.updated
FROM oauth_client c
ORDER BY c.id;

-- name: InsertOAuthClient :execrows
INSERT INTO oauth_client (id, registration, secret, active, created, updated)
VALUES (@id, @registration, @secret, @active, @now::timestamptz, @now::timestamptz)
ON CONFLICT DO NOTHING;

-- name: UpdateOAuthClient :execrows
UPDATE oauth_client c
SET registration = @registration, secret = @secret, active = @active, updated = @now::timestamptz
WHERE c.id = @id;

-- name: DeleteOAuthClient :execrows
DELETE FROM oauth_client c
WHERE c.id = @id;

-- name: OAuthUser :one
SELECT u.username, u.password, u.profile, u.active, u.created, u.updated
FROM oauth_user u
WHERE u.username = @username;

-- name: OAuthUsers :many
SELECT u.username, u.password, u.profile, u.active, u.created, u.updated
FROM oauth_user u
ORDER BY u.username;

-- name: InsertOAuthUser :execrows
INSERT INTO oauth_user (username, password, profile, active, created, updated)
VALUES (@username, @password, @profile, @active, @now::timestamptz, @now::timestamptz)
ON CONFLICT DO NOTHING;

-- name: UpdateOAuthUser :execrows
UPDATE oauth_user u
SET password = @password, profile = @profile, active = @active, updated = @now::timestamptz
WHERE u.username = @username;

-- name: DeleteOAuthUser :execrows
DELETE FROM oauth_user u
WHERE u.username = @username;

-- name: OAuthIdentity :one
SELECT i.username
FROM oauth_identity i
WHERE i.issuer = @issuer AND i.subject = @subject;

-- name: InsertOAuthIdentity :execrows
INSERT INTO oauth_identity (issuer, subject, username)
VALUES (@issuer, @subject, @username)
ON CONFLICT DO NOTHING;

-- LockOAuthUser lets one change of a user after the other.
-- name: LockOAuthUser :one
SELECT u.username, u.password, u.profile, u.active, u.created, u.updated
FROM oauth_user u
WHERE u.username = @username
FOR UPDATE;

-- name: OAuthUserHasIdentity :one
SELECT EXISTS (SELECT FROM oauth_identity i WHERE i.username = @username) AS linked;

-- name: DeleteOAuthIdentities :exec
DELETE FROM oauth_identity i
WHERE i.username = @username;

-- name: OAuthKeys :many
SELECT k.kid, k.algorithm, k.private, k.sealed, k.created, k.signs_from, k.published_until, k.tokens_until
FROM oauth_key k
ORDER BY k.signs_from, k.kid;

-- name: InsertOAuthKey :exec
INSERT INTO oauth_key (kid, algorithm, private, sealed, created, signs_from, published_until, tokens_until)
VALUES (@kid, @algorithm, @private, @sealed, @created, @signs_from, @published_until, @tokens_until);

-- name: SealOAuthKey :exec
UPDATE oauth_key k
SET private = @private, sealed = true
WHERE k.kid = @kid;

-- name: StartOAuthKey :exec
UPDATE oauth_key k
SET signs_from = @signs_from::timestamptz
WHERE k.kid = @kid;

-- KeepOAuthKey also keeps a key that is retired already: it may sign for another day.
-- name: KeepOAuthKey :exec
UPDATE oauth_key k
SET tokens_until = greatest(k.tokens_until, @tokens_until::timestamptz),
    published_until = greatest(k.published_until, @tokens_until::timestamptz)
WHERE k.kid = @kid;

-- name: RetireOAuthKey :exec
UPDATE oauth_key k
SET published_until = greatest(k.tokens_until, @signs_until::timestamptz)
WHERE k.kid = @kid;

-- DeleteOAuthKey withdraws a key, whatever tokens it has signed.
-- name: DeleteOAuthKey :exec
DELETE FROM oauth_key k
WHERE k.kid = @kid;

-- name: DeleteOAuthKeys :exec
DELETE FROM oauth_key k
WHERE k.published_until < @now::timestamptz;

-- name: LockOAuthKeys :exec
SELECT pg_advisory_xact_lock(7380938241);

-- name: InsertOAuthCode :exec
INSERT INTO oauth_code (signature, grant_id, client_id, request, expires)
VALUES (@signature, @grant_id, @client_id, @request, @expires);

-- name: OAuthCode :one
SELECT c.signature, c.grant_id, c.client_id, c.request, c.active, c.expires
FROM oauth_code c
WHERE c.signature = @signature;

-- UseOAuthCode changes one row exactly once.
-- name: UseOAuthCode :execrows
UPDATE oauth_code c
SET active = false
WHERE c.signature = @signature AND c.active;

-- A code that was used stays: its second use revokes what it gave.
-- name: DeleteOAuthCodesOfUser :exec
DELETE FROM oauth_code c
WHERE c.active AND c.request #>> '{session,username}' = @username::text;

-- name: DeleteOAuthCodesOfClient :exec
DELETE FROM oauth_code c
WHERE c.active AND c.client_id = @client_id;

-- DeleteOAuthCodesOfLogin leaves the codes of what outlives the sign-in. The expiry serves the
-- index: a code that is over gives nothing.
-- name: DeleteOAuthCodesOfLogin :exec
DELETE FROM oauth_code c
WHERE c.active AND c.expires > @now::timestamptz
    AND c.request #>> '{session,login}' = @login::text
    AND NOT c.request -> 'grantedScope' @> '["offline_access"]';

-- name: InsertOAuthGrant :exec
INSERT INTO oauth_grant (id, client_id, username, login, scope, context, created, expires, used)
VALUES (@id, @client_id, @username, @login, @scope, @context, @created, @expires, @created)
ON CONFLICT (id) DO UPDATE
SET expires = greatest(oauth_grant.expires, excluded.expires), used = excluded.used;

-- name: OAuthGrantContext :one
SELECT g.context
FROM oauth_grant g
WHERE g.id = @id;

-- name: RevokeOAuthGrant :execrows
UPDATE oauth_grant g
SET revoked = true
WHERE g.id = @id;

-- name: RevokeOAuthGrantsOfUser :many
UPDATE oauth_grant g
SET revoked = true
WHERE g.username = @username AND NOT g.revoked AND g.expires > @now::timestamptz
RETURNING g.id;

-- name: RevokeOAuthGrantsOfClient :many
UPDATE oauth_grant g
SET revoked = true
WHERE g.client_id = @client_id AND NOT g.revoked AND g.expires > @now::timestamptz
RETURNING g.id;

-- name: RevokeOAuthGrantsOfLogin :many
UPDATE oauth_grant g
SET revoked = true
WHERE g.login = @login AND NOT g.revoked
RETURNING g.id;

-- OAuthAccess lists the access of clients to users' data: stored consents, and
-- authorizations that are good. The console is the server's own and not among them. A page of it begins after a user and a client.
-- name: OAuthAccess :many
WITH authorized AS (
    SELECT g.username, g.client_id, min(g.created) AS since, max(g.used) AS used, string_agg(DISTINCT g.scope, ' ') AS scope,
        bool_or(NOT g.revoked AND g.expires > @now::timestamptz) AS good
    FROM oauth_grant g
    WHERE NOT g.revoked AND g.client_id <> 'kiln-console' AND (g.username = @username::text OR @username::text = '') AND (g.client_id = @client_id::text OR @client_id::text = '')
    GROUP BY g.username, g.client_id
), consented AS (
    SELECT c.username, c.client_id, c.scope, c.granted
    FROM oauth_consent c
    WHERE (c.username = @username::text OR @username::text = '') AND (c.client_id = @client_id::text OR @client_id::text = '')
)
SELECT coalesce(c.username, a.username)::text AS username,
    coalesce(c.client_id, a.client_id)::text AS client_id,
    coalesce(c.scope, a.scope, '')::text AS scope,
    coalesce(c.granted, a.since)::timestamptz AS since,
    coalesce(a.used, 'epoch')::timestamptz AS used
FROM consented c
FULL JOIN authorized a ON a.username = c.username AND a.client_id = c.client_id
WHERE (c.username IS NOT NULL OR a.good)
    AND (coalesce(c.username, a.username), coalesce(c.client_id, a.client_id)) > (@after_username::text, @after_client_id::text)
ORDER BY 1, 2
LIMIT @most;

-- name: RevokeOAuthGrantsOfUserAndClient :many
UPDATE oauth_grant g
SET revoked = true
WHERE g.username = @username AND g.client_id = @client_id AND NOT g.revoked
RETURNING g.id;

-- name: DeleteOAuthCodesOfUserAndClient :exec
DELETE FROM oauth_code c
WHERE c.active AND c.client_id = @client_id AND c.request #>> '{session,username}' = @username::text;

-- name: DeleteOAuthFlowsOfUserAndClient :exec
DELETE FROM oauth_flow f
WHERE NOT f.done AND f.state ->> 'username' = @username::text AND f.state ->> 'clientId' = @client_id::text;

-- name: InsertOAuthRefresh :exec
INSERT INTO oauth_refresh (signature, grant_id, client_id, request, expires)
VALUES (@signature, @grant_id, @client_id, @request, @expires);

-- name: OAuthRefresh :one
SELECT r.signature, r.grant_id, r.client_id, r.request, r.active, r.rotated, r.expires, coalesce(g.revoked, false)::boolean AS revoked
FROM oauth_refresh r
LEFT JOIN oauth_grant g ON g.id = r.grant_id
WHERE r.signature = @signature;

-- RotateOAuthRefresh changes one row exactly once.
-- name: RotateOAuthRefresh :execrows
UPDATE oauth_refresh r
SET active = false, rotated = @now::timestamptz
WHERE r.signature = @signature AND r.active;

-- name: RevokeOAuthRefresh :exec
UPDATE oauth_refresh r
SET active = false
WHERE r.grant_id = ANY (@grants::text[]) AND r.active;

-- name: InsertOAuthRevocations :exec
INSERT INTO oauth_revocation (kind, id, before, expires, recorded)
SELECT @kind::text, unnest(@ids::text[]), @before::timestamptz, @expires::timestamptz, clock_timestamp()
ON CONFLICT (kind, id) DO UPDATE
SET before = greatest(oauth_revocation.before, excluded.before),
    expires = greatest(oauth_revocation.expires, excluded.expires),
    recorded = excluded.recorded;

-- name: OAuthRevocations :many
SELECT r.kind, r.id, r.before, r.expires, r.recorded
FROM oauth_revocation r
WHERE r.recorded > @since::timestamptz;

-- OAuthStanding says in one row what is known against a token that was given once.
-- name: OAuthStanding :one
SELECT
    coalesce((SELECT c.active FROM oauth_client c WHERE c.id = @client_id::text), false)::boolean AS client_active,
    EXISTS (SELECT FROM oauth_client c WHERE c.id = @client_id::text) AS client_known,
    coalesce((SELECT r.before FROM oauth_revocation r WHERE r.kind = 'client' AND r.id = @client_id::text), 'epoch')::timestamptz AS client_before,
    coalesce((SELECT u.active FROM oauth_user u WHERE u.username = @username::text), false)::boolean AS user_active,
    (EXISTS (SELECT FROM oauth_revocation r WHERE r.kind = 'token' AND r.id = @token::text)
        OR EXISTS (SELECT FROM oauth_revocation r WHERE r.kind = 'grant' AND r.id = @grant_id::text)
        OR EXISTS (SELECT FROM oauth_grant g WHERE g.id = @grant_id::text AND g.revoked))::boolean AS revoked,
    EXISTS (SELECT FROM oauth_apikey k WHERE k.id = @token::text AND NOT k.revoked AND k.expires > @now::timestamptz) AS apikey;

-- name: InsertOAuthAssertion :execrows
INSERT INTO oauth_assertion (issuer, jti, expires)
VALUES (@issuer, @jti, @expires)
ON CONFLICT DO NOTHING;

-- name: PutOAuthLogin :exec
INSERT INTO oauth_login (id, username, authenticated, expires)
VALUES (@id, @username, @authenticated, @expires)
ON CONFLICT (id) DO UPDATE
SET username = excluded.username, authenticated = excluded.authenticated, expires = excluded.expires;

-- name: OAuthLogin :one
SELECT l.id, l.username, l.authenticated, l.expires
FROM oauth_login l
WHERE l.id = @id;

-- name: DeleteOAuthLogin :exec
DELETE FROM oauth_login l
WHERE l.id = @id;

-- name: DeleteOAuthLoginsOfUser :exec
DELETE FROM oauth_login l
WHERE l.username = @username;

-- name: InsertOAuthFlow :exec
INSERT INTO oauth_flow (id, browser, state, expires)
VALUES (@id, @browser, @state, @expires);

-- name: OAuthFlow :one
SELECT f.id, f.browser, f.state, f.done, f.expires
FROM oauth_flow f
WHERE f.id = @id;

-- LockOAuthFlow lets one sign-in of a flow after the other.
-- name: LockOAuthFlow :one
SELECT f.id, f.browser, f.state, f.done, f.expires
FROM oauth_flow f
WHERE f.id = @id
FOR UPDATE;

-- UpdateOAuthFlow answers 0 where another request has ended the flow.
-- name: UpdateOAuthFlow :execrows
UPDATE oauth_flow f
SET state = @state, browser = @browser, done = @done, expires = @expires
WHERE f.id = @id AND NOT f.done;

-- name: DeleteOAuthFlowsOfUser :exec
DELETE FROM oauth_flow f
WHERE NOT f.done AND f.state ->> 'username' = @username::text;

-- name: DeleteOAuthFlowsOfBrowser :exec
DELETE FROM oauth_flow f
WHERE NOT f.done AND f.browser = @browser;

-- AnswerOAuthFlow changes what a flow that has ended has answered.
-- name: AnswerOAuthFlow :execrows
UPDATE oauth_flow f
SET state = @state
WHERE f.id = @id AND f.done;

-- name: MoveOAuthFlows :exec
UPDATE oauth_flow f
SET browser = @new_browser::text
WHERE f.browser = @browser;

-- name: InsertOAuthLaunch :exec
INSERT INTO oauth_launch (id, context, expires)
VALUES (@id, @context, @expires);

-- name: OAuthLaunch :one
SELECT l.id, l.context, l.used, l.expires
FROM oauth_launch l
WHERE l.id = @id;

-- UseOAuthLaunch changes one row exactly once.
-- name: UseOAuthLaunch :execrows
UPDATE oauth_launch l
SET used = true
WHERE l.id = @id AND NOT l.used;

-- name: OAuthConsent :one
SELECT c.username, c.client_id, c.scope, c.granted
FROM oauth_consent c
WHERE c.username = @username AND c.client_id = @client_id;

-- name: PutOAuthConsent :exec
INSERT INTO oauth_consent (username, client_id, scope, granted)
VALUES (@username, @client_id, @scope, @granted)
ON CONFLICT (username, client_id) DO UPDATE
SET scope = excluded.scope, granted = excluded.granted;

-- name: DeleteOAuthConsent :execrows
DELETE FROM oauth_consent c
WHERE c.username = @username AND c.client_id = @client_id;

-- name: DeleteOAuthConsents :exec
DELETE FROM oauth_consent c
WHERE (c.username = @username OR @username::text = '') AND (c.client_id = @client_id OR @client_id::text = '');

-- CountOAuthFailure adds a failure; one that is older than the lockout counts no more.
-- name: CountOAuthFailure :one
INSERT INTO oauth_failure (subject, address, failures, last)
VALUES (@subject, @address, 1, @now::timestamptz)
ON CONFLICT (subject, address) DO UPDATE
SET failures = CASE WHEN oauth_failure.last < @forget::timestamptz THEN 1 ELSE oauth_failure.failures + 1 END,
    locked_until = CASE
        WHEN oauth_failure.last >= @forget::timestamptz AND oauth_failure.failures + 1 >= @most::integer
        THEN @until::timestamptz
        ELSE oauth_failure.locked_until
    END,
    last = @now::timestamptz
RETURNING failures, locked_until;

-- name: OAuthLockedUntil :one
SELECT coalesce(max(f.locked_until), 'epoch')::timestamptz AS until
FROM oauth_failure f
WHERE f.subject = @subject AND f.address IN ('', @address::text);

-- name: ClearOAuthFailures :exec
DELETE FROM oauth_failure f
WHERE f.subject = @subject AND f.address IN ('', @address::text);

-- name: ClearAllOAuthFailures :exec
DELETE FROM oauth_failure f
WHERE f.subject = @subject;

-- name: InsertOAuthAPIKey :exec
INSERT INTO oauth_apikey (id, hash, name, scope, created, expires)
VALUES (@id, @hash, @name, @scope, @created, @expires);

-- name: OAuthAPIKey :one
SELECT k.id, k.hash, k.name, k.scope, k.created, k.expires, k.revoked
FROM oauth_apikey k
WHERE k.id = @id;

-- name: OAuthAPIKeys :many
SELECT k.id, k.hash, k.name, k.scope, k.created, k.expires, k.revoked
FROM oauth_apikey k
ORDER BY k.created, k.id;

-- name: RevokeOAuthAPIKey :execrows
UPDATE oauth_apikey k
SET revoked = true
WHERE k.id = @id;

-- name: DeleteOAuthAPIKey :exec
DELETE FROM oauth_apikey k
WHERE k.id = @id;

-- name: SweepOAuthCodes :exec
DELETE FROM oauth_code c
WHERE c.expires < @before::timestamptz;

-- name: SweepOAuthRefresh :exec
DELETE FROM oauth_refresh r
WHERE r.expires < @before::timestamptz;

-- name: SweepOAuthGrants :exec
DELETE FROM oauth_grant g
WHERE g.expires < @before::timestamptz;

-- name: SweepOAuthAssertions :exec
DELETE FROM oauth_assertion a
WHERE a.expires < @before::timestamptz;

-- name: SweepOAuthLogins :exec
DELETE FROM oauth_login l
WHERE l.expires < @before::timestamptz;

-- name: SweepOAuthFlows :exec
DELETE FROM oauth_flow f
WHERE f.expires < @before::timestamptz;

-- name: SweepOAuthLaunches :exec
DELETE FROM oauth_launch l
WHERE l.expires < @before::timestamptz;

-- name: SweepOAuthRevocations :exec
DELETE FROM oauth_revocation r
WHERE r.expires < @before::timestamptz;

-- name: SweepOAuthFailures :exec
DELETE FROM oauth_failure f
WHERE f.last < @before::timestamptz AND f.locked_until < @before::timestamptz;
