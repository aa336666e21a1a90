-- +goose Up

-- Trigrams serve string :contains. The extension is trusted: a database owner may create it.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- index_date and index_quantity have the entries of a key in parts, each of a million surrogates of a type: an entry
-- of resource rid is stored under key + (rid >> 20 & (1 << 28) - 1). New entries then go to the pages of the last
-- part, however many there are. A search asks every part that it knows, so a part is announced some seconds before
-- it is used (store/announce.go).

-- Dates and periods: half-open [low, high) in microseconds since 1970 UTC, open ends at -10^18 and 10^18. Nearly
-- every range is at most a day long, so one index answers all prefixes: `high > x` of a short range implies `low > x
-- - 1 day`. The long ones have an index by their end.
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

-- Quantities in the unit they came with. A search in another unit of the same dimension is asked once for each unit
-- in use, converted in Go. The unit comes before the value: a comparison in a unit reads that unit alone.
CREATE TABLE index_quantity (
    key  bigint  NOT NULL,
    rid  bigint  NOT NULL,
    unit bigint  NOT NULL,
    low  numeric NOT NULL,
    high numeric
);
CREATE INDEX index_quantity_low ON index_quantity (key, unit, low, rid);
CREATE INDEX index_quantity_high ON index_quantity (key, unit, high, rid) WHERE high IS NOT NULL;
CREATE INDEX index_quantity_rid ON index_quantity (rid);

-- Every unit that has been stored; id is a hash of the other three columns (fhir.UnitID).
CREATE TABLE quantity_unit (
    id     bigint PRIMARY KEY,
    system text   NOT NULL,
    code   text   NOT NULL,
    unit   text   NOT NULL
);

-- Strings, folded (fhir.FoldText): prefix search, order, and trigrams for :contains.
--   word  false: a string. true: a string from a further word on (under fhir.WordKey). It is part of another row, so
--         :contains needs no trigrams of it. null: a sort order that an administrator asked for (sort_index); many
--         resources have the same text, and come by rid in both directions.
CREATE TABLE index_string (
    key  bigint NOT NULL,
    rid  bigint NOT NULL,
    text text   NOT NULL COLLATE "C",
    word boolean DEFAULT false
);
CREATE INDEX index_string_prefix ON index_string (key, left(text, 128), rid);
CREATE INDEX index_string_contains ON index_string USING gin (text gin_trgm_ops) WHERE NOT word;
CREATE INDEX index_string_descending ON index_string (key, left(text, 128) DESC, rid) WHERE word IS NULL;
CREATE INDEX index_string_rid ON index_string (rid);

-- The words of narratives, for _text: one row for a resource that has a narrative. hash is of its text, so that an
-- index that is compared shows each difference.
CREATE TABLE index_narrative (
    rid   bigint   NOT NULL,
    hash  bigint   NOT NULL,
    words tsvector NOT NULL
);
CREATE INDEX index_narrative_words ON index_narrative USING gin (words);
CREATE INDEX index_narrative_rid ON index_narrative (rid);

ALTER TABLE index_date SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_number SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_quantity SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_string SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_narrative SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2);

-- Every display text that a coded element has been stored with. A resource with that text has key # value among its
-- terms: token :text reads this table first, which stays small because displays repeat. value is
-- fhir.ValueText(text): a text may be longer than a b-tree takes.
CREATE TABLE token_text (
    key   bigint NOT NULL,
    value bigint NOT NULL,
    text  text   NOT NULL COLLATE "C",
    PRIMARY KEY (key, value)
);

-- The index of a resource type depends on the build of the server. fingerprint is a hash of the compiled search
-- parameters (search.Registry.Fingerprints) of the build that indexed the stored resources last, or is about to by a
-- job. A type without a row was indexed by an unknown build.
CREATE TABLE index_fingerprint (
    resource_type text   PRIMARY KEY COLLATE "C",
    fingerprint   bigint NOT NULL
);

-- Sort orders that an administrator wants the index to keep: of a token, reference or uri the index has hashes, whose
-- order means nothing. Resources of the type have entries in index_string with the text that _sort compares, under a
-- key of their own.
--   key      of the entries that exist, or that a job makes
--   removed  when it was taken back: searches do without since then. Entries are written until no search that reads
--            them can be running; then the row goes, and a job removes them.
CREATE TABLE sort_index (
    resource_type text        NOT NULL COLLATE "C",
    code          text        NOT NULL COLLATE "C",
    key           bigint      NOT NULL,
    created       timestamptz NOT NULL,
    removed       timestamptz,
    PRIMARY KEY (resource_type, code)
);

-- Searches whose parameters are too long for the links of their pages.
--   token  SHA-256 of the token in the links
--   owner  client and user of the search
--   self   path and parameters of the search, without the page
--   used   when a page was last asked for
CREATE TABLE stored_search (
    token bytea       PRIMARY KEY,
    owner text        NOT NULL,
    self  text        NOT NULL,
    used  timestamptz NOT NULL
);
CREATE INDEX stored_search_used ON stored_search (used);

