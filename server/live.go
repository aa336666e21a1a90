package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"kiln/server/access"
	"kiln/server/bulk"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/notify/config"
	"kiln/server/ratelimit"
	"kiln/server/settings"
	"kiln/server/store"
	"kiln/server/view/operate"
	"kiln/server/web"
)

// flags are the switches of behaviour, each a key of the configuration under
// another name.
var flags = []settings.Flag{
	{Name: "search.explain", Key: "search.explain", Doc: "_explain=true tells how a search is run"},
	{Name: "terminology.external", Key: "terminology.external", Doc: "ask the terminology server of terminology.server_url"},
	{Name: "validation.skip", Key: "validation.allow_skip", Doc: "X-Skip-Validation: true skips validation"},
	{Name: "history.system", Key: "fhir.system_history", Doc: "serve the history of everything at /_history"},
	{Name: "notifications", Key: "notifications.enabled", Doc: "deliver notifications"},
	{Name: "notifications.websocket", Key: "notifications.websocket.enabled", Doc: "deliver notifications by WebSocket"},
	{Name: "notifications.sse", Key: "notifications.sse.enabled", Doc: "deliver notifications by Server-Sent Events"},
	{Name: "notifications.webhook", Key: "notifications.webhook.enabled", Doc: "deliver notifications by webhook"},
	{Name: "apps", Key: "apps.enabled", Doc: "serve the operations of Apps"},
	{Name: "apps.javascript", Key: "apps.javascript.enabled", Doc: "run the JavaScript handlers of Apps"},
	{Name: "bulk.import", Key: "bulk.import.enabled", Doc: "serve $import"},
	{Name: "bulk.export", Key: "bulk.export.enabled", Doc: "serve $export"},
	{Name: "views", Key: "views.enabled", Doc: "serve $sql-run and $sql-export"},
	{Name: "console", Key: "console.enabled", Doc: "serve the console in the browser"},
	{Name: "auth.dynamic_registration", Key: "auth.smart.dynamic_registration_enabled", Doc: "clients may register themselves (RFC 7591)"},
}

// derived is what parts need of the configuration, made once for each change.
type derived struct {
	web         web.Settings
	interaction interaction.Settings
	limits      ratelimit.Limits
	// notifications are the settings of package notify.
	notifications config.Config
	jobs          jobs.Settings
	bulk          bulk.Settings
	views         operate.Settings
}

// now is the configuration in force.
func (s *Server) now() *Config { return s.Settings.Current() }

// openSettings reads the settings in the database, and makes them a part of the
// configuration in force.
func (s *Server) openSettings(ctx context.Context, o Options) error {
	var err error
	s.Settings, err = settings.Open(ctx, s.settingsConfig(o))
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	s.Config = *s.Settings.Current()
	s.derive(s.Config, o)
	s.Settings.OnChange(func(c Config) { s.derive(c, o) })
	return nil
}

// settingsConfig describes the settings: the configuration of the start, and the keys whose
// values could prevent the next start.
func (s *Server) settingsConfig(o Options) settings.Config[Config] {
	start := s.Config
	return settings.Config[Config]{Start: start, Default: Default(), Origin: o.Origin, Store: s.Store, Flags: flags, Logger: s.Logger, Now: time.Now,
		Check: func(c Config) error {
			if c.Server.Listen != start.Server.Listen || c.Server.MetricsListen != start.Server.MetricsListen || c.Server.BaseURL != start.Server.BaseURL ||
				c.Auth.Enabled != start.Auth.Enabled || c.Auth.Issuer != start.Auth.Issuer || c.Auth.AllowHTTP != start.Auth.AllowHTTP {
				return c.CheckServe()
			}
			return c.Check()
		},
		CheckFiles: func(key string, c Config) error { return c.Server.TLS.checkFile(key) }}
}

