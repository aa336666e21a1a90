-- Long work in the background, and its parts.

-- name: LockJobClient :exec
SELECT pg_advisory_xact_lock(hashtextextended('job client ' || @client::text, 0));

-- name: CountUnfinishedJobs :one
SELECT count(*)
FROM job j
WHERE j.finished IS NULL AND j.client = @client;

-- name: AddJob :exec
INSERT INTO job (id, type, state, client, username, principal, request, base, spec, reason, created, total)
VALUES (@id, @type, 'waiting', @client, @username, @principal, @request, @base, @spec, @reason, clock_timestamp(), @total);

-- name: AddJobPart :exec
INSERT INTO job_part (job, number, stage, spec)
SELECT sqlc.arg(job)::text, coalesce(max(p.number), 0) + 1, sqlc.arg(stage)::integer, sqlc.arg(spec)::jsonb
FROM job_part p
WHERE p.job = sqlc.arg(job)::text;

-- ClaimJobPart leases a part that waits, or whose lease is over, to a server: of the job with the fewest
-- parts under way, so that a long job does not hold up the others. Lease numbers of an epoch are above those of the
-- epochs before: a failover may lose a lease, and its number is not given again.
-- name: ClaimJobPart :one
WITH under_way AS (
    SELECT r.job, count(*) AS parts
    FROM job_part r
    WHERE r.state = 'running' AND r.leased_until >= clock_timestamp()
    GROUP BY r.job
), next AS (
    SELECT p.job, p.number, p.state = 'running' AS lost
    FROM job_part p
    JOIN job j ON j.id = p.job
    LEFT JOIN under_way u ON u.job = p.job
    WHERE j.finished IS NULL AND j.type = ANY (@types::text[])
        AND (p.state = 'waiting' AND p.not_before <= clock_timestamp() OR p.state = 'running' AND p.leased_until < clock_timestamp())
        AND NOT EXISTS (SELECT FROM job_part q WHERE q.job = p.job AND q.stage < p.stage AND q.state <> 'done')
    ORDER BY coalesce(u.parts, 0), j.created, p.number
    LIMIT 1
    FOR UPDATE OF p SKIP LOCKED
), started AS (
    UPDATE job j
    SET state = 'running', started = coalesce(j.started, clock_timestamp())
    FROM next n
    WHERE j.id = n.job AND j.state = 'waiting'
)
UPDATE job_part p
SET state = 'running', lease = greatest(p.lease, (SELECT g.epoch FROM search_registry g)) + 1, holder = @holder, leased_until = clock_timestamp() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond',
    attempts = p.attempts + n.lost::integer, done = 0
FROM next n
WHERE p.job = n.job AND p.number = n.number
RETURNING p.job, p.number, p.stage, p.spec, p.progress, p.lease, p.attempts, n.lost;

-- RenewJobPart keeps a lease, and says how far the part is.
-- name: RenewJobPart :execrows
UPDATE job_part p
SET leased_until = clock_timestamp() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond', done = @done
FROM job j
WHERE p.job = @job AND p.number = @number AND p.lease = @lease AND p.state = 'running' AND j.id = p.job AND j.finished IS NULL;

-- ReturnJobPart gives a part back.
-- name: ReturnJobPart :execrows
UPDATE job_part p
SET state = 'waiting', holder = '', leased_until = 'epoch', done = 0, attempts = p.attempts + sqlc.arg(failed)::integer,
    not_before = clock_timestamp() + sqlc.arg(pause_ms)::bigint * interval '1 millisecond'
WHERE p.job = @job AND p.number = @number AND p.lease = @lease AND p.state = 'running';

-- KeepJobPartProgress stores how far a part is, while its lease is this one and its job has not ended.
-- name: KeepJobPartProgress :execrows
UPDATE job_part p
SET progress = sqlc.arg(progress)::jsonb, done = @done
FROM job j
WHERE p.job = @job AND p.number = @number AND p.lease = @lease AND p.state = 'running' AND j.id = p.job AND j.finished IS NULL;

-- LockJob locks a job that has not ended until the transaction ends.
-- name: LockJob :one
SELECT j.id
FROM job j
WHERE j.id = @id AND j.finished IS NULL
FOR UPDATE;

-- name: FinishJobPart :execrows
UPDATE job_part p
SET state = 'done', holder = '', done = @done, result = sqlc.arg(result)::jsonb
WHERE p.job = @job AND p.number = @number AND p.lease = @lease AND p.state = 'running';

