package server

import (
	"time"

	"kiln/oauth"
)

// ConsoleConfig is about the console in the browser.
type ConsoleConfig struct {
	Enabled         bool   `koanf:"enabled" doc:"serve the console at /console, and pages to browsers that open a FHIR URL"`
	IdleTimeout     string `koanf:"idle_timeout" doc:"a session of the console ends after this time without a page"`
	SessionLifetime string `koanf:"session_lifetime" doc:"a session of the console ends this time after the sign-in"`
}

var defaultConsole = ConsoleConfig{Enabled: true, IdleTimeout: "30m", SessionLifetime: "12h"}

func (c ConsoleConfig) check(p *problems) {
	p.duration("console.idle_timeout", c.IdleTimeout, time.Second)
	p.duration("console.session_lifetime", c.SessionLifetime, time.Second)
}

// times are the bounds of sessions.
func (c ConsoleConfig) times() oauth.ConsoleTimes {
	return oauth.ConsoleTimes{Idle: readDuration(c.IdleTimeout), Lifetime: readDuration(c.SessionLifetime)}
}
