-- +goose Up
-- The console: its sessions are good on every server, and its key seals addresses and
-- forms on every server.
CREATE TABLE console_key (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    key bytea NOT NULL
);

-- A browser that has signed in to the console: id is the hash of its cookie. The rights are
-- those of the grant.
CREATE TABLE console_session (
    id text PRIMARY KEY,
    grant_id text NOT NULL UNIQUE,
    username text NOT NULL,
    started timestamptz NOT NULL,
    last_active timestamptz NOT NULL,
    address text NOT NULL
);
-- Serves the sessions of one user.
CREATE INDEX console_session_username ON console_session (username);

-- What a session has sent from the page Requests, and the answer.
CREATE TABLE console_request (
    id text PRIMARY KEY,
    session text NOT NULL,
    at timestamptz NOT NULL,
    request jsonb NOT NULL
);
CREATE INDEX console_request_session ON console_request (session, at);
CREATE INDEX console_request_at ON console_request (at);

-- +goose Down
DROP TABLE console_request;
DROP TABLE console_session;
DROP TABLE console_key;
