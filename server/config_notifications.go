package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"kiln/server/notify/config"
	"kiln/server/notify/webhook"
)

// NotificationsConfig is about subscriptions, webhooks, WebSocket and server-sent events.
type NotificationsConfig struct {
	Enabled          bool                       `koanf:"enabled" doc:"serve subscriptions and event streams"`
	VRead            bool                       `koanf:"vread" doc:"reading a version is an event"`
	MaxSubscriptions int                        `koanf:"max_subscriptions" doc:"Subscriptions that are not off; one more is refused"`
	WebSocket        NotificationsSocketConfig  `koanf:"websocket"`
	SSE              NotificationsSSEConfig     `koanf:"sse"`
	Webhook          NotificationsWebhookConfig `koanf:"webhook"`
	Queue            NotificationsQueueConfig   `koanf:"queue"`
}

// NotificationsSocketConfig is about /notifications/ws.
type NotificationsSocketConfig struct {
	Enabled                  bool  `koanf:"enabled" doc:"serve /notifications/ws"`
	MaxConnections           int   `koanf:"max_connections" doc:"WebSockets of this server"`
	HeartbeatIntervalSeconds int   `koanf:"heartbeat_interval_seconds" doc:"time between heartbeats and pings"`
	MaxMessageSizeBytes      int64 `koanf:"max_message_size_bytes" doc:"largest message of a client"`
}

// NotificationsSSEConfig is about server-sent events.
type NotificationsSSEConfig struct {
	Enabled                  bool `koanf:"enabled" doc:"serve /notifications/events and $events"`
	MaxConnections           int  `koanf:"max_connections" doc:"event streams of this server"`
	HeartbeatIntervalSeconds int  `koanf:"heartbeat_interval_seconds" doc:"time between heartbeats"`
}

// NotificationsWebhookConfig is about deliveries to endpoints.
type NotificationsWebhookConfig struct {
	Enabled                    bool      `koanf:"enabled" doc:"deliver to the endpoints of rest-hook Subscriptions"`
	TimeoutSeconds             int       `koanf:"timeout_seconds" doc:"longest attempt"`
	MaxRetries                 int       `koanf:"max_retries" doc:"attempts of a delivery in all, before it is a dead letter"`
	RetryBackoffSeconds        []int     `koanf:"retry_backoff_seconds" doc:"time before each further attempt; the last one repeats"`
	MaxConcurrentDeliveries    int       `koanf:"max_concurrent_deliveries" doc:"requests of this server under way"`
	MaxInFlightPerSubscription int       `koanf:"max_in_flight_per_subscription" doc:"requests for one Subscription under way; above 1 they may arrive out of order"`
	HeartbeatIntervalSeconds   int       `koanf:"heartbeat_interval_seconds" doc:"time without a request after which an endpoint gets a heartbeat; 0 sends none"`
	SigningSecret              string    `koanf:"signing_secret" secret:"yes" doc:"key that signs for Subscriptions without a secret of their own: its bytes, or whsec_ and base64"`
	MaxErrorHours              int       `koanf:"max_error_hours" doc:"time in error after which a Subscription is off"`
	AllowHTTP                  bool      `koanf:"allow_http" doc:"allow http endpoints that are not on loopback"`
	AllowPrivateNetworks       Automatic `koanf:"allow_private_networks" doc:"true or false: allow endpoints in private networks and on loopback; auto is true while auth.enabled is false"`
}

// NotificationsQueueConfig is about the queue of deliveries.
type NotificationsQueueConfig struct {
	WorkerCount         int `koanf:"worker_count" doc:"workers that fetch deliveries from the queue"`
	PollIntervalSeconds int `koanf:"poll_interval_seconds" doc:"longest time between two looks at the change log and the queue"`
	RetentionDays       int `koanf:"retention_days" doc:"time that events, the delivery log and messages to users are kept"`
}

// defaultNotifications are the values of the specification.
func defaultNotifications() NotificationsConfig {
	return NotificationsConfig{
		Enabled: true, MaxSubscriptions: 100_000,
		WebSocket: NotificationsSocketConfig{Enabled: true, MaxConnections: 10_000, HeartbeatIntervalSeconds: 30, MaxMessageSizeBytes: 1 << 20},
		SSE:       NotificationsSSEConfig{Enabled: true, MaxConnections: 5_000, HeartbeatIntervalSeconds: 30},
		Webhook: NotificationsWebhookConfig{
			Enabled: true, TimeoutSeconds: 10, MaxRetries: 4, RetryBackoffSeconds: []int{10, 30, 60, 120}, MaxConcurrentDeliveries: 100,
			MaxInFlightPerSubscription: 1, HeartbeatIntervalSeconds: 30, MaxErrorHours: 72, AllowPrivateNetworks: "auto",
		},
		Queue: NotificationsQueueConfig{WorkerCount: 4, PollIntervalSeconds: 1, RetentionDays: 30},
	}
}

