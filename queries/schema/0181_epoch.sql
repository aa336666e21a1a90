-- +goose Up

-- An epoch is one unbroken line of the history of the database. Transaction numbers mean something only inside one
-- epoch: a restored, copied or promoted database gives numbers again. Each stored transaction number therefore has
-- its epoch beside it, and epochs order before transactions.
--   epoch      number << 32 | mark. The number counts from 1. The mark is a hash of the other columns: it keeps two
--              epochs apart that have the same number, because an older backup was restored twice.
--   cause      created, promotion, copy or manual
--   system_identifier, database_oid, timeline
--              identify the line; all three are 0 where the first connection is to store a new epoch
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

-- epoch repeats the last epoch: every write and every search reads this row anyway.
ALTER TABLE search_registry ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;

-- The first epoch. Where stored numbers lie ahead of this cluster, the database is a copy already: the identity 0 makes
-- the first connection store the next epoch.
INSERT INTO epoch (epoch, cause, since, system_identifier, database_oid, timeline)
SELECT 4294967296, 'created', now(), CASE WHEN a.ahead THEN 0 ELSE i.system_identifier END,
    CASE WHEN a.ahead THEN 0 ELSE i.database_oid END, CASE WHEN a.ahead THEN 0 ELSE i.timeline END
FROM database_identity() i
CROSS JOIN (
    SELECT EXISTS (SELECT FROM change c WHERE c.xid >= pg_snapshot_xmax(pg_current_snapshot()))
        OR EXISTS (SELECT FROM change_reader r WHERE r.xid > pg_snapshot_xmax(pg_current_snapshot())) AS ahead
) a;

-- current_epoch is VOLATILE: it sees an epoch that was stored while its statement waited for the lock of change_epoch.
-- +goose StatementBegin
CREATE FUNCTION current_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT g.epoch FROM search_registry g);
END $$;
-- +goose StatementEnd

-- note_epoch returns the last epoch, and first stores a new one where the database is on another line than that one,
-- or where forced is the cause of one. The lock waits for transactions that write changes: when the new epoch can be seen,
-- every change of the former ones can be seen too.
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
    UPDATE search_registry SET epoch = new_epoch;
    RETURN new_epoch;
END $$;
-- +goose StatementEnd

ALTER TABLE change ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;
ALTER TABLE change ALTER COLUMN epoch SET DEFAULT current_epoch();
CREATE INDEX change_epoch ON change (epoch, xid);
DROP INDEX change_xid;

ALTER TABLE change_reader ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;
ALTER TABLE change_reader ALTER COLUMN epoch SET DEFAULT current_epoch();
ALTER TABLE change_trim ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;

ALTER TABLE notification_delivery ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;
ALTER TABLE notification_message ADD COLUMN epoch bigint NOT NULL DEFAULT 4294967296;
ALTER TABLE notification_message ALTER COLUMN epoch SET DEFAULT current_epoch();
CREATE INDEX notification_message_epoch ON notification_message (epoch, xid);
DROP INDEX notification_message_xid;

-- The epoch of horizon: transactions of former epochs have ended.
ALTER TABLE reindex_job ADD COLUMN horizon_epoch bigint NOT NULL DEFAULT 4294967296;
ALTER TABLE reindex_job ALTER COLUMN horizon_epoch SET DEFAULT current_epoch();

-- changes_of_others (0178) of a snapshot of one epoch. The state of a search names both, and one of another epoch
-- is not compared.
-- +goose StatementBegin
CREATE FUNCTION changes_of_others(at_epoch bigint, since pg_snapshot, types smallint[], most integer, written bigint[], written_versions integer[])
RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unknown boolean;
    found bigint[];
    own text;
BEGIN
    WITH l AS MATERIALIZED (
        SELECT c.rids, c.versions FROM change c WHERE c.epoch = at_epoch AND c.xid >= pg_snapshot_xmax(since)
        UNION ALL SELECT c.rids, c.versions FROM change c WHERE c.epoch = at_epoch AND c.xid = ANY (ARRAY(SELECT pg_snapshot_xip(since)))),
    r AS MATERIALIZED (
        SELECT l.rids, l.rids[1] AS first, l.versions[1] AS version, (l.rids[1], l.versions[1]) IN (SELECT * FROM unnest(written, written_versions)) AS own FROM l),
    n AS MATERIALIZED (
        SELECT DISTINCT u.rid FROM r CROSS JOIN LATERAL unnest(r.rids) AS u(rid)
        WHERE r.own IS NOT TRUE AND (u.rid >> 48)::smallint = ANY (types) LIMIT most + 1)
    SELECT EXISTS (SELECT FROM r WHERE r.rids = '{}') OR (SELECT count(*) > most FROM n), ARRAY(SELECT n.rid FROM n),
        (SELECT string_agg(r.first || '/' || r.version, ',') FROM r WHERE r.own)
    INTO unknown, found, own;
    RETURN CASE
        WHEN unknown THEN ''
        WHEN cardinality(found) > 0 THEN concat(own, ' ', changed_resources(found))
        WHEN own IS NOT NULL THEN own || ' '
    END;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION changes_of_others(bigint, pg_snapshot, smallint[], integer, bigint[], integer[]);
ALTER TABLE reindex_job DROP COLUMN horizon_epoch;
CREATE INDEX notification_message_xid ON notification_message (xid);
ALTER TABLE notification_message DROP COLUMN epoch;
ALTER TABLE notification_delivery DROP COLUMN epoch;
ALTER TABLE change_trim DROP COLUMN epoch;
ALTER TABLE change_reader DROP COLUMN epoch;
CREATE INDEX change_xid ON change (xid);
ALTER TABLE change DROP COLUMN epoch;
DROP FUNCTION note_epoch(text);
DROP FUNCTION current_epoch();
ALTER TABLE search_registry DROP COLUMN epoch;
DROP FUNCTION database_identity();
DROP TABLE epoch;
