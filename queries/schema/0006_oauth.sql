-- +goose Up

-- The authorization server's state. Every key begins with the column that rows are looked up by, so that it can
-- distribute the table too. Times come from the server that writes, but for oauth_revocation.recorded: readers look
-- for new rows by the database's clock.
-- Secrets are hashes: tokens, codes, cookies by SHA-256, passwords by argon2id.

CREATE TABLE oauth_client (
    id text PRIMARY KEY,
    registration jsonb NOT NULL,
    secret text NOT NULL DEFAULT '',  -- sha256:… of a made one, argon2id of a chosen one, '' without
    active boolean NOT NULL,
    created timestamptz NOT NULL,
    updated timestamptz NOT NULL
);

CREATE TABLE oauth_user (
    username text PRIMARY KEY,
    password text NOT NULL DEFAULT '', -- argon2id; '' cannot sign in by password
    profile jsonb NOT NULL,            -- federation: the roles and the fhirUser that another OpenID provider gave
    active boolean NOT NULL,
    created timestamptz NOT NULL,
    updated timestamptz NOT NULL
);

-- Users of other OpenID providers, each with the user here.
CREATE TABLE oauth_identity (
    issuer text NOT NULL,
    subject text NOT NULL,
    username text NOT NULL,
    PRIMARY KEY (issuer, subject)
);

-- A key signs from signs_from until the next key of its algorithm does, and is
-- published until published_until. It stays published until the last token that it has signed is over
-- (tokens_until), whatever lifetimes are configured by then.
CREATE TABLE oauth_key (
    kid text PRIMARY KEY,
    algorithm text NOT NULL,
    private bytea NOT NULL,           -- PKCS #8, sealed by AES-256-GCM where sealed
    sealed boolean NOT NULL,
    created timestamptz NOT NULL,
    signs_from timestamptz NOT NULL,
    published_until timestamptz NOT NULL,
    tokens_until timestamptz NOT NULL DEFAULT 'epoch'
);

CREATE TABLE oauth_code (
    signature text PRIMARY KEY,
    grant_id text NOT NULL,
    client_id text NOT NULL,
    request jsonb NOT NULL,
    active boolean NOT NULL DEFAULT true,
    expires timestamptz NOT NULL
);

-- One authorization: the family of its refresh tokens, and the access tokens whose sid it is. used is the time of its
-- last token, for the people and administrators who decide whether it goes on. context is the launch context of its
-- token answers, for introspection (SMART App Launch 2.2), without the parts that are in the access token itself.
CREATE TABLE oauth_grant (
    id text PRIMARY KEY,
    client_id text NOT NULL,
    username text NOT NULL,
    login text NOT NULL DEFAULT '',   -- the sign-in it ends with (online_access)
    scope text NOT NULL,
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    revoked boolean NOT NULL DEFAULT false,
    context jsonb NOT NULL DEFAULT '{}',
    used timestamptz NOT NULL DEFAULT 'epoch'
);
-- Serves revoking all of a user, and everything that ends with a sign-in.
CREATE INDEX oauth_grant_username ON oauth_grant (username);
CREATE INDEX oauth_grant_login ON oauth_grant (login) WHERE login <> '';

CREATE TABLE oauth_refresh (
    signature text PRIMARY KEY,
    grant_id text NOT NULL,
    client_id text NOT NULL,
    request jsonb NOT NULL,
    active boolean NOT NULL DEFAULT true,
    rotated timestamptz NOT NULL DEFAULT 'epoch',
    expires timestamptz NOT NULL
);
-- Serves revoking a family.
CREATE INDEX oauth_refresh_grant ON oauth_refresh (grant_id);

-- Revocations: of an access token (kind token, id its jti), of a grant as a whole (grant), of an API key (apikey), of
-- the tokens that a client got before (client). Servers read the rows recorded since they last looked.
CREATE TABLE oauth_revocation (
    kind text NOT NULL,
    id text NOT NULL,
    before timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    recorded timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, id)
);
CREATE INDEX oauth_revocation_recorded ON oauth_revocation (recorded);

-- Assertions that were used (RFC 7523 §3): jti once for each issuer.
CREATE TABLE oauth_assertion (
    issuer text NOT NULL,
    jti text NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (issuer, jti)
);

-- A browser that signed in: id is the hash of its cookie oauth_session.
CREATE TABLE oauth_login (
    id text PRIMARY KEY,
    username text NOT NULL,
    authenticated timestamptz NOT NULL,
    expires timestamptz NOT NULL
);

-- An authorization request on its way through the pages.
CREATE TABLE oauth_flow (
    id text PRIMARY KEY,
    browser text NOT NULL,            -- hash of the cookie it belongs to
    state jsonb NOT NULL,
    done boolean NOT NULL DEFAULT false,
    expires timestamptz NOT NULL
);

CREATE TABLE oauth_launch (
    id text PRIMARY KEY,
    context jsonb NOT NULL,
    used boolean NOT NULL DEFAULT false,
    expires timestamptz NOT NULL
);

CREATE TABLE oauth_consent (
    username text NOT NULL,
    client_id text NOT NULL,
    scope text NOT NULL,
    granted timestamptz NOT NULL,
    PRIMARY KEY (username, client_id)
);

-- Failed sign-ins: of a name from an address, and of a name from anywhere.
CREATE TABLE oauth_failure (
    subject text NOT NULL,
    address text NOT NULL,            -- '' for anywhere
    failures integer NOT NULL,
    last timestamptz NOT NULL,
    locked_until timestamptz NOT NULL DEFAULT 'epoch',
    PRIMARY KEY (subject, address)
);

CREATE TABLE oauth_apikey (
    id text PRIMARY KEY,
    hash text NOT NULL,
    name text NOT NULL,
    scope text NOT NULL,
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,     -- 9999 for never
    revoked boolean NOT NULL DEFAULT false
);

-- Serve deleting expired rows.
CREATE INDEX oauth_code_expires ON oauth_code (expires);
CREATE INDEX oauth_refresh_expires ON oauth_refresh (expires);
CREATE INDEX oauth_assertion_expires ON oauth_assertion (expires);
CREATE INDEX oauth_login_expires ON oauth_login (expires);
CREATE INDEX oauth_flow_expires ON oauth_flow (expires);

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

-- Requests that a session has sent from the page Requests, and their answers.
CREATE TABLE console_request (
    id text PRIMARY KEY,
    session text NOT NULL,
    at timestamptz NOT NULL,
    request jsonb NOT NULL
);
CREATE INDEX console_request_session ON console_request (session, at);
CREATE INDEX console_request_at ON console_request (at);
