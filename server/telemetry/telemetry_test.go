package telemetry

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Tracing that is off costs no allocation on any path.
// Contract, Operations: telemetry: off by default, and costs nothing.
func TestOffCostsNothing(t *testing.T) {
	var off Tracing
	r, err := http.NewRequest(http.MethodGet, "http://example.org/Patient/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	data, done := pgx.TraceQueryStartData{SQL: "SELECT 1"}, pgx.TraceQueryEndData{}
	var tracer pgx.QueryTracer = Statements{}
	if n := testing.AllocsPerRun(1000, func() {
		at, span := off.Request(ctx, r)
		inner, part := Start(at, "search")
		tracer.TraceQueryEnd(tracer.TraceQueryStart(inner, nil, data), nil, done)
		part.End()
		span.Answered(http.MethodGet, "read", "1", 200)
		if TraceID(at) != "" {
			t.Error("there is a trace")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkOff measures the cost of tracing that is off.
func BenchmarkOff(b *testing.B) {
	var off Tracing
	r, err := http.NewRequest(http.MethodGet, "http://example.org/Patient/1", nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		at, span := off.Request(ctx, r)
		inner, part := Start(at, "search")
		Statements{}.TraceQueryEnd(Statements{}.TraceQueryStart(inner, nil, pgx.TraceQueryStartData{}), nil, pgx.TraceQueryEndData{})
		part.End()
		span.Answered(http.MethodGet, "read", "1", 200)
	}
}
