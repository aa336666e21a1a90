package server

import (
	"fmt"

	"kiln/server/audit"
)

// mostDays is the longest retention in days, a thousand years.
const mostDays = 365_000

// AuditConfig is about AuditEvents of REST.
type AuditConfig struct {
	Rest          string `koanf:"rest" doc:"interactions to record as AuditEvents: off, writes or all; empty is writes with authorization on, else off"`
	RetentionDays int    `koanf:"retention_days" doc:"age in days at which a job removes AuditEvents; 0 keeps them for ever"`
	// VisibleToPatients shows patients the AuditEvents of their compartment.
	VisibleToPatients bool `koanf:"visible_to_patients" doc:"show AuditEvents to tokens of patients and their proxies"`
}

func (c AuditConfig) check() error {
	if c.RetentionDays < 0 || c.RetentionDays > mostDays {
		return fmt.Errorf("audit.retention_days is %d: expected 0 to %d", c.RetentionDays, mostDays)
	}
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
