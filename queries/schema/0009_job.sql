-- +goose Up

-- Long work in the background (server/jobs).
--   id         random: it is part of the status URL
--   type       export, search or import
--   state      waiting, running, done, failed or cancelled
--   client     the client of the kick-off, without authorization its address
--   username   the user of the kick-off, '' for none
--   principal  on whose behalf the job runs, as JSON
--   request    URL of the kick-off
--   base       URL that the links of answers begin with
--   spec       the work of the job, as its type writes it
--   shared     results of parts that later ones need
--   expires    when the results go; null before the end
--   code       issue code of a failure, '' for none
--   removed    when the files of the job were removed
CREATE TABLE job (
    id        text        PRIMARY KEY COLLATE "C",
    type      text        NOT NULL,
    state     text        NOT NULL,
    client    text        NOT NULL,
    username  text        NOT NULL,
    principal jsonb       NOT NULL,
    request   text        NOT NULL,
    base      text        NOT NULL,
    spec      jsonb       NOT NULL,
    shared    jsonb       NOT NULL DEFAULT '{}',
    reason    text        NOT NULL,
    created   timestamptz NOT NULL,
    started   timestamptz,
    finished  timestamptz,
    expires   timestamptz,
    removed   timestamptz,
    total     bigint      NOT NULL DEFAULT 0,
    done      bigint      NOT NULL DEFAULT 0,
    failed    bigint      NOT NULL DEFAULT 0,
    code      text        NOT NULL DEFAULT '',
    failure   text        NOT NULL DEFAULT ''
);
CREATE INDEX job_unfinished ON job (created) WHERE finished IS NULL;

-- The parts of a job. A server leases a part; lease counts the leases, and results under an older one
-- are refused.
--   stage     parts of a stage wait until all parts of earlier stages are done
--   state     waiting, running or done
--   attempts  how often the part failed or lost its lease
--   done      resources so far
--   progress  how far the part is, as its type writes it; kept when the part changes hands. An import stores lines and
--             its position in one transaction, so that a line is stored once.
CREATE TABLE job_part (
    job          text        NOT NULL COLLATE "C" REFERENCES job ON DELETE CASCADE,
    number       integer     NOT NULL,
    stage        integer     NOT NULL,
    spec         jsonb       NOT NULL,
    state        text        NOT NULL DEFAULT 'waiting',
    lease        bigint      NOT NULL DEFAULT 0,
    holder       text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT 'epoch',
    not_before   timestamptz NOT NULL DEFAULT 'epoch',
    attempts     integer     NOT NULL DEFAULT 0,
    done         bigint      NOT NULL DEFAULT 0,
    progress     jsonb       NOT NULL DEFAULT '{}',
    result       jsonb,
    PRIMARY KEY (job, number)
);
CREATE INDEX job_part_unfinished ON job_part (job, stage) WHERE state <> 'done';

-- The files of a job.
--   name   as in its URL: Patient.1.ndjson
--   kind   output, deleted or error
--   path   where the file is stored, relative to the storage
--   input  the input that a file of errors is about; '' for other files
CREATE TABLE job_file (
    job      text    NOT NULL COLLATE "C" REFERENCES job ON DELETE CASCADE,
    name     text    NOT NULL COLLATE "C",
    kind     text    NOT NULL,
    type     text    NOT NULL,
    number   integer NOT NULL,
    lines    bigint  NOT NULL,
    bytes    bigint  NOT NULL,
    path     text    NOT NULL,
    input    text    NOT NULL DEFAULT '',
    PRIMARY KEY (job, name)
);

-- The folder of results that all servers of the database share: its mark. One row.
CREATE TABLE job_directory (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    mark text    NOT NULL
);

-- Lines of an import that could not be stored, until the files of errors are written.
--   input  number of the input, from 0
--   line   number of the line in the input, 0 for the input as a whole
--   body   an OperationOutcome
CREATE TABLE job_error (
    job   text   NOT NULL COLLATE "C" REFERENCES job ON DELETE CASCADE,
    input integer NOT NULL,
    line  bigint NOT NULL,
    body  text   NOT NULL,
    PRIMARY KEY (job, input, line)
);