-- name: AddJobProgress :exec
UPDATE job j
SET total = j.total + @total, done = j.done + @done, failed = j.failed + @failed, shared = j.shared || sqlc.arg(shared)::jsonb
WHERE j.id = @id;

-- name: AddJobFile :exec
INSERT INTO job_file (job, name, kind, type, number, lines, bytes, path, input)
SELECT sqlc.arg(job)::text, sqlc.arg(prefix)::text || sqlc.arg(type)::text || '.' || (coalesce(max(f.number), 0) + 1) || sqlc.arg(suffix)::text, sqlc.arg(kind)::text,
    sqlc.arg(type)::text, coalesce(max(f.number), 0) + 1, sqlc.arg(lines)::bigint, sqlc.arg(bytes)::bigint, sqlc.arg(path)::text, sqlc.arg(input)::text
FROM job_file f
WHERE f.job = sqlc.arg(job)::text AND f.kind = sqlc.arg(kind)::text AND f.type = sqlc.arg(type)::text;

-- FinishJob ends a job whose parts are all done.
-- name: FinishJob :execrows
UPDATE job j
SET state = 'done', finished = clock_timestamp(), total = greatest(j.total, j.done + j.failed), expires = clock_timestamp() + sqlc.arg(retention_ms)::bigint * interval '1 millisecond'
WHERE j.id = @id AND j.finished IS NULL AND NOT EXISTS (SELECT FROM job_part p WHERE p.job = j.id AND p.state <> 'done');

-- EndJob ends a job as failed or cancelled.
-- name: EndJob :execrows
UPDATE job j
SET state = @state, finished = clock_timestamp(), code = @code, failure = @failure,
    expires = clock_timestamp() + sqlc.arg(retention_ms)::bigint * interval '1 millisecond'
WHERE j.id = @id AND j.finished IS NULL;

-- name: ExpireJob :execrows
UPDATE job j
SET expires = clock_timestamp()
WHERE j.id = @id AND j.expires > clock_timestamp();

-- name: GetJob :one
SELECT j.id, j.type, j.state, j.client, j.username, j.principal, j.request, j.base, j.spec, j.shared, j.reason, j.created, j.started, j.finished, j.expires,
    j.total, j.done, j.failed, j.code, j.failure, coalesce(j.expires <= clock_timestamp(), false)::boolean AS expired,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id) AS parts,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id AND p.state = 'done') AS parts_done,
    (SELECT coalesce(sum(p.done), 0) FROM job_part p WHERE p.job = j.id AND p.state = 'running')::bigint AS under_way,
    (SELECT coalesce(max(p.attempts), 0) FROM job_part p WHERE p.job = j.id)::integer AS attempts
FROM job j
WHERE j.id = @id;

-- name: ListJobs :many
SELECT j.id, j.type, j.state, j.client, j.username, j.request, j.spec, j.reason, j.created, j.started, j.finished, j.expires,
    j.total, j.done, j.failed, j.code, j.failure,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id) AS parts,
    (SELECT count(*) FROM job_part p WHERE p.job = j.id AND p.state = 'done') AS parts_done,
    (SELECT coalesce(sum(p.done), 0) FROM job_part p WHERE p.job = j.id AND p.state = 'running')::bigint AS under_way,
    (SELECT coalesce(max(p.attempts), 0) FROM job_part p WHERE p.job = j.id)::integer AS attempts
FROM job j
ORDER BY j.created DESC;

-- CountJobs counts the jobs. Work on the search index that cannot begin yet is no job of the core before.
-- name: CountJobs :many
SELECT j.type, j.state, count(*) AS jobs
FROM (
    SELECT k.type, k.state FROM job k
    UNION ALL
    SELECT 'reindex', 'waiting' FROM reindex_job r WHERE r.planned IS NULL
) j
GROUP BY j.type, j.state;

-- name: JobFiles :many
SELECT f.name, f.kind, f.type, f.number, f.lines, f.bytes, f.path, f.input
FROM job_file f
WHERE f.job = @job
ORDER BY f.kind, f.type, f.number;

-- name: JobFileByName :one
SELECT f.name, f.kind, f.type, f.lines, f.bytes, f.path
FROM job_file f
WHERE f.job = @job AND f.name = @name;

