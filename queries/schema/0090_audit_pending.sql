-- +goose Up

-- What is recorded while many requests come, until it is made AuditEvents: groups of
-- events, as the package audit writes them. A group leaves in the transaction that stores
-- its AuditEvents, so that each event becomes one, whichever server makes it.
CREATE TABLE audit_pending (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    events bytea  NOT NULL
);
-- Groups are read once: compressing them costs more than writing them.
ALTER TABLE audit_pending ALTER COLUMN events SET STORAGE EXTERNAL;

-- +goose Down
DROP TABLE audit_pending;
