-- +goose Up

-- A key stays published until the last token that it has signed is over, whatever lifetimes
-- are configured by then. What the keys of before have signed is over with the longest
-- lifetime of a client, or in a day.
ALTER TABLE oauth_key ADD COLUMN tokens_until timestamptz NOT NULL DEFAULT 'epoch';
UPDATE oauth_key
SET tokens_until = now() + greatest(interval '1 day',
    (SELECT max(nullif(c.registration ->> 'accessTokenLifetime', '')::interval) FROM oauth_client c));

-- The launch context that an authorization's token answers have, for introspection
-- (SMART App Launch 2.2): all that is not in the access token itself.
ALTER TABLE oauth_grant ADD COLUMN context jsonb NOT NULL DEFAULT '{}';

-- +goose Down
ALTER TABLE oauth_grant DROP COLUMN context;
ALTER TABLE oauth_key DROP COLUMN tokens_until;
