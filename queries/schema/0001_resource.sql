-- +goose Up

-- Resource types that have been stored, with their numbers.
CREATE TABLE resource_type (
    typ  smallint PRIMARY KEY,
    name text     NOT NULL UNIQUE
);

-- Surrogate numbers of each resource type. Servers reserve blocks, each in a transaction of its own, so that no write
-- waits for the number of another.
--   next          the next free number
--   usable        numbers below it may be reserved
--   announced     searches ask the parts of index_date and index_quantity below it (0003_search.sql)
--   announced_at  when announced was raised
-- One row for each type, updated for every block: its page keeps room for its next versions.
CREATE TABLE rid_next (
    typ          smallint    PRIMARY KEY,
    next         bigint      NOT NULL,
    usable       bigint      NOT NULL,
    announced    bigint      NOT NULL,
    announced_at timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 10);

-- The current version of every resource that is not deleted.
--   rid      surrogate: typ << 48 | number. It stays with the resource, orders search results, and gives the rows of
--            a type by range.
--   ref      hash of "type/id" (fhir.ValueReference): what references to this resource hash to, and the key it is
--            read by.
--   shard    ref & 255: the distribution column, in every unique key.
--   ranges   hash of the rows in index_date, index_number, index_quantity and index_string, and of the version they
--            were compared for; 0 is no hash. Most updates leave those rows as they are.
--   terms    hashed (key, value) pairs, fhir.Key.Term: equality search.
--   targets  ref of each local resource this one refers to: _has.
--   body     JSON as it is served, compressed (function resource_body).
CREATE TABLE resource (
    rid          bigint      NOT NULL,
    ref          bigint      NOT NULL,
    last_updated timestamptz NOT NULL,
    ranges       bigint      NOT NULL DEFAULT 0,
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
-- _lastUpdated, _sort=_lastUpdated, history of a type and of the system.
CREATE INDEX resource_last_updated ON resource (typ, last_updated, rid);
-- token, reference, uri, string :exact, :missing, compartments, _revinclude, chains.
-- The server moves new terms into the index proper every few thousand writes; the limit is for a server that cannot
-- keep up, and makes one writer do it.
CREATE INDEX resource_terms ON resource USING gin (terms) WITH (gin_pending_list_limit = 16384);

-- Superseded versions and deletions. A deleted resource has no row in resource; its last row here has method 'D' and
-- no body.
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
-- History of a type and of the system.
CREATE INDEX resource_history_last_updated ON resource_history (typ, last_updated, rid);

-- Bodies over 64 kB are left to PostgreSQL to compress: with lz4 where the server has it, twice as fast as pglz to
-- read and to write.
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

-- Every version of a resource changes an indexed column, so no update can stay on its page and pages are filled
-- whole. Vacuum comes after 5% instead of 20%: the room of superseded rows is used again, and the visibility map,
-- which lets counts be answered from an index alone, keeps up with a growing table.
--
-- ANALYZE reads 30,000 pages of a table at random, however large it is: after 5% of growth an import would run it for
-- four tables every minute. Plans are generic, and a server analyzes a table that has grown by half
-- (store/flush.go); a fifth of changes is soon enough for the rest.
ALTER TABLE resource SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE resource_history SET (autovacuum_vacuum_insert_scale_factor = 0.05);

-- No plan asks for the distribution of hashes or bodies, and ANALYZE would read all of them.
ALTER TABLE resource ALTER COLUMN terms SET STATISTICS 0, ALTER COLUMN targets SET STATISTICS 0,
    ALTER COLUMN body SET STATISTICS 0;
ALTER TABLE resource_history ALTER COLUMN body SET STATISTICS 0;

-- Dictionaries that bodies are compressed with. The first byte of a body is the number of its dictionary. A
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
