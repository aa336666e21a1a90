-- +goose Up

-- Indexes that the searches that were run (search_shape) would gain by: each was
-- proved, by a plan with a hypothetical index or with a real one on a sample.
--   id           of the statement: the same index is one suggestion
--   name         of the index
--   parameters   of the searches, with modifiers
--   improvement  part of the work that the index saves, 0 to 1
--   proof        hypothetical or sample
CREATE TABLE index_suggestion (
    id            text PRIMARY KEY,
    resource_type text NOT NULL,
    parameters    text[] NOT NULL,
    shapes        text[] NOT NULL,
    name          text NOT NULL,
    statement     text NOT NULL,
    reason        text NOT NULL,
    improvement   double precision NOT NULL,
    proof         text NOT NULL,
    proved        timestamptz NOT NULL
);

-- Indexes that are built, or were, while others read and write. A server that builds
-- one holds the advisory lock of the job; where nobody does, another begins again.
--   cancel   the builder is to give up
--   failure  why it did; '' where it has not
CREATE TABLE index_build (
    id        text PRIMARY KEY COLLATE "C",
    name      text NOT NULL,
    statement text NOT NULL,
    reason    text NOT NULL,
    created   timestamptz NOT NULL,
    started   timestamptz,
    finished  timestamptz,
    cancel    boolean NOT NULL DEFAULT false,
    failure   text NOT NULL DEFAULT ''
);

-- A job on the search index that was cancelled.
ALTER TABLE reindex_job ADD COLUMN cancelled boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE reindex_job DROP COLUMN cancelled;
DROP TABLE index_build, index_suggestion;
