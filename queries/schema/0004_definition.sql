-- +goose Up

-- The FHIR packages that were installed on the running service, and the versions of the resources that each of them
-- brought: removing a package may delete these.
CREATE TABLE installed_package (
    name      text        NOT NULL,
    version   text        NOT NULL,
    integrity text        NOT NULL,
    installed timestamptz NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE installed_resource (
    name             text    NOT NULL, -- of the package
    version          text    NOT NULL, -- of the package
    resource_type    text    NOT NULL,
    id               text    NOT NULL,
    resource_version integer NOT NULL,
    PRIMARY KEY (name, version, resource_type, id)
);

-- Answers of the external terminology server, for all servers.
--   key      hash of the server's URL and the question.
--   fetched  when: an answer is fresh for terminology.cache_ttl_secs, and kept longer for when the server does not
--            answer.
--   body     JSON, s2-compressed.
CREATE TABLE terminology_answer (
    key     bigint      PRIMARY KEY,
    fetched timestamptz NOT NULL,
    body    bytea       NOT NULL
);
ALTER TABLE terminology_answer ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN body SET STATISTICS 0;
CREATE INDEX terminology_answer_fetched ON terminology_answer (fetched);

-- Large sets of codes that searches join: :in, :not-in, :below, :above from 500 codes on. id is a hash of the values,
-- so that servers make the same set once. A set is dropped an hour after its last use. On a sharded database both
-- are reference tables.
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
