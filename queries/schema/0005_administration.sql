-- +goose Up

-- Settings that administrators have set at run time, above the configuration file. name is the key of the setting;
-- percentage and clients narrow a flag that is on.
CREATE TABLE setting (
    name       text PRIMARY KEY,
    value      jsonb NOT NULL,
    percentage integer,
    clients    text[],
    changed    timestamptz NOT NULL,
    changed_by text NOT NULL
);

-- Every server looks at these rows a few times a second: a version that has changed says that settings have changed,
-- or that caches are to be emptied (detail names them).
CREATE TABLE server_signal (
    name    text PRIMARY KEY,
    version bigint NOT NULL,
    detail  text NOT NULL DEFAULT ''
);
INSERT INTO server_signal (name, version) VALUES ('settings', 0), ('caches', 0);

-- The servers that work on this database; one that has not been seen for a while has ended.
CREATE TABLE server_instance (
    id          text PRIMARY KEY,
    address     text NOT NULL,
    version     text NOT NULL,
    started     timestamptz NOT NULL,
    seen        timestamptz NOT NULL,
    load        double precision NOT NULL,
    connections integer NOT NULL,
    streams     integer NOT NULL
);

-- Requests of a client in a window of time, of all servers together. It is of no use after a crash of the database,
-- and so unlogged.
CREATE UNLOGGED TABLE rate_window (
    client  bigint NOT NULL,
    starts  bigint NOT NULL,
    expires bigint NOT NULL,
    count   bigint NOT NULL,
    PRIMARY KEY (client, starts)
);
CREATE INDEX rate_window_expires ON rate_window (expires);

-- Access policies. Few rows, read as a whole; policy_version grows with every change, so that each server sees in one
-- row whether the policies that it knows are in force.
CREATE TABLE policy (
    name         text        NOT NULL PRIMARY KEY,
    document     text        NOT NULL, -- JSON, as package access writes it
    last_updated timestamptz NOT NULL
);

CREATE TABLE policy_version (
    one     boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO policy_version (version) VALUES (0);

-- Groups of audit events of many requests, as the package audit writes them, until they are made AuditEvents. A group
-- leaves in the transaction that stores its AuditEvents, so that each event becomes one, whichever server makes it.
CREATE TABLE audit_pending (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    events bytea  NOT NULL
);

-- Audit events of writes, until they are made AuditEvents: a row of each transaction's events is committed with its
-- writes. A row leaves in the transaction that stores its AuditEvents; a search that could find AuditEvents waits
-- until there are none.
CREATE TABLE audit_of_write (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    events bytea  NOT NULL
);
-- Both are read once: compressing them costs more than writing them.
ALTER TABLE audit_pending ALTER COLUMN events SET STORAGE EXTERNAL;
ALTER TABLE audit_of_write ALTER COLUMN events SET STORAGE EXTERNAL;

-- The answers of each server in each minute, for the charts of the console.
CREATE TABLE traffic_minute (
    at       timestamptz      NOT NULL,
    server   text             NOT NULL,
    requests bigint           NOT NULL,
    errors   bigint           NOT NULL, -- answers of 500 and more
    p50_ms   double precision NOT NULL,
    p95_ms   double precision NOT NULL,
    PRIMARY KEY (at, server)
);

-- The backups that kiln backup has written, and those that this database was restored from.
CREATE TABLE backup_run (
    started  timestamptz PRIMARY KEY,
    ended    timestamptz NOT NULL,
    bytes    bigint      NOT NULL,
    verified boolean     NOT NULL
);
