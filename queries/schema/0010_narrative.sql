-- +goose Up

-- The words of narratives, for _text: one row for a resource that has a narrative.
-- hash is of its text, so that an index that is compared shows what differs.
CREATE TABLE index_narrative (
    rid   bigint   NOT NULL,
    hash  bigint   NOT NULL,
    words tsvector NOT NULL
);
CREATE INDEX index_narrative_words ON index_narrative USING gin (words);
CREATE INDEX index_narrative_rid ON index_narrative (rid);
ALTER TABLE index_narrative SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- +goose Down
DROP TABLE index_narrative;
