-- +goose Up

-- Index builds are jobs (job, job_part) like other long work. Builds that have not ended begin again there.
INSERT INTO job (id, type, state, client, username, principal, request, base, spec, reason, created)
SELECT b.id, 'index-build', 'waiting', '', '', '{}', '', '', jsonb_build_object('name', b.name, 'statement', b.statement), b.reason, b.created
FROM index_build b
WHERE b.finished IS NULL AND NOT b.cancel;
INSERT INTO job_part (job, number, stage, spec)
SELECT b.id, 1, 0, '{}'
FROM index_build b
WHERE b.finished IS NULL AND NOT b.cancel;
DROP TABLE index_build;

-- The work on the search index is jobs too: reindex_job says what it is for, and how far the index is. Its
-- chunks are parts of a job under the same id. Work that has not ended begins again.
UPDATE reindex_job
SET planned = NULL, total = 0, done = 0, changed = 0, failed = 0, failure = '', failed_keys = '{}'
WHERE finished IS NULL;
DROP TABLE reindex_chunk;
