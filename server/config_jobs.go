package server

import (
	"strconv"
	"strings"
	"time"

	"kiln/server/jobs"
)

// JobsConfig is about long work in the background.
type JobsConfig struct {
	Workers        int    `koanf:"workers" doc:"parts of jobs that this server works on at the same time"`
	Lease          string `koanf:"lease" doc:"a part whose server does not renew it for so long goes to another server"`
	MaxAttempts    int    `koanf:"max_attempts" doc:"failures and lost leases of a part that fail its job"`
	MaxPerClient   int    `koanf:"max_per_client" doc:"unfinished exports, searches and imports of a client; one more is refused"`
	PollsPerMinute int    `koanf:"polls_per_minute" doc:"requests for the status of one job in a minute"`
	Retention      string `koanf:"retention" doc:"how long the results of a job are kept"`
}

var defaultJobs = JobsConfig{Workers: 2, Lease: "10s", MaxAttempts: 10, MaxPerClient: 2, PollsPerMinute: 300, Retention: "24h"}

func (c JobsConfig) check(p *problems) {
	p.atLeast("jobs.workers", int64(c.Workers), 0)
	p.atLeast("jobs.max_attempts", int64(c.MaxAttempts), 1)
	p.atLeast("jobs.max_per_client", int64(c.MaxPerClient), 1)
	p.atLeast("jobs.polls_per_minute", int64(c.PollsPerMinute), 1)
	p.duration("jobs.lease", c.Lease, time.Second)
	p.duration("jobs.retention", c.Retention, time.Second)
}

func (c JobsConfig) settings() jobs.Settings {
	return jobs.Settings{Workers: c.Workers, Lease: readDuration(c.Lease), MaxAttempts: c.MaxAttempts, MaxPerClient: c.MaxPerClient, Retention: readDuration(c.Retention)}
}

// readDuration reads a text such as 10s, 24h or 7d; 0 where it is none.
func readDuration(text string) time.Duration {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil {
			return time.Duration(n) * 24 * time.Hour
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// duration refuses a text that is no duration, or a shorter one.
func (p *problems) duration(key, text string, least time.Duration) {
	if readDuration(text) < least {
		p.add("%s is %q: expected a time such as 10s, 24h or 7d, at least %s", key, text, least)
	}
}
