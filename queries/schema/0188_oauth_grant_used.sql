-- +goose Up

-- When an authorization last gave a token, for the people and administrators who decide
-- whether it goes on.
ALTER TABLE oauth_grant ADD COLUMN used timestamptz NOT NULL DEFAULT 'epoch';
UPDATE oauth_grant SET used = created;

-- +goose Down
ALTER TABLE oauth_grant DROP COLUMN used;
