-- +goose Up

-- One row whose version grows with every write of an App, in its transaction: servers
-- read it before they call an App's operation, and read the Apps again when it is
-- another one.
CREATE TABLE app_registry (
    id      integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version bigint  NOT NULL DEFAULT 0
);
INSERT INTO app_registry DEFAULT VALUES;

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
-- Serves deleting old rows.
CREATE INDEX app_write_written ON app_write (written);

-- Calls of handlers of Apps: the log that their authors read. level is the highest of
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
-- Serves deleting old rows.
CREATE INDEX app_invocation_at ON app_invocation (at);

-- Subscriptions that Apps have or had. Pending deliveries name a subscription by its number, which
-- it keeps when an App's subscriptions change their order. A number is never given out again.
-- content is a digest of the subscription, name is '' for one without a name.
CREATE TABLE app_subscription (
    app     text    NOT NULL,
    number  integer NOT NULL,
    name    text    NOT NULL,
    content text    NOT NULL,
    current boolean NOT NULL,
    PRIMARY KEY (app, number)
);
