package searchshape

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/store"
)

type fakeStore struct{ kept []store.SearchShape }

func (f *fakeStore) AddSearchShapes(_ context.Context, shapes []store.SearchShape) error {
	f.kept = append(f.kept, shapes...)
	return nil
}

func (f *fakeStore) SearchShapes(context.Context) ([]store.SearchShape, error) { return f.kept, nil }

// The counts are limited and contain no values. The log names slow searches by their shape.
func TestRecorder(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := &fakeStore{}
	r := &Recorder{Store: s, Now: time.Now, Slow: func() time.Duration { return time.Second }, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	q := &search.Query{Type: "Patient", Clauses: []match.Clause{{Name: "name:exact", Value: "Secret"}, {Name: "birthdate", Value: "ge1970"}}, Sort: []search.SortKey{{Code: "family", Descending: true}}}
	for i := range 100 {
		r.Ran(t.Context(), q, time.Duration(i+1)*time.Millisecond, 2, nil)
	}
	r.Ran(t.Context(), q, 2*time.Second, 0, nil)
	if text := log.String(); strings.Count(text, "slow search") != 1 || !strings.Contains(text, "Patient?_sort=-family&birthdate&name:exact") || strings.Contains(text, "Secret") || strings.Contains(text, "1970") {
		t.Errorf("the log says %q", text)
	}
	for i := range 3 * maxShapes {
		r.Ran(t.Context(), &search.Query{Type: "Basic", Clauses: []match.Clause{{Name: fmt.Sprint("code", i)}}}, time.Millisecond, 1, nil)
	}
	shapes, err := r.Shapes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(shapes) > maxShapes+1 {
		t.Errorf("%d shapes, want at most %d", len(shapes), maxShapes+1)
	}
	first := shapes[0]
	if first.ResourceType != "Patient" || first.Calls != 101 || first.Rows != 200 || first.P95 < 80 || first.P95 > 125 || first.P99 < 90 || first.P99 > 130 {
		t.Errorf("the slowest is %+v", first)
	}
	var calls int64
	for _, x := range shapes {
		calls += x.Calls
	}
	if calls != 101+3*maxShapes {
		t.Errorf("%d searches are counted, want %d", calls, 101+3*maxShapes)
	}
}
