-- +goose Up

-- What the external terminology server said, for all servers.
--   key      hash of the server's URL and the question.
--   fetched  when: an answer is fresh for terminology.cache_ttl_secs, and kept
--            longer for when the server does not answer.
--   body     JSON, s2-compressed.
CREATE TABLE terminology_answer (
    key     bigint      PRIMARY KEY,
    fetched timestamptz NOT NULL,
    body    bytea       NOT NULL
);
ALTER TABLE terminology_answer ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN body SET STATISTICS 0;
CREATE INDEX terminology_answer_fetched ON terminology_answer (fetched);

-- Large sets of codes that searches join: :in, :not-in, :below, :above from 500
-- codes on. id is a hash of the values, so that servers make the same set once. A
-- set is dropped an hour after its last use. On a sharded database both are
-- reference tables.
CREATE TABLE terminology_set (
    id   bigint      PRIMARY KEY,
    used timestamptz NOT NULL
);

-- The codes of a set as fhir.ValueCoding hashes them; value # key is a term.
CREATE TABLE terminology_set_value (
    set_id bigint NOT NULL,
    value  bigint NOT NULL,
    PRIMARY KEY (set_id, value)
);

-- +goose Down
DROP TABLE terminology_set_value, terminology_set, terminology_answer;
