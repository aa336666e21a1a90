package telemetry

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// Timings are the times of the parts of one request.
type Timings struct {
	mu    sync.Mutex
	names []string
	took  []time.Duration
}

type timingsKey struct{}

// WithTimings returns a context whose parts are timed.
func WithTimings(ctx context.Context) (context.Context, *Timings) {
	t := new(Timings)
	return context.WithValue(ctx, timingsKey{}, t), t
}

func (t *Timings) add(name string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, n := range t.names {
		if n == name {
			t.took[i] += took
			return
		}
	}
	t.names, t.took = append(t.names, name), append(t.took, took)
}

// Header is the value of Server-Timing, in milliseconds: total, and each part in the
// order in which they ended. Parts may lie within each other.
func (t *Timings) Header(total time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := appendTiming(nil, "total", total)
	for i, n := range t.names {
		b = appendTiming(append(b, ", "...), n, t.took[i])
	}
	return string(b)
}

func appendTiming(b []byte, name string, took time.Duration) []byte {
	b = append(append(b, name...), ";dur="...)
	return strconv.AppendFloat(b, float64(took.Microseconds())/1000, 'f', -1, 64)
}
