-- +goose Up

-- When the next heartbeats may be sent, by any server: together they keep to one rate. The
-- row is locked by the server that takes some.
CREATE TABLE notification_pace (
    id      integer     PRIMARY KEY CHECK (id = 1),
    free_at timestamptz NOT NULL
);
INSERT INTO notification_pace (id, free_at) VALUES (1, 'epoch');

-- Handshakes do not stand in line behind heartbeats.
CREATE INDEX notification_subscription_requested ON notification_subscription (due) WHERE status = 'requested';

-- +goose Down
DROP INDEX notification_subscription_requested;
DROP TABLE notification_pace;
