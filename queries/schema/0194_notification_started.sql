-- +goose Up

-- When a Subscription became active; it keeps that instant while it is in error. Events that were
-- written before are not delivered to it. So it misses the events of the time that it was off.
ALTER TABLE notification_subscription ADD COLUMN started_at timestamptz NOT NULL DEFAULT 'epoch';

-- +goose Down
ALTER TABLE notification_subscription DROP COLUMN started_at;
