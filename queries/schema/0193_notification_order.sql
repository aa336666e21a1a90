-- +goose Up

-- Deliveries of a subscriber go out in the order of its events. A delivery that failed before, or
-- that an administrator sends again, is found apart from those behind it.
DROP INDEX notification_delivery_due;
CREATE INDEX notification_delivery_order ON notification_delivery (subscriber, number) WHERE status IN ('p', 'i');
CREATE INDEX notification_delivery_tried ON notification_delivery (subscriber, number) WHERE status IN ('p', 'i') AND attempts <> 0;

-- How fast the last request to a subscriber was answered. Requests to late and to unknown
-- subscribers leave places for those that answer promptly.
--   unknown  no request yet
--   prompt   soon
--   late     late or never
ALTER TABLE notification_subscriber ADD COLUMN answers text NOT NULL DEFAULT 'unknown' CHECK (answers IN ('unknown', 'prompt', 'late'));
DROP INDEX notification_subscriber_due;
CREATE INDEX notification_subscriber_due ON notification_subscriber (answers, due) WHERE due IS NOT NULL;

-- +goose Down
DROP INDEX notification_subscriber_due;
CREATE INDEX notification_subscriber_due ON notification_subscriber (due) WHERE due IS NOT NULL;
ALTER TABLE notification_subscriber DROP COLUMN answers;
DROP INDEX notification_delivery_tried;
DROP INDEX notification_delivery_order;
CREATE INDEX notification_delivery_due ON notification_delivery (subscriber, (attempts = 0), next_attempt, number)
    WHERE status IN ('p', 'i');
