package store

import (
	"context"
	"time"

	"kiln/gen/db"
)

// SearchShape is the form of a search, without values, and how long it took.
type SearchShape struct {
	Shape        string   // names it: the type and the parameters
	ResourceType string   // "" of a search over several types
	Parameters   []string // as they were written, with modifiers and chains
	Calls        int64
	Total        time.Duration
	Rows         int64   // that were read
	Buckets      []int64 // of durations, as the caller cuts them
	LastRun      time.Time
}

// keepSearchShapes is how many shapes are kept: those that were run last.
const keepSearchShapes = 1000

// AddSearchShapes adds the counts of one server.
func (s *Store) AddSearchShapes(ctx context.Context, shapes []SearchShape) error {
	q := db.New(s.side)
	for _, x := range shapes {
		if err := q.AddSearchShapes(ctx, db.AddSearchShapesParams{Shape: x.Shape, ResourceType: x.ResourceType, Parameters: append([]string{}, x.Parameters...),
			Calls: x.Calls, TotalUs: x.Total.Microseconds(), RowsRead: x.Rows, Buckets: x.Buckets, LastRun: x.LastRun}); err != nil {
			return translateError(err)
		}
	}
	return translateError(q.DropSearchShapes(ctx, keepSearchShapes))
}

// SearchShapes are the shapes, those that took the longest in all first.
func (s *Store) SearchShapes(ctx context.Context) ([]SearchShape, error) {
	rows, err := db.New(s.side).SearchShapes(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]SearchShape, len(rows))
	for i, r := range rows {
		out[i] = SearchShape{r.Shape, r.ResourceType, r.Parameters, r.Calls, time.Duration(r.TotalUs) * time.Microsecond, r.RowsRead, r.Buckets, r.LastRun.UTC()}
	}
	return out, nil
}
