-- +goose Up

-- Secrets of Apps, which headers of their handlers name: sealed by AES-256-GCM where
-- sealed. They are never shown.
CREATE TABLE app_secret (
    app    text    NOT NULL,
    name   text    NOT NULL,
    value  bytea   NOT NULL,
    sealed boolean NOT NULL,
    PRIMARY KEY (app, name)
);

-- Versions that Apps have written: chain are the Apps whose handlers led to the
-- version, the writer last. An event of a version is not for its writer, and a chain
-- that is too long is cut.
CREATE TABLE app_write (
    resource_type text        NOT NULL,
    resource_id   text        NOT NULL,
    version       integer     NOT NULL,
    chain         text[]      NOT NULL,
    written       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (resource_type, resource_id, version)
);
-- Serves deleting what is old.
CREATE INDEX app_write_written ON app_write (written);

-- What handlers of Apps did: the log that their authors read. level is the highest of
-- the lines, 0 without any.
CREATE TABLE app_invocation (
    id            uuid        PRIMARY KEY,
    app           text        NOT NULL,
    at            timestamptz NOT NULL,
    operation     text        NOT NULL,
    subscription  text        NOT NULL,
    resource_type text        NOT NULL,
    resource_id   text        NOT NULL,
    duration_us   bigint      NOT NULL,
    outcome       text        NOT NULL,
    status        integer     NOT NULL,
    request_id    text        NOT NULL,
    level         smallint    NOT NULL,
    lines         jsonb       NOT NULL
);
-- Serves the log of an App, newest first.
CREATE INDEX app_invocation_log ON app_invocation (app, at DESC, id DESC);
-- Serves deleting what is old.
CREATE INDEX app_invocation_at ON app_invocation (at);

-- +goose Down
DROP TABLE app_invocation;
DROP TABLE app_write;
DROP TABLE app_secret;
