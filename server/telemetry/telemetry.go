// Package telemetry measures the parts of a request: OpenTelemetry traces, and
// the header Server-Timing.
//
//	traceparent -> Tracing.Request -> context -> Start (search, validation, …), Statements (SQL)
//	                                          -> Transport -> traceparent of outgoing requests
//
// A part is measured only if its context asks for it: without tracing and
// timings Start looks at the context and allocates nothing. There is no global state;
// the spans below the span of the request belong to its provider.
//
// Spans contain names, routes, SQL with placeholders and status codes. They contain no values
// of searches and no bodies.
//
// Spec: https://www.w3.org/TR/trace-context/, https://www.w3.org/TR/server-timing/,
// https://opentelemetry.io/docs/specs/otel/trace/.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config says where traces go.
type Config struct {
	// Endpoint is the URL of an OTLP/HTTP collector, such as
	// http://127.0.0.1:4318; /v1/traces is added where it has no path. "" is off.
	Endpoint string
	// Ratio of the requests that are traced where the caller does not say, 0 to 1.
	Ratio   float64
	Version string // of the software
}

// Tracing makes the traces of a server. The zero value makes none.
type Tracing struct {
	Logger *slog.Logger

	mu      sync.Mutex
	config  Config
	current atomic.Pointer[provider]
}

// provider makes the spans while a configuration is in force.
type provider struct {
	tracer trace.Tracer
	close  func(context.Context) error
}

// tracerName names the library that makes the spans.
const tracerName = "kiln/server/telemetry"

// flushTime bounds how long the last spans have to be sent.
const flushTime = 5 * time.Second

// Configure puts a configuration in force. The spans of the former one are sent in the background.
func (t *Tracing) Configure(ctx context.Context, c Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c == t.config {
		return nil
	}
	var next *provider
	if c.Endpoint != "" {
		endpoint := c.Endpoint
		if _, rest, ok := strings.Cut(endpoint, "://"); ok && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
			endpoint = strings.TrimSuffix(endpoint, "/") + "/v1/traces"
		}
		exporter, err := otlptrace.New(ctx, &collector{url: endpoint, client: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}})
		if err != nil {
			return fmt.Errorf("telemetry.otlp_endpoint: %w", err)
		}
		p := sdk.NewTracerProvider(sdk.WithBatcher(logged{exporter, t.Logger}, sdk.WithBatchTimeout(time.Second)),
			sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Ratio))),
			sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "kiln"), attribute.String("service.version", c.Version))))
		next = &provider{p.Tracer(tracerName), p.Shutdown}
	}
	t.config = c
	if last := t.current.Swap(next); last != nil {
		go t.end(last)
	}
	return nil
}

// logged tells in the log of spans that could not be sent, which nobody waits for.
type logged struct {
	sdk.SpanExporter
	logger *slog.Logger
}

// ExportSpans sends spans.
func (l logged) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil && l.logger != nil {
		l.logger.Warn("spans cannot be sent (telemetry.otlp_endpoint)", slog.Int("spans", len(spans)), slog.Any("error", err))
	}
	return nil
}

func (t *Tracing) end(p *provider) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := p.close(ctx); err != nil && t.Logger != nil {
		t.Logger.Warn("the last spans were not sent", slog.Any("error", err))
	}
}

// Close sends the remaining spans.
func (t *Tracing) Close() {
	if last := t.current.Swap(nil); last != nil {
		t.end(last)
	}
}

// propagator reads and writes traceparent and tracestate.
var propagator = propagation.TraceContext{}

// Request begins the span of a request, below the caller's where it names one, which
// is passed on even where nothing is traced here. r is only read.
func (t *Tracing) Request(ctx context.Context, r *http.Request) (context.Context, Span) {
	if len(r.Header["Traceparent"]) > 0 {
		ctx = propagator.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	p := t.current.Load()
	if p == nil {
		return ctx, Span{}
	}
	ctx, span := p.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("http.request.method", r.Method)))
	return ctx, Span{span: span}
}

// Root begins a span of what no request waits for: below the remote one that ctx is in, if any (Continue).
func (t *Tracing) Root(ctx context.Context, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	p := t.current.Load()
	if p == nil {
		return ctx, Span{}
	}
	ctx, span := p.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, Span{span: span}
}

// Span is a part that is measured. The zero value measures nothing.
type Span struct {
	span    trace.Span
	timings *Timings
	name    string
	began   time.Time
}

// Start begins a part of the work for ctx. End ends it.
func Start(ctx context.Context, name string) (context.Context, Span) {
	var s Span
	if timings, _ := ctx.Value(timingsKey{}).(*Timings); timings != nil {
		s.timings, s.name, s.began = timings, name, time.Now()
	}
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() {
		ctx, s.span = parent.TracerProvider().Tracer(tracerName).Start(ctx, name)
	}
	return ctx, s
}

// End ends a part.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
	if s.timings != nil {
		s.timings.add(s.name, time.Since(s.began))
	}
}

// Fail marks a part as failed; nil does not. The text of the error is not kept.
func (s Span) Fail(err error) {
	if err != nil && s.span != nil {
		s.span.SetStatus(codes.Error, "")
	}
}

// Answered names the span of a request by its route, and ends it.
func (s Span) Answered(method, route, requestID string, status int) {
	if s.span == nil {
		return
	}
	s.span.SetName(method + " " + route)
	s.span.SetAttributes(attribute.String("http.route", route), attribute.Int("http.response.status_code", status), attribute.String("http.request.id", requestID))
	if status >= http.StatusInternalServerError {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}

// TraceID is the id of the trace that ctx is in, where it is sampled, else "".
func TraceID(ctx context.Context) string {
	c := trace.SpanContextFromContext(ctx)
	if !c.IsValid() || !c.IsSampled() {
		return ""
	}
	return c.TraceID().String()
}

// Traceparent is the trace that ctx is in, as the header traceparent says it; "" where it is in none.
// Spec: https://www.w3.org/TR/trace-context/#traceparent-header.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	h := propagation.MapCarrier{}
	propagator.Inject(ctx, h)
	return h["traceparent"]
}

// Continue adds the trace of a Traceparent to ctx, which has none. Work that follows the answer of a request joins
// the trace of the request this way.
func Continue(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagator.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// Transport sends the trace on: it sets the header traceparent, and makes a span for each call. A call outside of
// a request is the root of a trace.
type Transport struct {
	Base    http.RoundTripper
	Tracing *Tracing // of calls without a request; may be nil
	Name    string   // of the spans: webhook, terminology, app
}

// RoundTrip makes a call.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var span Span
	ctx := r.Context()
	if in := trace.SpanContextFromContext(ctx); in.IsValid() && !in.IsRemote() || ctx.Value(timingsKey{}) != nil {
		ctx, span = Start(ctx, t.Name)
	} else {
		ctx, span = t.Tracing.Root(ctx, t.Name)
	}
	// Without a span of its own, a caller that continues the trace itself is believed.
	if trace.SpanContextFromContext(ctx).IsValid() && (span.span != nil || r.Header.Get("traceparent") == "") {
		r = r.Clone(ctx) // a RoundTripper does not change the request
		propagator.Inject(ctx, propagation.HeaderCarrier(r.Header))
	}
	if span.span != nil {
		span.span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("server.address", r.URL.Host))
	}
	resp, err := t.Base.RoundTrip(r)
	if err == nil && span.span != nil {
		span.span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	}
	span.Fail(err)
	span.End()
	return resp, err
}

// CloseIdleConnections closes the idle connections of the base.
func (t Transport) CloseIdleConnections() {
	if c, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
