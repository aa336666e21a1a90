-- The search parameters in force, and the jobs that bring the index up to them.

-- ParametersState is the row of search_registry, with the parts of the types that have more than one, as
-- type << 48 | parts.
-- name: ParametersState :one
SELECT g.version, g.progress, g.definitions, g.fingerprint, g.epoch, g.moment, ARRAY(
    SELECT (n.typ::bigint << 48) | (n.announced >> 20)
    FROM rid_next n
    WHERE n.announced >> 20 > 1
)::bigint[] AS more_parts
FROM search_registry g;

-- SearchParameters returns the version of the search parameters with the stored
-- SearchParameters, as of one snapshot: all current ones, without the body where the
-- caller knows that version. With none stored there is one row without id.
-- name: SearchParameters :many
SELECT g.version AS parameters_version, g.progress, coalesce(r.rid, 0)::bigint AS rid, coalesce(r.id, '')::text AS id,
    coalesce(r.version, 0)::integer AS version, (CASE WHEN k.rid IS NULL THEN r.body END)::bytea AS body
FROM search_registry g
LEFT JOIN resource r ON r.rid >= @low::bigint AND r.rid <= @high::bigint
LEFT JOIN (SELECT unnest(@known_rids::bigint[]) AS rid, unnest(@known_versions::integer[]) AS version) k
    ON k.rid = r.rid AND k.version = r.version
ORDER BY r.rid;

-- CheckPrepared divides by zero when the writes of a transaction were prepared in another
-- epoch, when one of the versions that their index entries were made by is not the current one,
-- or when one of their last updates is not later than the moment of every export: the cheapest
-- way for a statement of a pipeline to end the transaction.
-- name: CheckPrepared :exec
SELECT 1 / (g.epoch = ALL (@epochs::bigint[]) AND g.version = ALL (@versions::bigint[])
    AND g.moment < ALL (@last_updateds::timestamptz[]))::integer
FROM search_registry g;

-- LockParameters locks the row until the transaction ends: those who write
-- SearchParameters come one after the other.
-- name: LockParameters :one
SELECT g.version, g.fingerprint
FROM search_registry g
FOR UPDATE;

-- name: RaiseParametersVersion :one
UPDATE search_registry g
SET version = g.version + 1
RETURNING g.version;

-- LockResourceTypes lets no type be stored for the first time before the
-- transaction ends.
-- name: LockResourceTypes :exec
LOCK TABLE resource_type IN SHARE MODE;

-- IndexedOtherwise are the types that may have resources, and whose index was made
-- by other search parameters than the fingerprints tell.
-- name: IndexedOtherwise :many
SELECT t.name
FROM resource_type t
JOIN (SELECT unnest(@types::text[]) AS name, unnest(@fingerprints::bigint[]) AS fingerprint) own ON own.name = t.name
LEFT JOIN index_fingerprint f ON f.resource_type = t.name
WHERE f.fingerprint IS DISTINCT FROM own.fingerprint
ORDER BY t.name;

-- SetFingerprints records which build the index belongs to, raises the version of the
-- search parameters and returns it. With fresh it does so, and returns a row, only on
-- a new database: no resource was ever stored in it, and no server has recorded its
-- build.
-- name: SetFingerprints :one
WITH own AS (
    UPDATE search_registry g
    SET version = g.version + 1, fingerprint = @fingerprint
    WHERE NOT @fresh::boolean OR g.fingerprint = 0 AND NOT EXISTS (SELECT FROM resource_type)
    RETURNING g.version
), stored AS (
    INSERT INTO index_fingerprint AS f (resource_type, fingerprint)
    SELECT u.name, u.fingerprint
    FROM own, (SELECT unnest(@types::text[]) AS name, unnest(@fingerprints::bigint[]) AS fingerprint) u
    ON CONFLICT (resource_type) DO UPDATE
    SET fingerprint = excluded.fingerprint
    WHERE f.fingerprint <> excluded.fingerprint
)
SELECT o.version
FROM own o;

-- RaiseProgress lets every server read anew what searches may use; writes go on.
-- name: RaiseProgress :exec
UPDATE search_registry g
SET progress = g.progress + 1;

-- name: BumpDefinitions :exec
UPDATE search_registry g
SET definitions = g.definitions + 1;

