-- +goose Up

-- One row whose version grows with every write of an App, in its transaction: servers
-- read it before they call an App's operation, and read the Apps again when it is
-- another one.
CREATE TABLE app_registry (
    id      integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version bigint  NOT NULL DEFAULT 0
);
INSERT INTO app_registry DEFAULT VALUES;

-- +goose Down
DROP TABLE app_registry;
