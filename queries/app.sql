-- The Apps in force.

-- name: AppsVersion :one
SELECT a.version
FROM app_registry a;

-- BumpApps locks the row until the transaction ends: those who write Apps come one
-- after the other.
-- name: BumpApps :exec
UPDATE app_registry
SET version = version + 1;