-- name: AddReindexJob :exec
INSERT INTO reindex_job (id, resource_type, parameters, keys, ranges, registry, created, reason)
SELECT @id, @resource_type, @parameters::text[], @keys::bigint[], @ranges, @parameters_version, @created, @reason;

-- name: ReindexJobs :many
SELECT j.id, j.resource_type, j.parameters, j.keys, j.ranges, j.registry AS parameters_version, j.created, j.planned, j.finished,
    j.total, j.done, j.changed, j.failed, j.failure, j.failed_keys, j.cancelled, j.reason, coalesce(w.state, '') AS state,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id) AS parts,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id AND p.state = 'done') AS parts_done,
    (SELECT coalesce(max(p.attempts), 0) FROM job_part p WHERE p.job = j.id)::integer AS attempts
FROM reindex_job j
LEFT JOIN job w ON w.id = j.id
ORDER BY j.id;

-- SetReindexHorizons sets the transaction id below which all transactions must be over before a job begins: its own, which
-- is higher than every id that was assigned before.
-- name: SetReindexHorizons :execrows
UPDATE reindex_job j
SET horizon = pg_current_xact_id(), horizon_epoch = g.epoch
FROM search_registry g
WHERE j.horizon IS NULL;

-- ClaimReindexPlan locks a job whose work has not begun and could.
-- name: ClaimReindexPlan :one
SELECT j.id, j.resource_type, j.parameters, j.keys, j.reason
FROM reindex_job j
WHERE j.planned IS NULL AND (j.horizon_epoch, j.horizon) <= ((SELECT g.epoch FROM search_registry g), pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY j.id
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- PlanReindex adds the work of a job to the core (job): each part is a range of surrogates of the type. A type
-- without resources needs none.
-- name: PlanReindex :one
WITH numbered AS (
    SELECT r.rid, (row_number() OVER (ORDER BY r.rid) - 1) / @size::bigint AS part
    FROM resource r
    WHERE r.rid >= @low::bigint AND r.rid <= @high::bigint
), part AS (
    SELECT n.part + 1 AS number, min(n.rid) AS low, max(n.rid) AS high, count(*) AS resources
    FROM numbered n
    GROUP BY n.part
), sum AS (
    SELECT coalesce(sum(p.resources), 0)::bigint AS resources
    FROM part p
), job AS (
    INSERT INTO job (id, type, state, client, username, principal, request, base, spec, reason, created, total)
    SELECT sqlc.arg(job)::text, 'reindex', 'waiting', '', '', '{}', '', '', '{}', sqlc.arg(reason)::text, clock_timestamp(), s.resources
    FROM sum s
    WHERE s.resources > 0
), added AS (
    INSERT INTO job_part (job, number, stage, spec)
    SELECT sqlc.arg(job)::text, p.number, 0, jsonb_build_object('low', p.low, 'high', p.high)
    FROM part p
)
SELECT s.resources AS total
FROM sum s;

-- name: SetReindexPlanned :exec
UPDATE reindex_job j
SET planned = @planned::timestamptz, total = @total
WHERE j.id = @id;

-- name: ReindexWork :one
SELECT j.ranges, j.registry AS parameters_version, j.keys
FROM reindex_job j
WHERE j.id = @id;

-- name: ReindexResources :many
SELECT r.rid, r.ref, r.id, r.version, r.terms, r.targets, r.body
FROM resource r
WHERE r.rid >= @low::bigint AND r.rid <= @high::bigint
ORDER BY r.rid
LIMIT @most::integer;

-- UpdateTerms replaces what a resource is found by. It is no new version.
-- name: UpdateTerms :exec
UPDATE resource r
SET terms = (@terms::bigint[])[u.terms_low:u.terms_high], targets = (@targets::bigint[])[u.targets_low:u.targets_high],
    ranges = u.ranges
FROM (
    SELECT unnest(@refs::bigint[]) AS ref,
        unnest(@terms_lows::integer[]) AS terms_low, unnest(@terms_highs::integer[]) AS terms_high,
        unnest(@targets_lows::integer[]) AS targets_low, unnest(@targets_highs::integer[]) AS targets_high,
        unnest(@ranges::bigint[]) AS ranges
) u
WHERE r.ref = u.ref AND r.shard = (u.ref & 255)::smallint;

-- AddIndexChange tells the readers of the change log that what searches find has
-- changed, and no resource: totals that were counted before no longer hold.
-- name: AddIndexChange :exec
INSERT INTO change (shard, rids, refs, versions, methods)
VALUES (0, '{}', '{}', '{}', '');

-- name: AddReindexProgress :exec
UPDATE reindex_job j
SET done = j.done + @done, changed = j.changed + @changed, failed = j.failed + @failed,
    failure = CASE WHEN j.failure = '' THEN sqlc.arg(failure)::text ELSE j.failure END,
    failed_keys = ARRAY(SELECT DISTINCT unnest(j.failed_keys || sqlc.arg(failed_keys)::bigint[]))
WHERE j.id = @id;

-- FinishReindexJobs ends the jobs whose work has ended, and lets every server know when there was one. Keys
-- of work that was given up stay known as not indexed, so that searches go on to warn of it.
-- name: FinishReindexJobs :execrows
WITH finished AS (
    UPDATE reindex_job j
    SET finished = @finished::timestamptz, cancelled = j.cancelled OR e.state = 'cancelled',
        failed_keys = CASE WHEN e.state = 'done' THEN j.failed_keys ELSE j.keys END,
        failure = CASE WHEN e.failure = '' THEN j.failure ELSE e.failure END
    FROM (
        SELECT r.id, coalesce(w.state, 'done') AS state, coalesce(w.failure, '') AS failure
        FROM reindex_job r
        LEFT JOIN job w ON w.id = r.id
        WHERE r.finished IS NULL AND r.planned IS NOT NULL AND (w.id IS NULL OR w.finished IS NOT NULL)
    ) e
    WHERE j.id = e.id AND j.finished IS NULL
    RETURNING j.id
)
UPDATE search_registry g
SET progress = g.progress + 1
WHERE EXISTS (SELECT FROM finished f);

-- TrimReindexJobs forgets jobs that had nothing to do, and those that ended long
-- ago, save the last of each type, which knows what could not be indexed. A job that
-- was cancelled before it was planned has a total of 0, and much to do.
-- Of a job that has not ended nothing more is asked: NULL < before is not false, and
-- the jobs that wait would each be compared with all others.
-- name: TrimReindexJobs :exec
DELETE FROM reindex_job j
WHERE j.finished IS NOT NULL AND (
    j.total = 0 AND NOT j.cancelled
    OR j.finished < @before::timestamptz AND EXISTS (
        SELECT FROM reindex_job l
        WHERE l.resource_type = j.resource_type AND l.id > j.id AND l.finished IS NOT NULL
    )
);

-- name: ReindexWaits :one
SELECT EXISTS (SELECT FROM reindex_job j WHERE j.finished IS NULL);

-- The rows of the index that resources have, numbers as text without trailing
-- zeros.

-- name: IndexedDates :many
SELECT x.rid, x.key, x.low, x.high
FROM index_date x
WHERE x.rid = ANY (@rids::bigint[]);

-- name: IndexedNumbers :many
SELECT x.rid, x.key, trim_scale(x.low)::text AS low, coalesce(trim_scale(x.high)::text, '')::text AS high
FROM index_number x
WHERE x.rid = ANY (@rids::bigint[]);

-- name: IndexedQuantities :many
SELECT x.rid, x.key, x.unit, trim_scale(x.low)::text AS low, coalesce(trim_scale(x.high)::text, '')::text AS high
FROM index_quantity x
WHERE x.rid = ANY (@rids::bigint[]);

-- name: IndexedNarratives :many
SELECT x.rid, x.hash
FROM index_narrative x
WHERE x.rid = ANY (@rids::bigint[]);

-- name: IndexedStrings :many
SELECT x.rid, x.key, x.text
FROM index_string x
WHERE x.rid = ANY (@rids::bigint[]);

-- ResourcesByTerms are the current resources that have one of the terms. Nothing else is asked: a range
-- of surrogates beside the terms is read from its own index as a whole, in a generic plan.
-- name: ResourcesByTerms :many
SELECT r.id, r.version, r.last_updated, r.method, r.body
FROM resource r
WHERE r.terms && @terms::bigint[]
ORDER BY r.rid;

-- TextsOf are the texts of some keys in the dictionary.
-- name: TextsOf :many
SELECT t.key, t.text
FROM token_text t
WHERE t.key = ANY (@keys::bigint[])
ORDER BY t.key, t.text;
