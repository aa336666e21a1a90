-- +goose Up

-- The authorization server's state. Every key begins with what a row is found by, so
-- that it can distribute the table too. Times come from the server that writes, but
-- oauth_revocation.recorded: readers look for what is new by the database's clock.
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
    profile jsonb NOT NULL,
    active boolean NOT NULL,
    created timestamptz NOT NULL,
    updated timestamptz NOT NULL
);

-- Who of another OpenID provider is which user here.
CREATE TABLE oauth_identity (
    issuer text NOT NULL,
    subject text NOT NULL,
    username text NOT NULL,
    PRIMARY KEY (issuer, subject)
);

-- A key signs from signs_from until the next key of its algorithm does, and is
-- published until published_until.
CREATE TABLE oauth_key (
    kid text PRIMARY KEY,
    algorithm text NOT NULL,
    private bytea NOT NULL,           -- PKCS #8, sealed by AES-256-GCM where sealed
    sealed boolean NOT NULL,
    created timestamptz NOT NULL,
    signs_from timestamptz NOT NULL,
    published_until timestamptz NOT NULL
);

CREATE TABLE oauth_code (
    signature text PRIMARY KEY,
    grant_id text NOT NULL,
    client_id text NOT NULL,
    request jsonb NOT NULL,
    active boolean NOT NULL DEFAULT true,
    expires timestamptz NOT NULL
);

-- What one authorization gave: the family of its refresh tokens, and the access
-- tokens whose sid it is.
CREATE TABLE oauth_grant (
    id text PRIMARY KEY,
    client_id text NOT NULL,
    username text NOT NULL,
    login text NOT NULL DEFAULT '',   -- the sign-in it ends with (online_access)
    scope text NOT NULL,
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    revoked boolean NOT NULL DEFAULT false
);
-- Serves revoking all of a user, and all that ends with a sign-in.
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

-- What is no longer good: an access token (kind token, id its jti), all of a grant
-- (grant), an API key (apikey), what a client got before (client). Servers read what
-- was recorded since they last looked.
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

-- Serve the sweep of what is over.
CREATE INDEX oauth_code_expires ON oauth_code (expires);
CREATE INDEX oauth_refresh_expires ON oauth_refresh (expires);
CREATE INDEX oauth_assertion_expires ON oauth_assertion (expires);
CREATE INDEX oauth_login_expires ON oauth_login (expires);
CREATE INDEX oauth_flow_expires ON oauth_flow (expires);

-- +goose Down
DROP TABLE oauth_client, oauth_user, oauth_identity, oauth_key, oauth_code, oauth_grant, oauth_refresh,
    oauth_revocation, oauth_assertion, oauth_login, oauth_flow, oauth_launch, oauth_consent, oauth_failure, oauth_apikey;