-- The searches that were run, by shape: type, parameters and modifiers, never values. buckets count their durations.
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

-- Indexes that would speed up the searches in search_shape: each was proved, by a plan with a hypothetical index or
-- with a real one on a sample.
--   id           of the statement: the same index is one suggestion
--   name         of the index
--   parameters   of the searches, with modifiers
--   improvement  part of the work that the index saves, 0 to 1
--   proof        hypothetical or sample
CREATE TABLE index_suggestion (
    id            text PRIMARY KEY,
    resource_type text NOT NULL,
    parameters    text[] NOT NULL,
    shapes        text[] NOT NULL,
    name          text NOT NULL,
    statement     text NOT NULL,
    reason        text NOT NULL,
    improvement   double precision NOT NULL,
    proof         text NOT NULL,
    proved        timestamptz NOT NULL
);

-- Work on the index of stored resources: one row for a resource type whose index is brought up to date with the
-- search parameters. Its chunks are parts of a job under the same id (0009_job.sql).
--   parameters  canonical URLs of the SearchParameters that are the reason; empty when somebody asked for it
--   keys        keys of the entries of those parameters: searches by one of them may miss something until the job
--               is done
--   ranges      compare the rows of index_date and the like too, not only terms
--   registry    search_registry.version that the job brings the index up to
--   horizon     transactions below it may have used older search parameters: work begins when all of them have
--               ended. horizon_epoch is its epoch: transactions of former epochs have ended.
--   planned     when the chunks were made
--   total, done, changed, failed   resources
--   failure     the fault of one that failed
--   failed_keys of the parameters that could not be evaluated on some
--   reason      of the job, where neither parameters nor keys say it
CREATE TABLE reindex_job (
    id            text        PRIMARY KEY COLLATE "C",
    resource_type text        NOT NULL,
    parameters    text[]      NOT NULL,
    keys          bigint[]    NOT NULL,
    ranges        boolean     NOT NULL,
    registry      bigint      NOT NULL,
    created       timestamptz NOT NULL,
    horizon       xid8,
    horizon_epoch bigint      NOT NULL DEFAULT current_epoch(),
    planned       timestamptz,
    finished      timestamptz,
    total         bigint      NOT NULL DEFAULT 0,
    done          bigint      NOT NULL DEFAULT 0,
    changed       bigint      NOT NULL DEFAULT 0,
    failed        bigint      NOT NULL DEFAULT 0,
    failure       text        NOT NULL DEFAULT '',
    failed_keys   bigint[]    NOT NULL DEFAULT '{}',
    cancelled     boolean     NOT NULL DEFAULT false,
    reason        text        NOT NULL DEFAULT ''
);

-- changed_resources returns, as JSON, the parts of changed resources that a cached search needs: a member for each,
-- with r, its rid, and nothing else of a deleted one; i, v and u, its id, version and last update in microseconds
-- since 1970 UTC; t, its terms; g, the refs of the local resources that it refers to; d, n, q and s, its rows of
-- index_date, index_number, index_quantity and index_string.
-- +goose StatementBegin
CREATE FUNCTION changed_resources(rids bigint[]) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_object(
            'r', n.rid, 'i', r.id, 'v', r.version, 'u', (extract(epoch FROM r.last_updated) * 1000000)::bigint, 't', r.terms, 'g', r.targets,
            'd', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low, 'High', x.high)) FROM index_date x WHERE x.rid = r.rid),
            'n', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low::text, 'High', coalesce(x.high, x.low)::text))
                  FROM index_number x WHERE x.rid = r.rid),
            'q', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low::text, 'High', coalesce(x.high, x.low)::text,
                      'System', q.system, 'Code', q.code, 'Unit', q.unit))
                  FROM index_quantity x JOIN quantity_unit q ON q.id = x.unit WHERE x.rid = r.rid),
            's', (SELECT json_agg(json_build_object('Key', x.key, 'Text', x.text)) FROM index_string x WHERE x.rid = r.rid)))
        FROM unnest(rids) AS n(rid) LEFT JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = n.rid OFFSET 0) r ON true);
END $$;
-- +goose StatementEnd

-- changes_of_others returns the changes since a snapshot of one epoch. The transactions that a snapshot has not seen
-- are those from its end on and those that were running: the change log is looked up by both, however old a running
-- one is. A search asks it where the change log has anything new at all: to begin with its statements takes half as
-- long as to read a page. One plan serves all: planned for each snapshot anew it takes several times as long.
--
-- It tells a server of a whole row of the change log that it has written itself, instead of each resource in it: an
-- import writes some hundred at once, and tens of thousands a second. A row is told apart by the rid and the version
-- of its first resource, which no other row has: written are these of the server's own rows.
--
-- It returns null where nothing has changed, and the empty text where the changes cannot be followed, as search
-- parameters have changed or the others have written more than most resources. Else it returns the server's own
-- rows, each as rid/version, with commas between; a space; and changed_resources of the resources that others have
-- written, if there are any.
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
