package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"kiln/server/access"
	"kiln/server/ratelimit"
	"kiln/server/telemetry"
	"kiln/server/web"

	"github.com/jackc/pgx/v5"
)

// A pair of runs consists of several pairs of short ones: the speed of the machine changes within seconds, and neighbours
// have the same. The first run warms up little for the others.
const (
	pairs     = 8
	rewarming = 300 * time.Millisecond
)

// A pair is a workload and its floor.
type pair struct {
	this, floor func(ctx context.Context, l Load) (*Measured, error)
	watched     []Watched // of both
}

// measure drives both sides in turns: each begins after the remaining work of the other.
func (p pair) measure(ctx context.Context, l Load, runs int) (this, floor []*Measured, err error) {
	l.Duration /= pairs
	for i := range pairs * runs {
		if l.Seed++; i > 0 {
			l.WarmUp = min(l.WarmUp, rewarming)
		}
		// The first side gets the machine as the other left it.
		sides := []func() error{
			func() error { m, err := p.floor(ctx, l); floor = append(floor, m); return err },
			func() error { m, err := p.this(ctx, l); this = append(this, m); return err },
		}
		for k := range sides {
			quiet(ctx, p.watched...)
			if err := sides[(i+k)%2](); err != nil {
				return nil, nil, err
			}
		}
	}
	return this, floor, nil
}

// pairedGoal requires a rate of at least ratio times the floor. Each run is compared with its neighbouring run of the
// floor: the machine changes more between pairs than within one.
func pairedGoal(name string, this, floor []*Measured, ratio float64) Goal {
	var rates, floors, ratios []float64
	for i := range this {
		t, f := this[i].rate(), floor[i].rate()
		rates, floors, ratios = append(rates, t), append(floors, f), append(ratios, t/f)
	}
	g := Goal{Workload: name, This: number(figureOf(rates).Median) + "/s", Floor: number(figureOf(floors).Median) + "/s",
		Ratio: figureOf(ratios).Median, TargetRatio: ratio}
	if g.Ratio < ratio {
		g.Missed = "ratio"
	}
	return g
}

// inProcess measures work that is too small to be seen beside a request.
func inProcess() []Goal {
	l := &ratelimit.Limiter{Limits: func() ratelimit.Limits { return ratelimit.Limits{Requests: 1 << 30} }, Proxies: func() web.Proxies { return nil }, Now: time.Now}
	app := &access.Principal{ClientID: "app", Subject: "user"}
	r := httptest.NewRequest(http.MethodGet, "/fhir/Patient/1", nil)
	x := &web.Exchange{ResponseWriter: httptest.NewRecorder()}
	limit := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if err := l.Limit(x, r, web.FHIR, app); err != nil {
				b.Fatal(err)
			}
		}
	})
	var off telemetry.Tracing
	tracing := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, span := off.Request(context.Background(), r)
			inner, part := telemetry.Start(ctx, "search")
			telemetry.Statements{}.TraceQueryEnd(telemetry.Statements{}.TraceQueryStart(inner, nil, pgx.TraceQueryStartData{}), nil, pgx.TraceQueryEndData{})
			part.End()
			span.Answered(http.MethodGet, "read", "1", http.StatusOK)
		}
	})
	return []Goal{
		atMost("rate limit, one read", 1, microseconds(limit), " us"),
		atMost("tracing off, one request with a search: allocations", 0, float64(tracing.AllocsPerOp()), ""),
		atMost("tracing off, one request with a search", 0.5, microseconds(tracing), " us"),
	}
}

func microseconds(r testing.BenchmarkResult) float64 {
	return float64(r.T.Nanoseconds()) / float64(r.N) / 1e3
}
