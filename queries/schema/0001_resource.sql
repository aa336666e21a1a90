-- +goose Up

-- Trigrams serve string :contains. The extension is trusted: a database owner
-- may create it.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- Every resource type that has been stored, with the number that stands for it.
CREATE TABLE resource_type (
    typ  smallint PRIMARY KEY,
    name text     NOT NULL UNIQUE
);

-- Surrogate numbers are taken from here a block at a time, in a transaction of
-- their own, so that no write waits for another one's number. One row.
CREATE TABLE rid_block (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    next bigint  NOT NULL
);
INSERT INTO rid_block (next) VALUES (1);

-- The current version of every resource that is not deleted.
--   rid      surrogate given out by the server in blocks: typ << 48 | number. It
--            stays with the resource, orders search results, and gives the rows
--            of a type by range.
--   ref      hash of "type/id" (fhir.ValueReference): what references to this
--            resource hash to, and the key it is read by.
--   shard    ref & 255: the distribution column, in every unique key.
--   terms    hashed (key, value) pairs, fhir.Key.Term: equality search.
--   targets  ref of each local resource this one refers to: _has.
--   body     JSON as it is served, compressed (function resource_body).
CREATE TABLE resource (
    rid          bigint      NOT NULL,
    ref          bigint      NOT NULL,
    last_updated timestamptz NOT NULL,
    version      integer     NOT NULL,
    typ          smallint    NOT NULL,
    shard        smallint    NOT NULL,
    method       "char"      NOT NULL,
    id           text        NOT NULL COLLATE "C",
    terms        bigint[]    NOT NULL,
    targets      bigint[]    NOT NULL,
    body         bytea       NOT NULL,
    PRIMARY KEY (rid, shard),
    CONSTRAINT resource_ref UNIQUE (ref, shard)
);
-- _lastUpdated, _sort=_lastUpdated, type and system history.
CREATE INDEX resource_last_updated ON resource (typ, last_updated, rid);
-- token, reference, uri, string :exact, :missing, compartments, _revinclude, chains.
-- The server moves new terms into the index proper every few thousand writes; the
-- limit is for when it cannot keep up, and one writer has to do it.
CREATE INDEX resource_terms ON resource USING gin (terms) WITH (gin_pending_list_limit = 16384);

-- Superseded versions and deletions. A deleted resource has no row in resource;
-- its last row here has method 'D' and no body.
CREATE TABLE resource_history (
    rid          bigint      NOT NULL,
    ref          bigint      NOT NULL,
    last_updated timestamptz NOT NULL,
    version      integer     NOT NULL,
    typ          smallint    NOT NULL,
    shard        smallint    NOT NULL,
    method       "char"      NOT NULL,
    id           text        NOT NULL COLLATE "C",
    body         bytea,
    PRIMARY KEY (ref, version, shard)
);
-- Type and system history.
CREATE INDEX resource_history_last_updated ON resource_history (typ, last_updated, rid);

-- The change log: one row for the versions that a transaction wrote together. It
-- is the one feed of notifications, app events and cache invalidation. Readers
-- take rows with xid < pg_snapshot_xmin(pg_current_snapshot()), in the order of
-- xid, and so skip none that commits late. A row for each version took three
-- times the space, and a tenth of the write.
--   written               when, by the clock of PostgreSQL
--   rids, refs, versions  one element each for a version
--   methods               one letter each: C, U, P, D
CREATE TABLE change (
    xid      xid8      NOT NULL DEFAULT pg_current_xact_id(),
    written  timestamptz NOT NULL DEFAULT now(),
    shard    smallint  NOT NULL,
    rids     bigint[]  NOT NULL,
    refs     bigint[]  NOT NULL,
    versions integer[] NOT NULL,
    methods  text      NOT NULL COLLATE "C"
);
CREATE INDEX change_xid ON change (xid);

