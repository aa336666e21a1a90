package server

import (
	"fmt"

	"kiln/server/audit"
)

// AuditConfig is about AuditEvents of REST.
type AuditConfig struct {
	Rest string `koanf:"rest" doc:"interactions to record as AuditEvents: off, writes or all; empty is writes with authorization on, else off"`
	// VisibleToPatients shows patients the AuditEvents of their compartment.
	VisibleToPatients bool `koanf:"visible_to_patients" doc:"show AuditEvents to tokens of patients and their proxies"`
}

func (c AuditConfig) check() error {
	switch c.Rest {
	case "", audit.Off, audit.Writes, audit.All:
		return nil
	}
	return fmt.Errorf("audit.rest is %q: expected off, writes, all", c.Rest)
}

// auditRest is what of REST is recorded.
func (c Config) auditRest() string {
	switch {
	case c.Audit.Rest != "":
		return c.Audit.Rest
	case c.Auth.Enabled:
		return audit.Writes
	}
	return audit.Off
}
