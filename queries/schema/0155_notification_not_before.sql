-- +goose Up

-- The earliest time of the next attempt that the endpoint asked for (Retry-After); null where
-- it asked for none. When a Subscription is active again, what waits goes out in order at once
-- except what the endpoint put off.
ALTER TABLE notification_delivery ADD COLUMN not_before timestamptz;

-- +goose Down
ALTER TABLE notification_delivery DROP COLUMN not_before;
