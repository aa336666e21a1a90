package server

import (
	"context"

	"kiln/gen/index"
	"kiln/server/app"
	"kiln/server/fhir"
	"kiln/server/notify"
	"kiln/server/notify/config"
	"kiln/server/notify/owner"
	"kiln/server/rest"
)

// notifications builds subscriptions, webhooks and event streams.
func (s *Server) notifications(handler *rest.Handler) *notify.Service {
	return notify.New(notify.Parts{
		Settings: func() *config.Config { return &s.derived.Load().notifications },
		Flag:     func(ctx context.Context, feature string) bool { return s.enabled(ctx, "notifications."+feature) },
		Store:    s.Store, Service: s.Service, Streams: s.Streams, Base: handler.Base, Format: rest.Format,
		Log: s.Logger, Metrics: s.Metrics, Tracing: &s.tracing,
		Rights: owner.Decided{Decider: s.Service.Access, Authorized: s.Config.Auth.Enabled, Stands: s.ownerStands}, Audit: s.audit,
		Refresh: s.Parameters.Refresh,
	})
}

// startNotifications begins their work, for Apps too.
func (s *Server) startNotifications() error {
	n := s.notifier
	n.AddKind(app.Subscribers{Platform: s.Apps, Rights: n.Rights})
	if err := n.Start(); err != nil {
		return err
	}
	s.onClose(n.Close)
	s.Settings.OnChange(func(c Config) {
		s.Store.KeepChanges(c.notifications().Retention)
		n.Reconfigured()
	})
	return s.Operations.Register(index.Operations, n.Operations()...)
}

// logRead makes the read of a version an event, where that is wanted.
func (s *Server) logRead(ctx context.Context, v fhir.Version) error {
	if c := &s.derived.Load().notifications; !c.Enabled || !c.VRead {
		return nil
	}
	return s.Store.LogRead(ctx, v)
}

// ownerStands asks the authorization server whether a client and a user still have access.
// It fails with login, 401, if they have not, or if the user no longer acts for the patient.
func (s *Server) ownerStands(ctx context.Context, o owner.Owner) error {
	if a, ok := s.authorizationServer.(interface {
		Stands(ctx context.Context, subject, client, token, session string) error
	}); ok {
		if err := a.Stands(ctx, o.Subject, o.Client, o.TokenID, o.Session); err != nil {
			return err
		}
	}
	if a, ok := s.authorizationServer.(interface {
		CheckOwner(ctx context.Context, key, fhirUser, patient string) error
	}); ok {
		return a.CheckOwner(ctx, o.Key, o.FHIRUser, o.Patient)
	}
	return nil
}
