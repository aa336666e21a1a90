-- +goose Up

-- ANALYZE reads 30,000 pages of a table at random, however large it is. At 5% of growth an import did so for four
-- tables every minute, and took the disk from others. Plans are generic, and a server analyzes what has grown by
-- half (store/flush.go); a fifth of changes is soon enough for the rest.
ALTER TABLE resource SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_date SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_number SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_quantity SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_string SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE index_narrative SET (autovacuum_analyze_scale_factor = 0.2);

-- +goose Down
ALTER TABLE resource SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_date SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_number SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_quantity SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_string SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE index_narrative SET (autovacuum_analyze_scale_factor = 0.05);
