package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"kiln/server/outcome"
)

// changes tells of new settings: each channel is closed by the next change.
type changes struct {
	mu   sync.Mutex
	next chan struct{}
}

// Reconfigured makes the settings that are in force now take effect: on connections
// that are open, and on the work on the queue.
func (s *Service) Reconfigured() {
	c := s.Settings()
	s.feed.Poll(c.Poll)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	on := c.Enabled && c.Webhook.Enabled
	if was := s.sending.Swap(on); on && !was {
		err = s.db().WakeSubscriptions(ctx)
	}
	if was := s.heartbeat.Swap(int64(c.Webhook.Heartbeat)); was != int64(c.Webhook.Heartbeat) && c.Webhook.Heartbeat > 0 {
		err = errors.Join(err, s.db().HastenHeartbeats(ctx, c.Webhook.Heartbeat.Milliseconds()))
	}
	if err != nil {
		s.Log.Warn("apply new settings to subscriptions", "error", err)
	}
	s.changes.mu.Lock()
	if s.changes.next != nil {
		close(s.changes.next)
		s.changes.next = nil
	}
	s.changes.mu.Unlock()
	s.client.CloseIdleConnections() // to addresses that may no longer be called
	s.queue.wakeUp()
	s.life.wakeUp()
}

// configChanged returns a channel that the next change of the settings closes. A caller that
// waits for one takes the channel before looking at the settings.
func (s *Service) configChanged() <-chan struct{} {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	if s.changes.next == nil {
		s.changes.next = make(chan struct{})
	}
	return s.changes.next
}

// awaitOn waits until the settings say so. It returns false when ctx ended first.
func (s *Service) awaitOn(ctx context.Context, on func(c *Config) bool) bool {
	for {
		changed := s.configChanged()
		if ctx.Err() != nil {
			return false
		}
		if on(s.Settings()) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// contextWhile returns a context that ends when the settings no longer say so.
func (s *Service) contextWhile(ctx context.Context, on func(c *Config) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		s.awaitOn(ctx, func(c *Config) bool { return !on(c) })
	}()
	return ctx, cancel
}

// The features that a connection needs.
const (
	featureWebSocket = "websocket"
	featureSSE       = "sse"
)

// featureEnabled reports whether a feature is on for the client of ctx.
func (s *Service) featureEnabled(ctx context.Context, feature string) bool {
	c := s.Settings()
	is := c.WebSocket.Enabled
	if feature == featureSSE {
		is = c.SSE.Enabled
	}
	return c.Enabled && is && (s.Flag == nil || s.Flag(ctx, feature))
}

// checkServed refuses a request for a feature that is off.
func (s *Service) checkServed(ctx context.Context, feature string) error {
	switch {
	case !s.Settings().Enabled:
		return outcome.NotSupported("notifications are switched off on this server (notifications.enabled)")
	case feature != "" && !s.featureEnabled(ctx, feature):
		return outcome.NotSupported("%s notifications are switched off on this server (notifications.%s.enabled)", feature, feature)
	}
	return nil
}
