-- Access policies, see schema/0005_administration.sql.

-- name: ReadPolicyVersion :one
SELECT v.version
FROM policy_version v;

-- name: ReadPolicies :many
SELECT p.name, p.document
FROM policy p
ORDER BY p.name;

-- RaisePolicyVersion locks the policies until the transaction ends: one change after
-- the other.
-- name: RaisePolicyVersion :one
UPDATE policy_version
SET version = version + 1
RETURNING version;

-- name: ReadPolicy :one
SELECT p.document
FROM policy p
WHERE p.name = @name;

-- name: PutPolicy :one
INSERT INTO policy (name, document, last_updated)
VALUES (@name, @document, @last_updated)
ON CONFLICT (name) DO UPDATE SET document = excluded.document, last_updated = excluded.last_updated
RETURNING (xmax = 0)::boolean AS created;

-- name: DeletePolicy :execrows
DELETE FROM policy p
WHERE p.name = @name;
