-- +goose Up

-- The trace that a write is part of, as its request told it (W3C Trace Context), beside each
-- change: webhooks are in it too. Null where no change of the row has one.
ALTER TABLE change ADD COLUMN traces text[];
ALTER TABLE notification_delivery ADD COLUMN trace text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE notification_delivery DROP COLUMN trace;
ALTER TABLE change DROP COLUMN traces;
