-- TerminologyVersions counts the versions that the terminology resources have ever
-- had: every create, update and delete adds one. Counted type by type, so that only
-- their part of the index is read.
-- name: TerminologyVersions :one
SELECT coalesce(sum(c.current + c.past), 0)::bigint AS versions
FROM resource_type t
CROSS JOIN LATERAL (
    SELECT
        (SELECT count(*) FROM resource r WHERE r.typ = t.typ) AS current,
        (SELECT count(*) FROM resource_history h WHERE h.typ = t.typ) AS past
    OFFSET 0
) c
WHERE t.name = ANY (@names::text[]);

-- name: ResourcesByTerm :many
SELECT r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.terms @> ARRAY[@term::bigint]
ORDER BY r.rid
LIMIT @most::integer;

-- name: ReadTerminologyAnswer :one
SELECT a.body, a.fetched
FROM terminology_answer a
WHERE a.key = @key;

-- An answer that is newer than this one stays.
-- name: PutTerminologyAnswer :exec
INSERT INTO terminology_answer (key, fetched, body)
VALUES (@key, @fetched, @body)
ON CONFLICT (key) DO UPDATE
SET fetched = excluded.fetched, body = excluded.body
WHERE terminology_answer.fetched < excluded.fetched;

-- name: DropTerminologyAnswers :exec
DELETE FROM terminology_answer a
WHERE a.fetched < @fetched_before::timestamptz;

-- TouchTerminologySet waits for whoever is dropping the set.
-- name: TouchTerminologySet :execrows
UPDATE terminology_set s
SET used = greatest(s.used, @used::timestamptz)
WHERE s.id = @id;

-- name: InsertTerminologySet :exec
INSERT INTO terminology_set (id, used)
VALUES (@id, @used::timestamptz)
ON CONFLICT (id) DO UPDATE
SET used = greatest(terminology_set.used, excluded.used);

-- name: InsertTerminologySetValues :exec
INSERT INTO terminology_set_value (set_id, value)
SELECT @id::bigint, unnest(@values::bigint[])
ON CONFLICT DO NOTHING;

-- name: DropTerminologySets :many
DELETE FROM terminology_set s
WHERE s.used < @used_before::timestamptz
RETURNING s.id;

-- name: DropTerminologySetValues :exec
DELETE FROM terminology_set_value v
WHERE v.set_id = ANY (@ids::bigint[]);
