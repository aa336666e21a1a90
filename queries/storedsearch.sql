-- Searches whose parameters are too long for the links of their pages (store/storedsearch.go).

-- name: PutStoredSearch :exec
INSERT INTO stored_search (token, owner, self, used)
VALUES (@token, @owner, @self, clock_timestamp());

-- UseStoredSearch returns a search that was used within the last seconds, and notes its use.
-- name: UseStoredSearch :one
UPDATE stored_search s
SET used = clock_timestamp()
WHERE s.token = @token AND s.owner = @owner AND s.used > clock_timestamp() - make_interval(secs => sqlc.arg(seconds)::float8)
RETURNING s.self;

-- TrimStoredSearches deletes searches that were not used within the last seconds, and beyond a number and a size in
-- bytes those whose last use is longest ago.
-- name: TrimStoredSearches :exec
DELETE FROM stored_search d
WHERE d.used <= clock_timestamp() - make_interval(secs => sqlc.arg(seconds)::float8)
    OR d.token IN (
        SELECT o.token
        FROM (
            SELECT s.token, row_number() OVER w AS n, sum(octet_length(s.self)) OVER w AS bytes
            FROM stored_search s
            WINDOW w AS (ORDER BY s.used DESC, s.token)
        ) o
        WHERE o.n > @most::bigint OR o.bytes > @most_bytes::bigint
    );
