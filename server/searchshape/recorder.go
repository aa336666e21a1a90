package searchshape

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"kiln/server/search"
	"kiln/server/store"
)

// Recorder counts the searches of one server. Its fields are set before use.
type Recorder struct {
	Store Store
	Now   func() time.Time
	// Slow is from when on a search is told in the log; 0 tells of none.
	Slow   func() time.Duration
	Logger *slog.Logger

	mu     sync.Mutex
	shapes map[string]*store.SearchShape
}

// Store keeps the shapes of all servers.
type Store interface {
	AddSearchShapes(ctx context.Context, shapes []store.SearchShape) error
	SearchShapes(ctx context.Context) ([]store.SearchShape, error)
}

// The limits of the counts between two flushes. Shapes beyond them are counted together as one shape of
// their type, with the parameter "…".
const (
	maxShapes     = 1000
	maxParameters = 20
	maxName       = 200 // bytes of one parameter
	more          = "…"
)

// Durations are counted in buckets, each 1.25 times as long as the one before: from
// 100 us to more than a minute.
const (
	buckets     = 61
	firstBucket = 100 * time.Microsecond
	growth      = 1.25
)

// Ran counts a search that took a time and read rows, and logs a slow one.
func (r *Recorder) Ran(ctx context.Context, q *search.Query, took time.Duration, rows int, err error) {
	parameters := Parameters(q)
	shape := name(q.Type, parameters)
	r.count(shape, q.Type, parameters, took, rows)
	if slow := r.Slow(); slow > 0 && took >= slow {
		r.Logger.LogAttrs(ctx, slog.LevelWarn, "slow search", slog.String("shape", shape), slog.Duration("took", took), slog.Int("rows", rows), slog.Bool("failed", err != nil))
	}
}

func (r *Recorder) count(shape, typ string, parameters []string, took time.Duration, rows int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shapes[shape]
	if s == nil {
		if r.shapes == nil {
			r.shapes = make(map[string]*store.SearchShape)
		}
		if len(r.shapes) >= maxShapes {
			parameters = []string{more}
			shape = name(typ, parameters)
			s = r.shapes[shape]
		}
		if s == nil {
			s = &store.SearchShape{Shape: shape, ResourceType: typ, Parameters: parameters, Buckets: make([]int64, buckets)}
			r.shapes[shape] = s
		}
	}
	s.Calls++
	s.Total += took
	s.Rows += int64(rows)
	s.Buckets[bucketOf(took)]++
	s.LastRun = r.Now()
}

// Parameters returns the sorted parameters of a search: criteria with their modifiers and chains, and
// `_sort`, `_include` and `_revinclude` with the names in their values.
func Parameters(q *search.Query) []string {
	out := make([]string, 0, len(q.Clauses)+3)
	for i := range q.Clauses {
		if c := &q.Clauses[i]; c.Name != "" {
			out = append(out, clip(c.Name))
		}
	}
	if len(q.Sort) > 0 {
		var b strings.Builder
		for i, k := range q.Sort {
			if b.WriteString([]string{"_sort=", ","}[min(i, 1)]); k.Descending {
				b.WriteByte('-')
			}
			b.WriteString(k.Code)
		}
		out = append(out, clip(b.String()))
	}
	for kind, list := range map[string][]search.Include{"_include=": q.Includes, "_revinclude=": q.RevIncludes} {
		for _, in := range list {
			out = append(out, clip(kind+in.Source+":"+in.Param))
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) > maxParameters {
		out = append(out[:maxParameters:maxParameters], more)
	}
	return out
}

func clip(text string) string {
	if len(text) > maxName {
		return text[:maxName] + more
	}
	return text
}

func name(typ string, parameters []string) string { return typ + "?" + strings.Join(parameters, "&") }

func bucketOf(took time.Duration) int {
	if took <= firstBucket {
		return 0
	}
	return min(buckets-1, int(math.Ceil(math.Log(float64(took)/float64(firstBucket))/math.Log(growth))))
}

// quantile is about the time within which a part of the searches ended, from the
// counts in their buckets.
func quantile(counts []int64, part float64) time.Duration {
	var all int64
	for _, n := range counts {
		all += n
	}
	if all == 0 {
		return 0
	}
	rank, seen := part*float64(all), int64(0)
	for i, n := range counts {
		if n > 0 && float64(seen+n) >= rank {
			low, high := 0.0, float64(firstBucket)
			if i > 0 {
				low = float64(firstBucket) * math.Pow(growth, float64(i-1))
				high = low * growth
			}
			return time.Duration(low + (high-low)*(rank-float64(seen))/float64(n))
		}
		seen += n
	}
	return time.Duration(float64(firstBucket) * math.Pow(growth, float64(len(counts)-1)))
}

// Flush adds the counts of this server to those of all servers. It keeps counts that it cannot add for the next
// time.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	counted := r.shapes
	r.shapes = nil
	r.mu.Unlock()
	if len(counted) == 0 {
		return nil
	}
	list := make([]store.SearchShape, 0, len(counted))
	for _, s := range counted {
		list = append(list, *s)
	}
	// One order, so that servers do not wait for each other in a circle.
	slices.SortFunc(list, func(a, b store.SearchShape) int { return strings.Compare(a.Shape, b.Shape) })
	err := r.Store.AddSearchShapes(ctx, list)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.shapes == nil {
			r.shapes = counted
		}
	}
	return err
}

// Shape is a shape as administrators see it. Times are in milliseconds.
type Shape struct {
	ResourceType string    `json:"resource_type"`
	Parameters   []string  `json:"parameters"`
	Calls        int64     `json:"calls"`
	Mean         float64   `json:"mean_ms"`
	P95          float64   `json:"p95_ms"`
	P99          float64   `json:"p99_ms"`
	Rows         int64     `json:"rows"`
	LastRun      time.Time `json:"last_run"`
}

// Shapes are the shapes of all servers, by their mean, slowest first.
func (r *Recorder) Shapes(ctx context.Context) ([]Shape, error) {
	if err := r.Flush(ctx); err != nil {
		return nil, err
	}
	list, err := r.Store.SearchShapes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Shape, len(list))
	for i, s := range list {
		out[i] = Shape{ResourceType: s.ResourceType, Parameters: s.Parameters, Calls: s.Calls, Mean: milliseconds(s.Total) / float64(max(s.Calls, 1)),
			P95: milliseconds(quantile(s.Buckets, .95)), P99: milliseconds(quantile(s.Buckets, .99)), Rows: s.Rows, LastRun: s.LastRun}
	}
	slices.SortStableFunc(out, func(a, b Shape) int {
		switch {
		case a.Mean > b.Mean:
			return -1
		case a.Mean < b.Mean:
			return 1
		}
		return strings.Compare(a.ResourceType, b.ResourceType)
	})
	return out, nil
}

func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*1000) / 1000
}
