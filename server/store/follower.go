package store

import "context"

// followerKey finds the follower in a context.
type followerKey struct{}

// WithFollower returns a context in which f is told of the writes of each transaction, in
// it and after them, with their results: its error undoes them. f is called again when a
// transaction is run again. Companions are among the writes.
func WithFollower(ctx context.Context, f func(ctx context.Context, t *Tx, ws []*Write) error) context.Context {
	return context.WithValue(ctx, followerKey{}, f)
}

// isFollowed reports whether a context has a follower.
func isFollowed(ctx context.Context) bool { return ctx.Value(followerKey{}) != nil }

// followWrites tells the follower of a context.
func (t *Tx) followWrites(ctx context.Context, ws []*Write) error {
	f, ok := ctx.Value(followerKey{}).(func(ctx context.Context, t *Tx, ws []*Write) error)
	if !ok {
		return nil
	}
	return f(ctx, t, ws)
}
