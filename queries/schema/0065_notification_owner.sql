-- +goose Up

-- The version of a Subscription from which on its present owner wrote it: what stands in
-- channel.header of older versions is not the present owner's to read.
ALTER TABLE notification_subscription ADD COLUMN owned_from integer NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE notification_subscription DROP COLUMN owned_from;