// check refuses values that do not work.
func (c NotificationsConfig) check() error {
	for _, n := range []struct {
		key          string
		value, least int64
	}{
		{"max_subscriptions", int64(c.MaxSubscriptions), 0},
		{"websocket.max_connections", int64(c.WebSocket.MaxConnections), 0},
		{"websocket.heartbeat_interval_seconds", int64(c.WebSocket.HeartbeatIntervalSeconds), 1},
		{"websocket.max_message_size_bytes", c.WebSocket.MaxMessageSizeBytes, 128},
		{"sse.max_connections", int64(c.SSE.MaxConnections), 0},
		{"sse.heartbeat_interval_seconds", int64(c.SSE.HeartbeatIntervalSeconds), 1},
		{"webhook.timeout_seconds", int64(c.Webhook.TimeoutSeconds), 1},
		{"webhook.max_retries", int64(c.Webhook.MaxRetries), 1},
		{"webhook.max_concurrent_deliveries", int64(c.Webhook.MaxConcurrentDeliveries), 1},
		{"webhook.max_in_flight_per_subscription", int64(c.Webhook.MaxInFlightPerSubscription), 1},
		{"webhook.heartbeat_interval_seconds", int64(c.Webhook.HeartbeatIntervalSeconds), 0},
		{"webhook.max_error_hours", int64(c.Webhook.MaxErrorHours), 1},
		{"queue.worker_count", int64(c.Queue.WorkerCount), 1},
		{"queue.poll_interval_seconds", int64(c.Queue.PollIntervalSeconds), 1},
		{"queue.retention_days", int64(c.Queue.RetentionDays), 1},
	} {
		if n.value < n.least {
			return fmt.Errorf("notifications.%s is %d: expected %d or more", n.key, n.value, n.least)
		}
	}
	for _, s := range c.Webhook.RetryBackoffSeconds {
		if s < 0 {
			return fmt.Errorf("notifications.webhook.retry_backoff_seconds has %d: expected 0 or more", s)
		}
	}
	if _, err := webhook.ParseSecret(c.Webhook.SigningSecret); err != nil {
		return fmt.Errorf("notifications.webhook.signing_secret: the text after whsec_ is no base64")
	}
	if _, err := c.allowPrivate(false); err != nil {
		return err
	}
	return nil
}

// Automatic is true, false or auto: the server decides. "1" and "0" are true and false, which
// a file's booleans are read as. JSON and YAML have a boolean where it is one.
type Automatic string

// UnmarshalJSON reads a boolean or a string.
func (a *Automatic) UnmarshalJSON(text []byte) error {
	var b bool
	if json.Unmarshal(text, &b) == nil && string(text) != "null" {
		*a = Automatic(strconv.FormatBool(b))
		return nil
	}
	return json.Unmarshal(text, (*string)(a))
}

// MarshalJSON writes a boolean, or the string where it is none.
func (a Automatic) MarshalJSON() ([]byte, error) { return json.Marshal(a.value()) }

// MarshalYAML is MarshalJSON in YAML.
func (a Automatic) MarshalYAML() (any, error) { return a.value(), nil }

// Expected names the values, for an error about another one.
func (Automatic) Expected() string { return "true, false or auto" }

func (a Automatic) value() any {
	switch a {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	return string(a)
}

// allowPrivate is what webhook.allow_private_networks says.
func (c NotificationsConfig) allowPrivate(authEnabled bool) (bool, error) {
	return allowPrivate("notifications.webhook", c.Webhook.AllowPrivateNetworks, authEnabled)
}

// allowPrivate reads the key allow_private_networks of a section.
func allowPrivate(section string, value Automatic, authEnabled bool) (bool, error) {
	switch v := value.value(); v {
	case true, false:
		return v == true, nil
	case "", "auto":
		return !authEnabled, nil
	default:
		return false, fmt.Errorf("%s.allow_private_networks is %q: expected %s", section, v, Automatic("").Expected())
	}
}

// notifications are the settings of the service.
func (c Config) notifications() config.Config {
	n := c.Notifications
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	key, _ := webhook.ParseSecret(n.Webhook.SigningSecret) // Check has read it
	private, _ := n.allowPrivate(c.Auth.Enabled)
	out := config.Config{
		Enabled: n.Enabled, BaseURL: c.baseURL(), Address: c.address(), Authorized: c.Auth.Enabled, VRead: n.VRead, MaxSubscriptions: n.MaxSubscriptions,
		Webhook: config.WebhookConfig{
			Enabled: n.Webhook.Enabled, Timeout: seconds(n.Webhook.TimeoutSeconds), MaxAttempts: n.Webhook.MaxRetries,
			MaxConcurrent: n.Webhook.MaxConcurrentDeliveries, MaxInFlight: n.Webhook.MaxInFlightPerSubscription,
			Heartbeat: seconds(n.Webhook.HeartbeatIntervalSeconds), SigningKey: key, MaxError: time.Duration(n.Webhook.MaxErrorHours) * time.Hour,
			AllowHTTP: n.Webhook.AllowHTTP, AllowPrivate: private,
		},
		WebSocket: config.WebSocketConfig{
			Enabled: n.WebSocket.Enabled, MaxConnections: n.WebSocket.MaxConnections, Heartbeat: seconds(n.WebSocket.HeartbeatIntervalSeconds),
			MaxMessageBytes: n.WebSocket.MaxMessageSizeBytes, AllowedOrigins: c.Server.AllowedOrigins,
		},
		SSE:     config.SSEConfig{Enabled: n.SSE.Enabled, MaxConnections: n.SSE.MaxConnections, Heartbeat: seconds(n.SSE.HeartbeatIntervalSeconds)},
		Workers: n.Queue.WorkerCount, Poll: seconds(n.Queue.PollIntervalSeconds), Retention: time.Duration(n.Queue.RetentionDays) * 24 * time.Hour,
	}
	for _, s := range n.Webhook.RetryBackoffSeconds {
		out.Webhook.Backoff = append(out.Webhook.Backoff, seconds(s))
	}
	return out
}
