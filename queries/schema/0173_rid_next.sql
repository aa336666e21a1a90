-- +goose Up

-- Surrogate numbers of each resource type, so that those of a type lie close together: what is
-- remembered of resources takes a bit where they do, and two bytes where few of the numbers are of
-- the type.
CREATE TABLE rid_next (
    typ  smallint PRIMARY KEY,
    next bigint   NOT NULL
) WITH (fillfactor = 10);

-- A server of before that still runs beside takes numbers of all types from rid_block, a million at
-- most: those of each type begin behind them, and it is told so when it wants more.
ALTER TABLE rid_block ADD COLUMN first_of_type bigint;
UPDATE rid_block SET first_of_type = CASE WHEN next = 1 THEN 1 ELSE next + (1 << 20) END;
ALTER TABLE rid_block ALTER COLUMN first_of_type SET NOT NULL, ADD CONSTRAINT replace_servers_of_earlier_builds CHECK (next <= first_of_type);

-- +goose Down
ALTER TABLE rid_block DROP COLUMN first_of_type;
UPDATE rid_block SET next = greatest(next, (SELECT max(n.next) FROM rid_next n));
DROP TABLE rid_next;