// derive makes what parts need of a configuration.
func (s *Server) derive(c Config, o Options) {
	proxies, err := c.trustedProxies()
	if err != nil {
		s.Logger.Error("server.trusted_proxies", slog.Any("error", err)) // Check has refused it
	}
	s.derived.Store(&derived{
		web: web.Settings{CORS: web.CORS{Origins: c.Server.AllowedOrigins}, Proxies: proxies, LogAccess: web.LogAccess(c.Log.Access),
			ServerTiming: c.Telemetry.ServerTiming, VersionConflictStatus: c.FHIR.VersionConflictStatus},
		interaction: interaction.Settings{DefaultCount: c.Search.DefaultCount, MaxCount: c.Search.MaxCount, RefuseUpdateCreate: !c.FHIR.UpdateCreate,
			RefuseSystemHistory: !c.FHIR.SystemHistory, Explain: func(ctx context.Context) bool { return s.enabled(ctx, "search.explain") },
			SearchTimeout: time.Duration(c.Search.TimeoutSeconds) * time.Second, StoredSearchAge: time.Duration(c.Search.StoredMinutes) * time.Minute, VersionConflictStatus: c.FHIR.VersionConflictStatus},
		limits:        limits(c.Auth.RateLimiting),
		notifications: c.notifications(),
		jobs:          c.Jobs.settings(),
		bulk:          c.bulk(),
		views:         c.views(),
	})
	s.Store.SetSearchMemory(searchMemory(c.Search))
	if err := s.tracing.Configure(context.Background(), c.Telemetry.tracing(o.Version)); err != nil {
		s.Logger.Error("telemetry", slog.Any("error", err))
	}
	if o.LogFormat != nil {
		o.LogFormat(c.Log.Format)
	}
	if o.LogLevel != nil {
		var level slog.Level
		if err := level.UnmarshalText([]byte(c.Log.Level)); err == nil {
			o.LogLevel.Set(level)
		}
	}
	if s.Terminology != nil {
		if err := s.Terminology.Configure(!c.Terminology.Enabled, s.terminologyServer(c.Terminology)); err != nil {
			s.Logger.Error("terminology", slog.Any("error", err))
		}
	}
}

// enabled reports whether a flag is on for the client of a request.
func (s *Server) enabled(ctx context.Context, flag string) bool {
	client := ""
	if p := access.PrincipalFrom(ctx); p != nil {
		client = p.ClientID
	}
	return s.Settings.Enabled(flag, client)
}

// The times between looks at the database.
const (
	lookEvery     = 250 * time.Millisecond
	seeEvery      = 2 * time.Second
	instanceDead  = 10 * time.Second
	tidyRatesEach = time.Minute
)

// keepUp keeps this server in step with the others on the database: settings,
// caches to be emptied, rates; and says that it is there.
func (s *Server) keepUp(ctx context.Context) {
	started := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	instance := store.Instance{ID: s.instance, Address: host + " " + s.Config.Server.Listen, Version: s.version, Started: started}
	var caches int64 = -1
	var seen, tidied time.Time
	var served int64
	look := func() error {
		signals, err := s.Store.Signals(ctx)
		if err != nil {
			return err
		}
		if err := s.Settings.Refresh(ctx, signals[store.SignalSettings].Version); err != nil {
			return err
		}
		if c := signals[store.SignalCaches]; c.Version != caches {
			if caches >= 0 {
				s.clearCaches(c.Detail)
			}
			caches = c.Version
		}
		if err := s.limiter.Sync(ctx); err != nil {
			return err
		}
		now := time.Now()
		if since := now.Sub(seen); since >= seeEvery {
			n := s.served.Load()
			instance.Load = float64(n-served) / max(since.Seconds(), 1)
			served, seen = n, now
			instance.Seen, instance.Streams, instance.Connections = now, s.Streams.Len(), 0
			for _, p := range s.Store.Pools() {
				instance.Connections += p.Open
			}
			if err := s.Store.SeeInstance(ctx, instance); err != nil {
				return err
			}
		}
		if now.Sub(tidied) >= tidyRatesEach {
			tidied = now
			return s.limiter.Tidy(ctx)
		}
		return nil
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	failing := false
	for {
		err := look()
		switch {
		case ctx.Err() != nil:
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.Store.ForgetInstance(bounded, instance.ID, time.Now().Add(-time.Hour)) // the others see it by its age
			return
		case err != nil && !failing:
			s.Logger.Warn("changes of other servers cannot be read", slog.Any("error", err))
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
