package store

import "context"

// companionKey finds the companions in a context.
type companionKey struct{}

// WithCompanions returns a context in which each write is joined by what make
// returns for it, in the same transaction: an AuditEvent is there exactly when the
// write is that it tells of. make is called again when a transaction is run again.
func WithCompanions(ctx context.Context, make func(ctx context.Context, ws []*Write) ([]*Write, error)) context.Context {
	return context.WithValue(ctx, companionKey{}, make)
}

// companions are the writes that join ws.
func companions(ctx context.Context, ws []*Write) ([]*Write, error) {
	make, ok := ctx.Value(companionKey{}).(func(ctx context.Context, ws []*Write) ([]*Write, error))
	if !ok {
		return ws, nil
	}
	more, err := make(ctx, ws)
	if err != nil {
		return nil, err
	}
	return append(ws[:len(ws):len(ws)], more...), nil
}
