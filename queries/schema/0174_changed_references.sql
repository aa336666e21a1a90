-- +goose Up

-- changed_resources (0170) with g, the refs of the local resources that it refers to: what is remembered
-- of references follows them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION changed_resources(rids bigint[]) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_object(
            'r', n.rid, 'i', r.id, 'v', r.version, 'u', (extract(epoch FROM r.last_updated) * 1000000)::bigint, 't', r.terms, 'g', r.targets,
            'd', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low, 'High', x.high)) FROM index_date x WHERE x.rid = r.rid),
            'n', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low::text, 'High', coalesce(x.high, x.low)::text))
                  FROM index_number x WHERE x.rid = r.rid),
            'q', (SELECT json_agg(json_build_object('Key', x.key, 'Low', x.low::text, 'High', coalesce(x.high, x.low)::text,
                      'System', q.system, 'Code', q.code, 'Unit', q.unit))
                  FROM index_quantity x JOIN quantity_unit q ON q.id = x.unit WHERE x.rid = r.rid),
            's', (SELECT json_agg(json_build_object('Key', x.key, 'Text', x.text)) FROM index_string x WHERE x.rid = r.rid)))
        FROM unnest(rids) AS n(rid) LEFT JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = n.rid OFFSET 0) r ON true);
END $$;
-- +goose StatementEnd

-- +goose Down
-- A server of before takes no notice of g: nothing to take back.
