-- +goose Up

-- changes_since (0171) with what a server has written itself: of resources that are still of the
-- version given it returns r, their rid, and w, and reads nothing more. Under a load of writes and
-- searches reading them would take most of a search: each reads what all others have written. The
-- function without stays for a server of before that still runs beside.
-- +goose StatementBegin
CREATE FUNCTION changes_since(since pg_snapshot, types smallint[], most integer, written bigint[], written_versions integer[])
RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unknown boolean;
    found bigint[];
    own text;
    others text;
BEGIN
    WITH c AS MATERIALIZED (
        SELECT l.rids, l.versions FROM change l WHERE l.xid >= pg_snapshot_xmax(since)
        UNION ALL SELECT l.rids, l.versions FROM change l WHERE l.xid = ANY (ARRAY(SELECT pg_snapshot_xip(since)))),
    n AS MATERIALIZED (
        SELECT u.rid, (u.rid, max(u.version)) IN (SELECT * FROM unnest(written, written_versions)) AS own
        FROM c CROSS JOIN LATERAL unnest(c.rids, c.versions) AS u(rid, version)
        WHERE (u.rid >> 48)::smallint = ANY (types) GROUP BY u.rid LIMIT most + 1)
    SELECT EXISTS (SELECT FROM c WHERE c.rids = '{}') OR (SELECT count(*) > most FROM n), ARRAY(SELECT n.rid FROM n WHERE NOT n.own),
        (SELECT string_agg('{"r":' || n.rid || ',"w":true}', ',') FROM n WHERE n.own)
    INTO unknown, found, own;
    IF unknown THEN
        RETURN '';
    END IF;
    IF cardinality(found) > 0 THEN
        others := changed_resources(found);
    END IF;
    RETURN CASE
        WHEN own IS NULL THEN others
        WHEN others IS NULL THEN '[' || own || ']'
        ELSE '[' || own || ',' || substr(others, 2)
    END;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION changes_since(pg_snapshot, smallint[], integer, bigint[], integer[]);
