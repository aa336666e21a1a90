-- +goose Up

-- An epoch is one unbroken line of the history of the database. Transaction numbers mean something only inside one
-- epoch: a restored, copied or promoted database gives numbers again. Each stored transaction number therefore has
-- its epoch beside it, and epochs order before transactions.
--   epoch      number << 32 | mark. The number counts from 1. The mark is a hash of the other columns: it keeps two
--              epochs apart that have the same number, because an older backup was restored twice.
--   cause      created, promotion, copy or manual
--   system_identifier, database_oid, timeline
--              identify the line
CREATE TABLE epoch (
    epoch             bigint      PRIMARY KEY,
    cause             text        NOT NULL,
    since             timestamptz NOT NULL,
    system_identifier bigint      NOT NULL,
    database_oid      bigint      NOT NULL,
    timeline          integer     NOT NULL
);

-- database_identity returns the line of this connection. It fails on a standby.
-- pg_control_checkpoint() shows a new timeline late; the name of the current WAL file shows it at once.
-- +goose StatementBegin
CREATE FUNCTION database_identity(OUT system_identifier bigint, OUT database_oid bigint, OUT timeline integer) LANGUAGE sql VOLATILE AS $$
    SELECT s.system_identifier, d.oid::bigint, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer
    FROM pg_control_system() s
    CROSS JOIN pg_database d
    WHERE d.datname = current_database()
$$;
-- +goose StatementEnd

INSERT INTO epoch (epoch, cause, since, system_identifier, database_oid, timeline)
SELECT 4294967296, 'created', now(), i.system_identifier, i.database_oid, i.timeline
FROM database_identity() i;

-- The row that every write and every search reads. One row; a reference table on a sharded database.
--   version      grows with every write of a SearchParameter, in its transaction. A transaction that writes index
--                entries compares it with the version that they were made by, so that none goes in by an older one.
--   progress     grows when a reindex ends: searches warn of less
--   definitions  grows with every write of a profile, value set or the like, in its transaction: servers forget the
--                definitions that they keep when it is another one
--   fingerprint  hash over index_fingerprint, 0 before the first server. A server of another build neither searches
--                nor writes. A change of it raises the version too.
--   epoch        the last epoch
--   moment       the latest moment that a bulk export shows (store/moment.go). No transaction that commits later may
--                store a version with a last_updated up to it.
CREATE TABLE search_registry (
    one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
    version     bigint      NOT NULL,
    progress    bigint      NOT NULL,
    definitions bigint      NOT NULL DEFAULT 0,
    fingerprint bigint      NOT NULL DEFAULT 0,
    epoch       bigint      NOT NULL DEFAULT 4294967296,
    moment      timestamptz NOT NULL DEFAULT 'epoch'
);
INSERT INTO search_registry (version, progress) VALUES (0, 0);

-- current_epoch is VOLATILE: it sees an epoch that was stored while its statement waited for the lock of note_epoch.
-- +goose StatementBegin
CREATE FUNCTION current_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT g.epoch FROM search_registry g);
END $$;
-- +goose StatementEnd

-- The change log: one row for the versions that a transaction wrote together. Notifications, App events, search
-- caches and tables read it. Readers take rows with xid < pg_snapshot_xmin(pg_current_snapshot()), in the order of
-- epoch and xid, and so skip none that commits late. A row for each version took three times the space, and a tenth
-- of the write.
--   written               when, by the clock of PostgreSQL
--   rids, refs, versions  one element each for a version
--   methods               one letter each: C, U, P, D
--   traces                the trace that each write is part of, as its request told it (W3C Trace Context): webhooks
--                         are in it too. Null where no change of the row has one.
CREATE TABLE change (
    xid      xid8        NOT NULL DEFAULT pg_current_xact_id(),
    written  timestamptz NOT NULL DEFAULT now(),
    epoch    bigint      NOT NULL DEFAULT current_epoch(),
    shard    smallint    NOT NULL,
    rids     bigint[]    NOT NULL,
    refs     bigint[]    NOT NULL,
    versions integer[]   NOT NULL,
    methods  text        NOT NULL COLLATE "C",
    traces   text[]
);
CREATE INDEX change_epoch ON change (epoch, xid);
-- No plan asks for the content of the arrays, and ANALYZE counted every element of 30,000 rows: 1.7 s a time, at every
-- tenth of growth.
ALTER TABLE change ALTER COLUMN rids SET STATISTICS 0, ALTER COLUMN refs SET STATISTICS 0,
    ALTER COLUMN versions SET STATISTICS 0, ALTER COLUMN methods SET STATISTICS 0;

