-- +goose Up
-- What each server has answered in each minute, for the charts of the console.
CREATE TABLE traffic_minute (
    at timestamptz NOT NULL,
    server text NOT NULL,
    requests bigint NOT NULL,
    errors bigint NOT NULL,           -- answers of 500 and more
    p50_ms double precision NOT NULL,
    p95_ms double precision NOT NULL,
    PRIMARY KEY (at, server)
);

-- The backups that kiln backup has written, and those that this database was restored from.
CREATE TABLE backup_run (
    started timestamptz PRIMARY KEY,
    ended timestamptz NOT NULL,
    bytes bigint NOT NULL,
    verified boolean NOT NULL
);

-- +goose Down
DROP TABLE backup_run;
DROP TABLE traffic_minute;