-- Dates and periods: half-open [low, high) in microseconds since 1970 UTC, open
-- ends at -10^18 and 10^18. Nearly every range is at most a day long, so one
-- index answers all prefixes: `high > x` of a short range implies `low > x - 1
-- day`. The long ones have an index by their end.
CREATE TABLE index_date (
    key  bigint NOT NULL,
    low  bigint NOT NULL,
    high bigint NOT NULL,
    rid  bigint NOT NULL
);
CREATE INDEX index_date_range ON index_date (key, low, high, rid);
CREATE INDEX index_date_long ON index_date (key, high, low, rid) WHERE high - low > 86400000000;
CREATE INDEX index_date_rid ON index_date (rid);

-- Numbers; high is null where it equals low, and may be infinite.
CREATE TABLE index_number (
    key  bigint  NOT NULL,
    rid  bigint  NOT NULL,
    low  numeric NOT NULL,
    high numeric
);
CREATE INDEX index_number_low ON index_number (key, low, rid);
CREATE INDEX index_number_high ON index_number (key, high, rid) WHERE high IS NOT NULL;
CREATE INDEX index_number_rid ON index_number (rid);

-- Quantities in the unit they came with. A search in another unit of the same
-- dimension is asked once for each unit in use, converted in Go.
CREATE TABLE index_quantity (
    key  bigint  NOT NULL,
    rid  bigint  NOT NULL,
    unit bigint  NOT NULL,
    low  numeric NOT NULL,
    high numeric
);
CREATE INDEX index_quantity_low ON index_quantity (key, low, unit, rid);
CREATE INDEX index_quantity_high ON index_quantity (key, high, unit, rid) WHERE high IS NOT NULL;
CREATE INDEX index_quantity_rid ON index_quantity (rid);

-- Every unit that has been stored; id is a hash of the other three columns
-- (fhir.UnitID).
CREATE TABLE quantity_unit (
    id     bigint PRIMARY KEY,
    system text   NOT NULL,
    code   text   NOT NULL,
    unit   text   NOT NULL
);

-- Strings, folded (fhir.FoldText): prefix search, order, and trigrams for :contains.
CREATE TABLE index_string (
    key  bigint NOT NULL,
    rid  bigint NOT NULL,
    text text   NOT NULL COLLATE "C"
);
CREATE INDEX index_string_prefix ON index_string (key, left(text, 128), rid);
CREATE INDEX index_string_contains ON index_string USING gin (text gin_trgm_ops);
CREATE INDEX index_string_rid ON index_string (rid);

-- Every display text that a coded element has been stored with. A resource with
-- that text has key # value among its terms: token :text reads this table first,
-- which stays small because displays repeat. value is fhir.ValueText(text): a
-- text may be longer than a b-tree takes.
CREATE TABLE token_text (
    key   bigint NOT NULL,
    value bigint NOT NULL,
    text  text   NOT NULL COLLATE "C",
    PRIMARY KEY (key, value)
);

-- Bodies over 64 kB are left to PostgreSQL to compress: with lz4 where the server
-- was built with it, twice as fast as pglz to read and to write.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE resource ALTER COLUMN body SET COMPRESSION lz4;
        ALTER TABLE resource_history ALTER COLUMN body SET COMPRESSION lz4;
    END IF;
END
$$;
-- +goose StatementEnd

