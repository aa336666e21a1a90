-- +goose Up

-- Consumers of the change log that must miss nothing, by name, with the place up to
-- which each is done. The one server that holds the lease works; it moves the place in the
-- transaction that stores the results of its work, and only from where it found it,
-- so that no change is worked on twice with effect.
CREATE TABLE change_reader (
    name         text        PRIMARY KEY COLLATE "C",
    xid          xid8        NOT NULL,
    rid          bigint      NOT NULL,
    version      integer     NOT NULL,
    holder       text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT 'epoch'
);
-- One row for each reader, updated with every batch: the page keeps room for its next versions.
ALTER TABLE change_reader SET (fillfactor = 10);

-- How far the change log has been trimmed: every row up to xid is gone, the youngest of
-- them written then. One row.
CREATE TABLE change_trim (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),
    xid     xid8        NOT NULL,
    written timestamptz NOT NULL
);
INSERT INTO change_trim (xid, written) VALUES ('0', '-infinity');

-- +goose Down
DROP TABLE change_trim, change_reader;
