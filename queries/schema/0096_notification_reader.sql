-- +goose Up

-- Subscriptions whose criteria are about other resources have a reader of the change log of
-- their own. It begins where the one for all was.
INSERT INTO change_reader (name, xid, rid, version)
SELECT 'notifications-related', r.xid, r.rid, r.version
FROM change_reader r
WHERE r.name = 'notifications'
ON CONFLICT DO NOTHING;

-- +goose Down
DELETE FROM change_reader WHERE name = 'notifications-related';
