-- +goose Up

-- What is recorded of writes, until it is made AuditEvents: a row of each transaction's
-- events is committed with its writes. A row leaves in the transaction that stores its
-- AuditEvents, so that each event becomes one, whichever server makes it; a search that
-- could find AuditEvents waits until there are none.
CREATE TABLE audit_of_write (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    events bytea  NOT NULL
);
-- Rows are read once: compressing them costs more than writing them.
ALTER TABLE audit_of_write ALTER COLUMN events SET STORAGE EXTERNAL;

-- +goose Down
DROP TABLE audit_of_write;
