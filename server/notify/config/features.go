package config

import (
	"context"

	"kiln/server/outcome"
)

// The features that a connection needs.
const (
	WebSocketFeature = "websocket"
	SSEFeature       = "sse"
)

// FeatureEnabled reports whether a feature is on for the client of ctx.
func (w *Watch) FeatureEnabled(ctx context.Context, feature string) bool {
	c := w.Current()
	is := c.WebSocket.Enabled
	if feature == SSEFeature {
		is = c.SSE.Enabled
	}
	return c.Enabled && is && (w.Flag == nil || w.Flag(ctx, feature))
}

// CheckServed refuses a request while notifications, or a feature, are off; "" is no feature.
func (w *Watch) CheckServed(ctx context.Context, feature string) error {
	switch {
	case !w.Current().Enabled:
		return outcome.NotSupported("notifications are switched off on this server (notifications.enabled)")
	case feature != "" && !w.FeatureEnabled(ctx, feature):
		return outcome.NotSupported("%s notifications are switched off on this server (notifications.%s.enabled)", feature, feature)
	}
	return nil
}
