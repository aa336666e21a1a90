-- +goose Up

-- Searches whose parameters are too long for the links of their pages.
--   token  SHA-256 of the token in the links
--   owner  client and user of the search
--   self   path and parameters of the search, without the page
--   used   when a page was last asked for
CREATE TABLE stored_search (
    token bytea       PRIMARY KEY,
    owner text        NOT NULL,
    self  text        NOT NULL,
    used  timestamptz NOT NULL
);
CREATE INDEX stored_search_used ON stored_search (used);

-- +goose Down
DROP TABLE stored_search;
