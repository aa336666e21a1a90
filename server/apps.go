package server

import (
	"time"

	"kiln/oauth"
	"kiln/server/app"
	"kiln/server/app/sandbox"
	"kiln/server/outbound"
	"kiln/server/rest"
)

// apps builds the application platform on the interactions, before the server's own
// operations.
func (s *Server) apps(o Options) *app.Platform {
	c, webhook := s.Config.Apps, s.Config.notifications().Webhook
	pool := &sandbox.Pool{Command: o.Sandbox, Size: c.Sandbox.Workers, Logger: s.Logger, Limits: c.Sandbox.limits()}
	s.Settings.OnChange(func(c Config) { pool.SetLimits(c.Apps.Sandbox.limits()) })
	s.onClose(pool.Close)
	p := &app.Platform{Service: s.Service, Store: s.Store, Own: s.Operations, Events: s.notifier, Pool: pool, Bundle: rest.BundleJSON, Clients: s.appClients(), Now: time.Now, Logger: s.Logger,
		Config: s.platformConfig, Enabled: s.enabled, SecretKey: s.Config.Auth.Signing.EncryptionKey,
		Outbound: outbound.Rules{AllowHTTP: webhook.AllowHTTP, AllowPrivate: webhook.AllowPrivate, MaxIdle: webhook.MaxConcurrent, Tracing: &s.tracing, Name: "app"}}
	s.Store.Follow("App", p.Hook())
	p.Start()
	s.onClose(p.Close)
	return p
}

// appClients keeps the OAuth clients of Apps; nil without authorization.
func (s *Server) appClients() app.Clients {
	if a, ok := s.authorizationServer.(*oauth.Server); ok {
		return &oauth.AppClients{Server: a}
	}
	return nil
}

// definition returns one of the definitions that the server is built with, and those of
// the operations of Apps.
func (s *Server) definition(typ, id string) ([]byte, bool, error) {
	if typ == "OperationDefinition" {
		if body, ok, err := s.Apps.Definition(id); ok || err != nil {
			return body, ok, err
		}
	}
	return definition(typ, id)
}

// platformConfig is the configuration of the application platform in force.
func (s *Server) platformConfig() app.Config {
	c := s.now()
	out := c.Apps.platform()
	out.Notifications = c.Notifications.Enabled
	return out
}