-- name: JobFileBytes :one
SELECT coalesce(sum(f.bytes), 0)::bigint AS bytes
FROM job_file f
JOIN job j ON j.id = f.job
WHERE j.removed IS NULL;

-- name: JobPartResults :many
SELECT p.number, p.stage, p.result
FROM job_part p
WHERE p.job = @job AND p.state = 'done'
ORDER BY p.number;

-- JobsToClean are the jobs that have ended and whose files are still there to be removed.
-- name: JobsToClean :many
SELECT j.id
FROM job j
WHERE j.finished IS NOT NULL AND j.removed IS NULL AND (j.expires <= clock_timestamp() OR j.state <> 'done');

-- name: SetJobRemoved :exec
UPDATE job j
SET removed = clock_timestamp()
WHERE j.id = @id;

-- name: TrimJobs :exec
DELETE FROM job j
WHERE j.finished < clock_timestamp() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond' AND j.removed IS NOT NULL;

-- name: UnfinishedJobOwners :many
SELECT DISTINCT j.client, j.username
FROM job j
WHERE j.finished IS NULL;

-- name: UnfinishedJobsOf :many
SELECT j.id
FROM job j
WHERE j.finished IS NULL AND j.client = @client AND j.username = @username;

-- MarkJobDirectory returns the mark of the folder that the servers share, which is this one where
-- there was none.
-- name: MarkJobDirectory :one
WITH added AS (
    INSERT INTO job_directory (mark) VALUES (@mark) ON CONFLICT DO NOTHING RETURNING mark
)
SELECT a.mark FROM added a
UNION ALL
SELECT d.mark FROM job_directory d
LIMIT 1;

-- name: JobDirectoryMark :one
SELECT coalesce(max(d.mark), '')::text AS mark
FROM job_directory d;

-- SeeJobDirectory notes that a server with the folder of a mark is there, and returns the mark of the
-- folder that the servers share.
-- name: SeeJobDirectory :one
WITH seen AS (
    INSERT INTO server_signal (name, version)
    SELECT 'bulk', extract(epoch FROM clock_timestamp())::bigint
    FROM job_directory d
    WHERE d.mark = @own::text
    ON CONFLICT (name) DO UPDATE SET version = excluded.version
)
SELECT d.mark
FROM job_directory d;

-- ReplaceJobDirectory makes another folder the one that the servers share, where no server with the old
-- one has been there for some seconds.
-- name: ReplaceJobDirectory :execrows
UPDATE job_directory d
SET mark = @own
WHERE d.mark = @known AND NOT EXISTS (
    SELECT FROM server_signal s
    WHERE s.name = 'bulk' AND s.version > extract(epoch FROM clock_timestamp())::bigint - sqlc.arg(seconds)::bigint
);

-- JobOwnerActive reports whether neither the client nor the user of a job is disabled.
-- name: JobOwnerActive :one
SELECT (NOT EXISTS (SELECT FROM oauth_client c WHERE c.id = @client AND NOT c.active)
    AND NOT EXISTS (SELECT FROM oauth_user u WHERE u.username = @username AND NOT u.active))::boolean AS active;

-- AddJobErrors stores errors of an input, as long as it has fewer than @most.
-- name: AddJobErrors :exec
INSERT INTO job_error (job, input, line, body)
SELECT sqlc.arg(job)::text, sqlc.arg(input)::integer, e.line, e.body
FROM (SELECT unnest(@lines::bigint[]) AS line, unnest(@bodies::text[]) AS body) e
ORDER BY e.line
LIMIT greatest(0, sqlc.arg(most)::bigint - (SELECT count(*) FROM job_error x WHERE x.job = sqlc.arg(job)::text AND x.input = sqlc.arg(input)::integer))
ON CONFLICT DO NOTHING;

-- name: JobErrors :many
SELECT e.line, e.body
FROM job_error e
WHERE e.job = @job AND e.input = @input AND e.line > @after
ORDER BY e.line
LIMIT @count;

-- name: DeleteJobErrors :exec
DELETE FROM job_error e
WHERE e.job = @job;

-- name: DeleteJobFilesOfKind :exec
DELETE FROM job_file f
WHERE f.job = @job AND f.kind = @kind;

-- KnownJobs are those of some jobs that there are.
-- name: KnownJobs :many
SELECT j.id
FROM job j
WHERE j.id = ANY (@ids::text[]) AND j.removed IS NULL;