-- Every version of a resource changes an indexed column, so no update can stay on
-- its page and pages are filled whole. Vacuum comes after 5% instead of 20%: the
-- room of superseded rows is used again, and the visibility map, which lets counts
-- be answered from an index alone, keeps up with a growing table.
ALTER TABLE resource SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE resource_history SET (autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE index_date SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_number SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_quantity SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_string SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- One row, updated for every block: its page keeps room for its next versions.
ALTER TABLE rid_block SET (fillfactor = 10);

-- No plan asks for the distribution of hashes or bodies, and ANALYZE would read
-- all of them.
ALTER TABLE resource ALTER COLUMN terms SET STATISTICS 0, ALTER COLUMN targets SET STATISTICS 0,
    ALTER COLUMN body SET STATISTICS 0;
ALTER TABLE resource_history ALTER COLUMN body SET STATISTICS 0;

-- What bodies are compressed with, by the number in their first byte. A
-- dictionary that has been used stays for good.
CREATE TABLE body_dictionary (
    number  smallint PRIMARY KEY,
    content bytea    NOT NULL
);

-- resource_body returns a body's JSON, for SQL by hand; the server does the same
-- in Go, a thousand times as fast. A body is JSON, or the number of a dictionary
-- and a block of S2 (https://github.com/klauspost/compress/tree/master/s2): its
-- length, then literals and copies from what came before, where the dictionary
-- comes before everything.
-- +goose StatementBegin
CREATE FUNCTION resource_body(stored bytea) RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE AS $$
DECLARE
    dictionary bytea;
    result     bytea := '';
    chunk      bytea;
    pos        integer := 1;
    tag        integer;
    len        integer;
    back       integer;
    start      integer;
BEGIN
    IF get_byte(stored, 0) = ascii('{') THEN
        RETURN convert_from(stored, 'UTF8');
    END IF;
    SELECT d.content INTO STRICT dictionary FROM body_dictionary d WHERE d.number = get_byte(stored, 0);
    back := length(dictionary);
    WHILE get_byte(stored, pos) >= 128 LOOP
        pos := pos + 1;
    END LOOP;
    pos := pos + 1;
    WHILE pos < length(stored) LOOP
        tag := get_byte(stored, pos);
        IF tag & 3 = 0 THEN
            len := tag >> 2;
            pos := pos + 1;
            IF len = 60 THEN
                len := get_byte(stored, pos);
                pos := pos + 1;
            ELSIF len = 61 THEN
                len := get_byte(stored, pos) | (get_byte(stored, pos + 1) << 8);
                pos := pos + 2;
            ELSIF len = 62 THEN
                len := get_byte(stored, pos) | (get_byte(stored, pos + 1) << 8) | (get_byte(stored, pos + 2) << 16);
                pos := pos + 3;
            END IF;
            result := result || substring(stored FROM pos + 1 FOR len + 1);
            pos := pos + len + 1;
            CONTINUE;
        END IF;
        IF tag & 3 = 1 THEN
            len := tag >> 2 & 7;
            start := (tag & 224) << 3 | get_byte(stored, pos + 1);
            pos := pos + 2;
            IF start > 0 THEN
                back := start;
            ELSIF len = 5 THEN
                len := get_byte(stored, pos) + 4;
                pos := pos + 1;
            ELSIF len = 6 THEN
                len := (get_byte(stored, pos) | (get_byte(stored, pos + 1) << 8)) + 256;
                pos := pos + 2;
            ELSIF len = 7 THEN
                len := (get_byte(stored, pos) | (get_byte(stored, pos + 1) << 8) | (get_byte(stored, pos + 2) << 16)) + 65536;
                pos := pos + 3;
            END IF;
            len := len + 4;
        ELSE
            len := (tag >> 2) + 1;
            back := get_byte(stored, pos + 1) | (get_byte(stored, pos + 2) << 8);
            pos := pos + 3;
            IF tag & 3 = 3 THEN
                back := back | (get_byte(stored, pos) << 16) | (get_byte(stored, pos + 1) << 24);
                pos := pos + 2;
            END IF;
        END IF;
        start := length(result) - back;
        IF start < 0 THEN
            chunk := substring(dictionary FROM length(dictionary) + start + 1 FOR len);
        ELSE
            chunk := substring(result FROM start + 1 FOR len);
            WHILE length(chunk) < len LOOP
                chunk := chunk || substring(chunk FROM 1 FOR len - length(chunk));
            END LOOP;
        END IF;
        result := result || chunk;
    END LOOP;
    RETURN convert_from(result, 'UTF8');
END
$$;
-- +goose StatementEnd

-- The data as SQL sees it best: SELECT body->>'gender', count(*) FROM
-- resource_json WHERE type = 'Patient' GROUP BY 1.
CREATE VIEW resource_json AS
SELECT t.name AS type, r.id, r.version, r.last_updated, resource_body(r.body)::jsonb AS body
FROM resource r
JOIN resource_type t ON t.typ = r.typ;

-- +goose Down
DROP VIEW resource_json;
DROP FUNCTION resource_body;
DROP TABLE body_dictionary, token_text, index_string, quantity_unit, index_quantity, index_number, index_date,
    change, resource_history, resource, rid_block, resource_type;
