-- +goose Up

-- Subscriptions that Apps have or had. Pending deliveries name a subscription by its number, which
-- it keeps when an App's subscriptions change their order. A number is never given out again.
-- content is a digest of the subscription, name is '' for one without a name.
CREATE TABLE app_subscription (
    app     text    NOT NULL,
    number  integer NOT NULL,
    name    text    NOT NULL,
    content text    NOT NULL,
    current boolean NOT NULL,
    PRIMARY KEY (app, number)
);

-- +goose Down
DROP TABLE app_subscription;
