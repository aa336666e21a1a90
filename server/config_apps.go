package server

import (
	"time"

	"kiln/server/app"
	"kiln/server/app/sandbox"
)

// AppsConfig is about Apps.
type AppsConfig struct {
	Enabled               bool             `koanf:"enabled" doc:"serve the operations of Apps and deliver their events"`
	MaxOperations         int              `koanf:"max_operations_per_app" doc:"operations that one App may have"`
	TimeoutSeconds        int              `koanf:"operation_timeout_seconds" doc:"how long an operation of an App may take, waiting included"`
	WebhookTimeoutSeconds int              `koanf:"webhook_timeout_seconds" doc:"how long one attempt to hand an event to an App may take"`
	WebhookMaxRetries     int              `koanf:"webhook_max_retries" doc:"attempts after the first one, of an event whose subscription has no retryPolicy"`
	LogRetentionDays      int              `koanf:"log_retention_days" doc:"time that the log of Apps is kept"`
	JavaScript            JavaScriptConfig `koanf:"javascript"`
	Sandbox               SandboxConfig    `koanf:"sandbox"`
}

// JavaScriptConfig is about javascript handlers.
type JavaScriptConfig struct {
	Enabled bool `koanf:"enabled" doc:"run the JavaScript of Apps"`
}

// SandboxConfig is about the JavaScript of Apps.
type SandboxConfig struct {
	MaxMemoryMB    int  `koanf:"max_memory_mb" doc:"memory that a script may hold"`
	MaxExecutionMS int  `koanf:"max_execution_ms" doc:"how long a script may run, without waiting"`
	Workers        int  `koanf:"workers" restart:"" doc:"scripts that run at the same time; up to four times as many while some run for more than 100 ms and others wait, and 12 more that other scripts call"`
	AllowFetch     bool `koanf:"allow_fetch" doc:"scripts may fetch from the hosts in handler.allowHosts"`
}

// defaultApps are the limits of the specification.
var defaultApps = AppsConfig{Enabled: true, MaxOperations: 100, TimeoutSeconds: 30, WebhookTimeoutSeconds: 10, WebhookMaxRetries: 3, LogRetentionDays: 7,
	JavaScript: JavaScriptConfig{Enabled: true}, Sandbox: SandboxConfig{MaxMemoryMB: 128, MaxExecutionMS: 5000, Workers: 4}}

// check refuses limits that no App could live with.
func (c AppsConfig) check(p *problems) {
	p.atLeast("apps.max_operations_per_app", int64(c.MaxOperations), 1)
	p.atLeast("apps.operation_timeout_seconds", int64(c.TimeoutSeconds), 1)
	p.atLeast("apps.webhook_timeout_seconds", int64(c.WebhookTimeoutSeconds), 1)
	p.atLeast("apps.webhook_max_retries", int64(c.WebhookMaxRetries), 0)
	p.atLeast("apps.log_retention_days", int64(c.LogRetentionDays), 1)
	p.atLeast("apps.sandbox.max_memory_mb", int64(c.Sandbox.MaxMemoryMB), 16)
	p.atLeast("apps.sandbox.max_execution_ms", int64(c.Sandbox.MaxExecutionMS), 1)
	p.atLeast("apps.sandbox.workers", int64(c.Sandbox.Workers), 1)
}

// platform is the configuration as package app takes it.
func (c AppsConfig) platform() app.Config {
	return app.Config{Enabled: c.Enabled, JavaScript: c.JavaScript.Enabled, MaxOperations: c.MaxOperations, Timeout: time.Duration(c.TimeoutSeconds) * time.Second,
		WebhookTimeout: time.Duration(c.WebhookTimeoutSeconds) * time.Second, WebhookRetries: c.WebhookMaxRetries, AllowFetch: c.Sandbox.AllowFetch,
		LogRetention: time.Duration(c.LogRetentionDays) * 24 * time.Hour}
}

// limits are the limits of one script.
func (c SandboxConfig) limits() sandbox.Limits {
	return sandbox.Limits{Execution: time.Duration(c.MaxExecutionMS) * time.Millisecond, Memory: int64(c.MaxMemoryMB) << 20}
}
