-- +goose Up

-- changes_since returns what changed_resources does of the resources of some types that have changed
-- since a snapshot: null where there are none, the empty text where they cannot be followed, as search
-- parameters have changed or there are more than most. A search asks it where the change log has
-- anything new at all: to begin with its statements takes half as long as to read a page. One plan
-- serves all: planned for each snapshot anew it takes several times as long.
--
-- The transactions that a snapshot has not seen are those from its end on and those that
-- were running: the change log is looked up by both, however old a running one is.
-- +goose StatementBegin
CREATE FUNCTION changes_since(since pg_snapshot, types smallint[], most integer) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    unknown boolean;
    found bigint[];
BEGIN
    WITH c AS MATERIALIZED (
        SELECT l.rids FROM change l WHERE l.xid >= pg_snapshot_xmax(since)
        UNION ALL SELECT l.rids FROM change l WHERE l.xid = ANY (ARRAY(SELECT pg_snapshot_xip(since))))
    SELECT EXISTS (SELECT FROM c WHERE c.rids = '{}'),
        ARRAY(SELECT DISTINCT u.rid FROM c CROSS JOIN LATERAL unnest(c.rids) AS u(rid) WHERE (u.rid >> 48)::smallint = ANY (types) LIMIT most + 1)
    INTO unknown, found;
    RETURN CASE
        WHEN unknown OR cardinality(found) > most THEN ''
        WHEN cardinality(found) > 0 THEN changed_resources(found)
    END;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION changes_since(pg_snapshot, smallint[], integer);
