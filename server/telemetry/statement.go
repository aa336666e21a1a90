package telemetry

import (
	"context"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Statements measures the statements of connections: the tracer of a
// pgx.ConnConfig. Their SQL has marks in the place of values.
type Statements struct{}

var _ interface {
	pgx.QueryTracer
	pgx.BatchTracer
} = Statements{}

type statementKey struct{}

// maxSQL is how much of a statement a span has, in bytes.
const maxSQL = 4096

// TraceQueryStart begins a statement.
func (Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return begin(ctx, data.SQL)
}

// TraceQueryEnd ends it.
func (Statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	end(ctx, data.Err)
}

// TraceBatchStart begins several statements.
func (Statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return begin(ctx, "batch")
}

// TraceBatchQuery is told of each of them.
func (Statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd ends them.
func (Statements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	end(ctx, data.Err)
}

func begin(ctx context.Context, sql string) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() && ctx.Value(timingsKey{}) == nil {
		return ctx
	}
	ctx, s := Start(ctx, "db")
	if s.span != nil {
		s.span.SetAttributes(attribute.String("db.system.name", "postgresql"), attribute.String("db.query.text", sql[:min(len(sql), maxSQL)]))
	}
	return context.WithValue(ctx, statementKey{}, s)
}

func end(ctx context.Context, err error) {
	if s, ok := ctx.Value(statementKey{}).(Span); ok {
		s.Fail(err)
		s.End()
	}
}
