-- +goose Up

-- Tokens of $get-ws-binding-token: a WebSocket that sends one is told of some Subscriptions.
--   token          SHA-256 of the token
--   subscriptions  ids of the Subscriptions
--   owner          who asked for the token (notify.Owner)
CREATE TABLE notification_binding (
    token         bytea       PRIMARY KEY,
    subscriptions text[]      NOT NULL,
    owner         jsonb       NOT NULL,
    expires       timestamptz NOT NULL
);
CREATE INDEX notification_binding_expires ON notification_binding (expires);

-- Events of a Subscription by their numbers: $events, and messages over a WebSocket.
CREATE INDEX notification_delivery_number ON notification_delivery (subscriber, number);

-- +goose Down
DROP INDEX notification_delivery_number;
DROP TABLE notification_binding;
