// Package config has the settings of notifications, and news of their changes.
package config

import (
	"net/netip"
	"time"
)

// Config are the settings notifications.* of the service.
type Config struct {
	// Enabled is false where nothing is matched, sent or served. What happens
	// meanwhile is told later, as far as the change log goes back.
	Enabled bool
	// BaseURL is the service's own, without a trailing slash; "" where it depends on
	// the request.
	BaseURL string
	// Authorized says that the server has authorization.
	Authorized bool
	// Address is BaseURL, or the base URL made from the address that the server listens on.
	// It is used in messages that answer no request.
	Address string
	// VRead makes an event of each version that is read.
	VRead bool
	// MaxSubscriptions bounds the Subscriptions that are not off.
	MaxSubscriptions int
	Webhook          WebhookConfig
	WebSocket        WebSocketConfig
	SSE              SSEConfig
	// Workers is how many goroutines fetch deliveries from the queue.
	Workers int
	// Poll is how long a server sleeps that nobody wakes.
	Poll time.Duration
	// Retention is how long the queue's log and messages to users are kept.
	Retention time.Duration
}

// WebhookConfig is about deliveries to endpoints.
type WebhookConfig struct {
	Enabled bool
	// Timeout of one attempt, from dialling to the last byte of the answer.
	Timeout time.Duration
	// MaxAttempts of a delivery before it is a dead letter.
	MaxAttempts int
	// Backoff is the time before each further attempt; the last one repeats.
	Backoff []time.Duration
	// MaxConcurrent bounds the requests under way at this server.
	MaxConcurrent int
	// MaxInFlight bounds the requests under way for one subscription; above 1 they
	// may arrive out of order.
	MaxInFlight int
	// Heartbeat is the time without any request after which an endpoint gets a
	// heartbeat; 0 sends none.
	Heartbeat time.Duration
	// SigningKey signs for subscriptions that have no secret; nil signs nothing.
	SigningKey []byte
	// MaxError is how long a subscription may be in error before it is off.
	MaxError time.Duration
	// AllowHTTP allows http where the endpoint is not on loopback.
	AllowHTTP bool
	// AllowPrivate allows private, loopback and link-local addresses.
	AllowPrivate bool
	// Lookup resolves names; nil asks the system.
	Lookup func(host string) ([]netip.Addr, error)
}

// WebSocketConfig is about /notifications/ws.
type WebSocketConfig struct {
	Enabled         bool
	MaxConnections  int
	Heartbeat       time.Duration
	MaxMessageBytes int64
	AllowedOrigins  []string // "*" is every one
}

// SSEConfig is about server-sent events.
type SSEConfig struct {
	Enabled        bool
	MaxConnections int
	Heartbeat      time.Duration
}
