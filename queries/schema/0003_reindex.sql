-- +goose Up

-- Which search parameters are in force, in two numbers. One row; a reference
-- table on a sharded database.
--   version  grows with every write of a SearchParameter, in its transaction. A
--            transaction that writes index entries compares it with the version
--            that they were made by, so that none goes in by an older one.
--   progress grows when a job ends: what searches warn of has changed.
CREATE TABLE search_registry (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  bigint  NOT NULL,
    progress bigint  NOT NULL
);
INSERT INTO search_registry (version, progress) VALUES (0, 0);

-- Work on the index of stored resources: one row for a resource type whose index
-- is brought up to date with the search parameters.
--   parameters  canonical URLs of the SearchParameters that are the reason; empty
--               when somebody asked for it
--   keys        what the entries of those parameters are found by: searches by
--               one of them may miss something until the job is done
--   ranges      compare the rows of index_date and the like too, not only terms
--   registry    search_registry.version that the job brings the index up to
--   horizon     transactions below it may have used older search parameters: work
--               begins when all of them have ended
--   planned     when the chunks were made
--   total, done, changed, failed   resources
--   failure     what was wrong with one that failed
--   failed_keys of the parameters that could not be evaluated on some
CREATE TABLE reindex_job (
    id            text        PRIMARY KEY COLLATE "C",
    resource_type text        NOT NULL,
    parameters    text[]      NOT NULL,
    keys          bigint[]    NOT NULL,
    ranges        boolean     NOT NULL,
    registry      bigint      NOT NULL,
    created       timestamptz NOT NULL,
    horizon       xid8,
    planned       timestamptz,
    finished      timestamptz,
    total         bigint      NOT NULL DEFAULT 0,
    done          bigint      NOT NULL DEFAULT 0,
    changed       bigint      NOT NULL DEFAULT 0,
    failed        bigint      NOT NULL DEFAULT 0,
    failure       text        NOT NULL DEFAULT '',
    failed_keys   bigint[]    NOT NULL DEFAULT '{}'
);

-- What is left of the jobs: ranges of surrogates, each of some hundred resources.
-- Whoever works on one holds its lock, and takes it away with the commit of the
-- work.
CREATE TABLE reindex_chunk (
    job  text    NOT NULL COLLATE "C",
    low  bigint  NOT NULL,
    high bigint  NOT NULL, -- inclusive
    PRIMARY KEY (job, low)
);

-- +goose Down
DROP TABLE reindex_chunk, reindex_job, search_registry;
