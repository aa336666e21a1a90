package server

import (
	"encoding/json"
	"fmt"
	"time"

	"kiln/definitions"
	"kiln/oauth"
	"kiln/server/app"
	"kiln/server/app/sandbox"
	"kiln/server/interaction"
	"kiln/server/outbound"
	"kiln/server/rest"
)

// apps builds the application platform on the interactions, before the server's own
// operations.
func (s *Server) apps(o Options) *app.Platform {
	c := s.Config.Apps
	pool := &sandbox.Pool{Command: o.Sandbox, Size: c.Sandbox.Workers, Logger: s.Logger, Limits: c.Sandbox.limits()}
	s.Settings.OnChange(func(c Config) { pool.SetLimits(c.Apps.Sandbox.limits()) })
	s.onClose(pool.Close)
	p := &app.Platform{Service: s.Service, Store: s.Store, Own: s.Operations, Events: s.notifier, Audit: s.audit, AuditWrites: s.audit.WithApp, Pool: pool, Bundle: rest.BundleJSON, Clients: s.appClients(), Now: time.Now, Logger: s.Logger, Metrics: s.Metrics,
		Config: s.platformConfig, Enabled: s.enabled, SecretKey: s.Config.Auth.Signing.EncryptionKey,
		Outbound: s.appRules}
	s.Store.Follow("App", p.Hook())
	p.Start()
	s.Settings.OnChange(func(Config) { p.Reconfigured() })
	s.onClose(p.Close)
	return p
}

// appRules are the rules of webhooks for the http handlers of Apps.
func (s *Server) appRules() outbound.Rules {
	w := &s.derived.Load().notifications.Webhook
	return outbound.Rules{AllowHTTP: w.AllowHTTP, AllowPrivate: w.AllowPrivate, MaxIdle: w.MaxConcurrent, Tracing: &s.tracing, Name: "app"}
}

// appClients keeps the OAuth clients of Apps; nil without authorization.
func (s *Server) appClients() app.Clients {
	if a, ok := s.authorizationServer.(interface{ AppClients() *oauth.AppClients }); ok {
		return a.AppClients()
	}
	return nil
}

// definition returns a built-in definition or the OperationDefinition of an App.
func (s *Server) definition(typ, id string) (interaction.Definition, bool, error) {
	if typ == "OperationDefinition" {
		if body, ok := s.Apps.Definition(id); ok {
			return interaction.Definition{ID: id, Body: body}, true, nil
		}
	}
	body, ok, err := definition(typ, id)
	return interaction.Definition{ID: id, Body: body, Condensed: true}, ok, err
}

// resolve is definition by the canonical URL.
func (s *Server) resolve(typ, url string) (interaction.Definition, bool, error) {
	if !isDefinitionType(typ) {
		return interaction.Definition{}, false, nil
	}
	if id, ok := app.DefinitionID(url); ok && typ == "OperationDefinition" {
		body, ok := s.Apps.Definition(id)
		return interaction.Definition{ID: id, Body: body}, ok, nil
	}
	all, err := definitions.Embedded()
	if err != nil {
		return interaction.Definition{}, false, err
	}
	body, ok := all.Resolve(url)
	if !ok {
		return interaction.Definition{}, false, nil
	}
	var head struct{ ResourceType, ID string }
	if err := json.Unmarshal(body, &head); err != nil {
		return interaction.Definition{}, false, fmt.Errorf("definition %s: %w", url, err)
	}
	return interaction.Definition{ID: head.ID, Body: body, Condensed: true}, head.ResourceType == typ, nil
}

// platformConfig is the configuration of the application platform in force.
func (s *Server) platformConfig() app.Config {
	c := s.now()
	out := c.Apps.platform()
	out.Notifications, out.Address = c.Notifications.Enabled, c.address()
	return out
}
