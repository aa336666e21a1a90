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

// pairs is how many pairs of short runs stand for a pair of runs: the pace of a machine
// changes within seconds, and neighbours have the same.
const pairs = 3

// A pair is a workload and its floor.
type pair struct {
	this, floor func(ctx context.Context, l Load) (*Measured, error)
	watched     []Watched // of both
}

// measure drives both sides in turns: each begins when what the other has left to do is done.
func (p pair) measure(ctx context.Context, l Load, runs int) (this, floor []*Measured, err error) {
	l.Duration /= pairs
	for i := range pairs * runs {
		l.Seed++
		// Who is first has the machine as the other has left it.
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

// costGoal asks that a request costs the processors, of the server and of PostgreSQL, no more
// than its floor divided by ratio. That is what a rate says on a machine that is busy, and it
// varies less. Each run is compared with the floor that was measured beside it: the machine
// changes more from pair to pair than within one.
func costGoal(name string, this, floor []*Measured, ratio float64) Goal {
	cost := func(m *Measured) float64 {
		return (m.Usage["server"].CPU + m.Usage["postgres"].CPU) / float64(m.Total().Latency.N()) * 1e6
	}
	var costs, floors, ratios []float64
	for i := range this {
		t, f := cost(this[i]), cost(floor[i])
		costs, floors, ratios = append(costs, t), append(floors, f), append(ratios, f/t)
	}
	g := Goal{Workload: name + ", processor time", This: number(figureOf(costs).Median) + " us", Floor: number(figureOf(floors).Median) + " us",
		Ratio: figureOf(ratios).Median, TargetRatio: ratio}
	if g.Ratio < ratio {
		g.Missed = "ratio"
	}
	return g
}

// inProcess measures what is too small to be seen beside a request.
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
