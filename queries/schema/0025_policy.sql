-- +goose Up
-- Access policies. Few rows, read as a whole; policy_version rises with every change,
-- so that each server sees in one row whether what it knows is in force.
CREATE TABLE policy (
    name text NOT NULL PRIMARY KEY,
    document text NOT NULL, -- JSON, as package access writes it
    last_updated timestamptz NOT NULL
);

CREATE TABLE policy_version (
    one boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
);

INSERT INTO policy_version (version) VALUES (0);

-- +goose Down
DROP TABLE policy, policy_version;
