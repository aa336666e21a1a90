package admin

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"kiln/gen/db"
	"kiln/server/outcome"
	"kiln/server/web"
)

// Traffic counts and times the requests of this server minute by minute, and lists those of all servers.
type Traffic struct {
	DB     func() *db.Queries
	Server string // id of this server
	Now    func() time.Time
	Logger *slog.Logger

	mu      sync.Mutex
	minute  time.Time
	counted minute
}

// minute is what was answered in one minute. A bucket counts the durations of about the same length.
type minute struct {
	requests, errors int64
	buckets          [trafficBuckets]int64
}

const (
	trafficBuckets = 120
	// bucketsPerDoubling is how many buckets there are from a duration to twice of it: a percentile is exact to 9%.
	bucketsPerDoubling = 4
	trafficKept        = 7 * 24 * time.Hour
	maxTrafficMinutes  = 7 * 24 * 60
)

// Observe counts a request.
func (t *Traffic) Observe(status int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counted.requests++
	if status >= http.StatusInternalServerError {
		t.counted.errors++
	}
	bucket := int(math.Log2(max(1, float64(took.Microseconds()))) * bucketsPerDoubling)
	t.counted.buckets[min(bucket, trafficBuckets-1)]++
}

// percentile returns a duration in milliseconds that a part of the requests did not exceed, 0 without requests.
func (m *minute) percentile(part float64) float64 {
	rank, seen := int64(math.Ceil(part*float64(m.requests))), int64(0)
	for i, n := range m.buckets {
		if seen += n; n > 0 && seen >= rank {
			us := math.Exp2((float64(i) + 0.5) / bucketsPerDoubling)
			return math.Round(us) / 1000
		}
	}
	return 0
}

// Run stores each minute when it is over, until ctx ends, and then the one that is under way.
func (t *Traffic) Run(ctx context.Context) {
	t.minute = t.Now().UTC().Truncate(time.Minute)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var swept time.Time
	for {
		select {
		case <-ctx.Done():
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = t.store(bounded) // the database may be gone before
			return
		case <-tick.C:
		}
		now := t.Now().UTC()
		if !now.Truncate(time.Minute).After(t.minute) {
			continue
		}
		err := t.store(ctx)
		t.minute = now.Truncate(time.Minute)
		if now.Sub(swept) >= time.Hour && err == nil {
			swept = now
			err = t.DB().SweepTraffic(ctx, now.Add(-trafficKept))
		}
		if err != nil && ctx.Err() == nil {
			t.Logger.Warn("the traffic of a minute is not stored", slog.Any("error", err))
		}
	}
}

// store writes what was counted since the last time.
func (t *Traffic) store(ctx context.Context) error {
	t.mu.Lock()
	m := t.counted
	t.counted = minute{}
	t.mu.Unlock()
	return t.DB().AddTraffic(ctx, db.AddTrafficParams{At: t.minute, Server: t.Server, Requests: m.requests, Errors: m.errors, P50Ms: m.percentile(0.5), P95Ms: m.percentile(0.95)})
}

// trafficPoint is a minute of a server.
type trafficPoint struct {
	At       time.Time `json:"at"`
	Server   string    `json:"server"`
	Requests int64     `json:"requests"`
	Errors   int64     `json:"errors"`
	P50      float64   `json:"p50_ms"`
	P95      float64   `json:"p95_ms"`
}

// Mount serves /admin/traffic and /admin/backups.
func (t *Traffic) Mount(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/traffic", func(w http.ResponseWriter, r *http.Request) {
		points, err := t.list(r)
		writeAnswer(w, r, map[string]any{"points": points}, err)
	})
	m.HandleFunc(web.Admin, "GET /admin/backups", func(w http.ResponseWriter, r *http.Request) {
		type run struct {
			Started  time.Time `json:"started"`
			Ended    time.Time `json:"ended"`
			Bytes    int64     `json:"bytes"`
			Verified bool      `json:"verified"`
		}
		rows, err := t.DB().ListBackups(r.Context())
		list := make([]run, len(rows))
		for i, row := range rows {
			list[i] = run{row.Started.UTC(), row.Ended.UTC(), row.Bytes, row.Verified}
		}
		writeAnswer(w, r, map[string]any{"backups": list}, err)
	})
}

func (t *Traffic) list(r *http.Request) ([]trafficPoint, error) {
	minutes := 60
	if text := r.URL.Query().Get("minutes"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxTrafficMinutes {
			return nil, outcome.Invalid("minutes is %q: expected 1 to %d", outcome.Clip(text), maxTrafficMinutes)
		}
		minutes = n
	}
	rows, err := t.DB().ListTraffic(r.Context(), t.Now().Add(-time.Duration(minutes)*time.Minute))
	points := make([]trafficPoint, len(rows))
	for i, row := range rows {
		points[i] = trafficPoint{row.At.UTC(), row.Server, row.Requests, row.Errors, row.P50Ms, row.P95Ms}
	}
	return points, err
}
