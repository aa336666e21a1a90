-- +goose Up

-- changes_of_others returns what has changed since a snapshot as changes_since (0172) does, but tells a server of a
-- whole row of the change log that it has written itself, instead of each resource in it: an import writes some
-- hundred at once, and tens of thousands a second. A row is told apart by the rid and the version of its first
-- resource, which no other row has: written are these of the server's own rows.
--
-- It returns null where nothing has changed, the empty text where that cannot be followed, as search parameters have
-- changed or the others have written more than most resources. Else it returns the server's own rows, each as
-- rid/version, with commas between; a space; and what changed_resources returns of those that others have written,
-- if there are any.
-- +goose StatementBegin
CREATE FUNCTION changes_of_others(since pg_snapshot, types smallint[], most integer, written bigint[], written_versions integer[])
RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unknown boolean;
    found bigint[];
    own text;
BEGIN
    WITH l AS MATERIALIZED (
        SELECT c.rids, c.versions FROM change c WHERE c.xid >= pg_snapshot_xmax(since)
        UNION ALL SELECT c.rids, c.versions FROM change c WHERE c.xid = ANY (ARRAY(SELECT pg_snapshot_xip(since)))),
    r AS MATERIALIZED (
        SELECT l.rids, l.rids[1] AS first, l.versions[1] AS version, (l.rids[1], l.versions[1]) IN (SELECT * FROM unnest(written, written_versions)) AS own FROM l),
    n AS MATERIALIZED (
        SELECT DISTINCT u.rid FROM r CROSS JOIN LATERAL unnest(r.rids) AS u(rid)
        WHERE r.own IS NOT TRUE AND (u.rid >> 48)::smallint = ANY (types) LIMIT most + 1)
    SELECT EXISTS (SELECT FROM r WHERE r.rids = '{}') OR (SELECT count(*) > most FROM n), ARRAY(SELECT n.rid FROM n),
        (SELECT string_agg(r.first || '/' || r.version, ',') FROM r WHERE r.own)
    INTO unknown, found, own;
    RETURN CASE
        WHEN unknown THEN ''
        WHEN cardinality(found) > 0 THEN concat(own, ' ', changed_resources(found))
        WHEN own IS NOT NULL THEN own || ' '
    END;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION changes_of_others(pg_snapshot, smallint[], integer, bigint[], integer[]);