-- Consumers of the change log that must miss nothing, by name, each with its position. The one server that has the
-- lease works; it moves the position in the transaction that stores the results of its work, and only from the
-- position where it began, so that no change is worked on twice with effect.
CREATE TABLE change_reader (
    name         text        PRIMARY KEY COLLATE "C",
    epoch        bigint      NOT NULL DEFAULT current_epoch(),
    xid          xid8        NOT NULL,
    rid          bigint      NOT NULL,
    version      integer     NOT NULL,
    holder       text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT 'epoch'
);
-- One row for each reader, updated with every batch: the page keeps room for its next versions.
ALTER TABLE change_reader SET (fillfactor = 10);

-- How far the change log has been trimmed: every row up to epoch and xid is gone, and the youngest of them was
-- written then. One row.
CREATE TABLE change_trim (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),
    epoch   bigint      NOT NULL DEFAULT 4294967296,
    xid     xid8        NOT NULL,
    written timestamptz NOT NULL
);
INSERT INTO change_trim (xid, written) VALUES ('0', '-infinity');

-- note_epoch returns the last epoch. First it stores a new one where the database is on another line than the last
-- epoch, or where forced is the cause of one. The lock waits for transactions that write changes: when the new epoch
-- can be seen, every change of the former ones can be seen too.
--
-- Servers compare the counters of settings, policies, Apps, search parameters and definitions with those that they
-- know, and read again what has changed. A promoted standby that lacks the last changes would give their numbers to
-- other changes, and a server that knows the lost ones would read nothing. Each new epoch therefore raises every
-- counter to the number of the epoch, which no other line of the history has.
-- +goose StatementBegin
CREATE FUNCTION note_epoch(forced text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here record;
    last record;
    new_epoch bigint;
    why text;
    at timestamptz;
BEGIN
    SELECT * INTO STRICT here FROM database_identity();
    FOR attempt IN 1..2 LOOP
        SELECT * INTO STRICT last FROM epoch e ORDER BY e.epoch DESC LIMIT 1;
        IF forced = '' AND (last.system_identifier, last.database_oid, last.timeline) = (here.system_identifier, here.database_oid, here.timeline) THEN
            RETURN last.epoch;
        END IF;
        IF attempt = 1 THEN
            LOCK TABLE change IN SHARE ROW EXCLUSIVE MODE;
        END IF;
    END LOOP;
    -- A copy of a database that nobody has used yet begins its own history.
    IF forced = '' AND last.cause = 'created' AND last.system_identifier <> 0
        AND NOT EXISTS (SELECT FROM change) AND NOT EXISTS (SELECT FROM resource_type) THEN
        UPDATE epoch e
        SET system_identifier = here.system_identifier, database_oid = here.database_oid, timeline = here.timeline
        WHERE e.epoch = last.epoch;
        RETURN last.epoch;
    END IF;
    why := CASE
        WHEN forced <> '' THEN forced
        WHEN (last.system_identifier, last.database_oid) = (here.system_identifier, here.database_oid) THEN 'promotion'
        ELSE 'copy'
    END;
    at := clock_timestamp();
    new_epoch := (((last.epoch >> 32) + 1) << 32)
        | (hashtext(concat_ws(' ', at, here.system_identifier, here.database_oid, here.timeline, pg_current_xact_id()))::bigint & 4294967295);
    INSERT INTO epoch (epoch, cause, since, system_identifier, database_oid, timeline)
    VALUES (new_epoch, why, at, here.system_identifier, here.database_oid, here.timeline);
    UPDATE search_registry g
    SET epoch = new_epoch, version = greatest(g.version + 1, new_epoch), progress = greatest(g.progress + 1, new_epoch),
        definitions = greatest(g.definitions + 1, new_epoch);
    UPDATE server_signal s SET version = greatest(s.version + 1, new_epoch), detail = '';
    UPDATE policy_version v SET version = greatest(v.version + 1, new_epoch);
    UPDATE app_registry a SET version = greatest(a.version + 1, new_epoch);
    RETURN new_epoch;
END $$;
-- +goose StatementEnd
