-- +goose Up

-- moment is the latest moment that a bulk export shows (store/moment.go). No transaction that commits
-- later may store a version with a last_updated up to it.
ALTER TABLE search_registry ADD COLUMN moment timestamptz NOT NULL DEFAULT 'epoch';

-- +goose Down
ALTER TABLE search_registry DROP COLUMN moment;
