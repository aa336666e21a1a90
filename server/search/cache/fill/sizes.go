package fill

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// ReadTypeSizes returns the approximate number of resources of each type, from PostgreSQL's statistics.
func ReadTypeSizes(ctx context.Context, conn Conn) (map[int16]int64, error) {
	return readSizes(ctx, conn, plan.SelectTypeSizes())
}

// readSizes reads numbers of resources by type.
func readSizes(ctx context.Context, conn Conn, st match.Statement) (map[int16]int64, error) {
	rows, err := conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	out := make(map[int16]int64)
	var typ int16
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&typ, &size}, func() error {
		out[typ] = size
		return nil
	})
	return out, err
}
