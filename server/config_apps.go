package server

// AppsConfig is about Apps.
type AppsConfig struct {
	MaxOperations  int           `koanf:"max_operations_per_app" restart:"" doc:"operations that one App may have"`
	TimeoutSeconds int           `koanf:"operation_timeout_seconds" restart:"" doc:"how long an operation of an App may take, waiting included"`
	Sandbox        SandboxConfig `koanf:"sandbox" restart:""`
}

// SandboxConfig is about the JavaScript of Apps.
type SandboxConfig struct {
	MaxMemoryMB    int `koanf:"max_memory_mb" doc:"memory that a script may hold"`
	MaxExecutionMS int `koanf:"max_execution_ms" doc:"how long a script may run, without waiting"`
	Workers        int `koanf:"workers" doc:"scripts that run at the same time"`
}

// defaultApps are the limits of the specification.
var defaultApps = AppsConfig{MaxOperations: 100, TimeoutSeconds: 30, Sandbox: SandboxConfig{MaxMemoryMB: 128, MaxExecutionMS: 5000, Workers: 4}}

// check refuses limits that no App could live with.
func (c AppsConfig) check(p *problems) {
	p.atLeast("apps.max_operations_per_app", int64(c.MaxOperations), 1)
	p.atLeast("apps.operation_timeout_seconds", int64(c.TimeoutSeconds), 1)
	p.atLeast("apps.sandbox.max_memory_mb", int64(c.Sandbox.MaxMemoryMB), 16)
	p.atLeast("apps.sandbox.max_execution_ms", int64(c.Sandbox.MaxExecutionMS), 1)
	p.atLeast("apps.sandbox.workers", int64(c.Sandbox.Workers), 1)
}
