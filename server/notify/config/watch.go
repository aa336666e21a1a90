package config

import (
	"context"
	"sync"
)

// A Watch gives the settings in force, and tells of new ones.
type Watch struct {
	// Current returns the settings in force.
	Current func() *Config
	// Flag reports whether a feature is on for the client of a request; with nil the settings decide.
	Flag func(ctx context.Context, feature string) bool

	mu   sync.Mutex
	next chan struct{} // closed by the next change
}

// AnnounceChange tells those that wait of new settings.
func (w *Watch) AnnounceChange() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// NextChange returns a channel that the next change of the settings closes. A caller that
// waits for one takes the channel before looking at the settings.
func (w *Watch) NextChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next
}

// AwaitOn waits until the settings say so. It returns false when ctx ended first.
func (w *Watch) AwaitOn(ctx context.Context, on func(c *Config) bool) bool {
	for {
		changed := w.NextChange()
		if ctx.Err() != nil {
			return false
		}
		if on(w.Current()) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// ContextWhile returns a context that ends when the settings no longer say so.
func (w *Watch) ContextWhile(ctx context.Context, on func(c *Config) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		w.AwaitOn(ctx, func(c *Config) bool { return !on(c) })
	}()
	return ctx, cancel
}
