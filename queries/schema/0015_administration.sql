-- +goose Up

-- What administrators have set at run time, above the configuration file. name is
-- the key of the setting; percentage and clients narrow a flag that is on.
CREATE TABLE setting (
    name       text PRIMARY KEY,
    value      jsonb NOT NULL,
    percentage integer,
    clients    text[],
    changed    timestamptz NOT NULL,
    changed_by text NOT NULL
);

-- What every server looks at a few times a second: a version that has changed says
-- that settings, or that caches are to be emptied (detail names them).
CREATE TABLE server_signal (
    name    text PRIMARY KEY,
    version bigint NOT NULL,
    detail  text NOT NULL DEFAULT ''
);
INSERT INTO server_signal (name, version) VALUES ('settings', 0), ('caches', 0);

-- The servers that work on this database; one that has not been seen for a while
-- has ended.
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

-- Requests of a client in a window of time, of all servers together. It is of no
-- use after a crash of the database, and so unlogged.
CREATE UNLOGGED TABLE rate_window (
    client  bigint NOT NULL,
    starts  bigint NOT NULL,
    expires bigint NOT NULL,
    count   bigint NOT NULL,
    PRIMARY KEY (client, starts)
);
CREATE INDEX rate_window_expires ON rate_window (expires);

-- The searches that were run, by shape: type, parameters and modifiers, never
-- values. buckets count their durations.
CREATE TABLE search_shape (
    shape         text PRIMARY KEY,
    resource_type text NOT NULL,
    parameters    text[] NOT NULL,
    calls         bigint NOT NULL,
    total_us      bigint NOT NULL,
    rows_read     bigint NOT NULL,
    buckets       bigint[] NOT NULL,
    last_run      timestamptz NOT NULL
);

-- +goose Down
DROP TABLE search_shape, rate_window, server_instance, server_signal, setting;
