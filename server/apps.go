package server

import (
	"time"

	"kiln/server/app"
	"kiln/server/app/sandbox"
	"kiln/server/interaction"
	"kiln/server/outbound"
	"kiln/server/rest"
	"kiln/server/store"
)

// apps builds the application platform on the interactions, and makes it stand before
// the server's own operations.
func (s *Server) apps(i *interaction.Service, o Options) *app.Platform {
	c, webhook := s.Config.Apps, s.Config.notifications().Webhook
	pool := &sandbox.Pool{Command: o.Sandbox, Size: c.Sandbox.Workers, Logger: s.Logger, Limits: c.Sandbox.limits()}
	s.Settings.OnChange(func(c Config) { pool.SetLimits(c.Apps.Sandbox.limits()) })
	s.onClose(pool.Close)
	p := &app.Platform{Service: i, Store: s.Store, Own: s.Operations, Pool: pool, Bundle: rest.BundleJSON, Now: time.Now, Logger: s.Logger,
		Config: s.platformConfig, Enabled: s.enabled, SecretKey: s.Config.Auth.Signing.EncryptionKey,
		Outbound: outbound.Rules{AllowHTTP: webhook.AllowHTTP, AllowPrivate: webhook.AllowPrivate, MaxIdle: webhook.MaxConcurrent, Tracing: &s.tracing, Name: "app"}}
	if s.Store.Hooks == nil {
		s.Store.Hooks = make(map[string]store.Hook)
	}
	s.Store.Hooks["App"] = p.Hook()
	i.Operations = p
	i.Definition = func(typ, id string) ([]byte, bool, error) {
		if typ == "OperationDefinition" {
			if body, ok, err := p.Definition(id); ok || err != nil {
				return body, ok, err
			}
		}
		return definition(typ, id)
	}
	p.Start()
	s.onClose(p.Close)
	return p
}

// platformConfig is the configuration of the application platform in force.
func (s *Server) platformConfig() app.Config {
	c := s.now()
	out := c.Apps.platform()
	out.Notifications = c.Notifications.Enabled
	return out
}
