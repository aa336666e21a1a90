package interaction

import "context"

// Caller describes the request that an interaction is part of, for code that calls others
// on its behalf.
type Caller struct {
	RequestID   string
	Traceparent string // the header, as it came
	Token       string // the access token; "" without one
}

type callerKey struct{}

// WithCaller adds the caller to a context.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom is the caller of a context, the zero value without one.
func CallerFrom(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
