package interaction

import (
	"context"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// auditEventUnchangeable is the error of a request that would change or delete an AuditEvent.
func auditEventUnchangeable() error {
	return outcome.MethodNotAllowed("an AuditEvent can be neither changed nor deleted")
}

// ownObservers are the displays of source.observer in the AuditEvents that the server writes.
var ownObservers = []string{"Kiln", "Kiln authorization server"}

// refuseImitation fails with invalid, 422, if a client creates an AuditEvent that names this server
// as its observer.
func refuseImitation(r fhir.Resource) error {
	event, ok := r.(*r4.AuditEvent)
	if !ok || event.Source == nil || event.Source.Observer == nil {
		return nil
	}
	display := strings.TrimSpace(event.Source.Observer.Display.Text)
	if slices.ContainsFunc(ownObservers, func(own string) bool { return strings.EqualFold(own, display) }) {
		return outcome.UnprocessableContent(outcome.CodeInvalid, "source.observer is %q: the server writes such AuditEvents itself; an exported one can be loaded by PUT under its id", display).
			At("AuditEvent.source.observer.display")
	}
	return nil
}

// loadedTag marks an AuditEvent that a client has stored by PUT. The AuditEvents that the
// server writes never have it.
var loadedTag = struct{ system, code string }{"http://kiln/fhir/CodeSystem/audit-event-origin", "loaded"}

// markLoaded returns an AuditEvent with the tag of one that a client loads, and any other resource as it is.
func (s *Service) markLoaded(r fhir.Resource) (fhir.Resource, error) {
	event, ok := r.(*r4.AuditEvent)
	if !ok {
		return r, nil
	}
	if event.Meta == nil {
		event.Meta = new(r4.Meta)
	}
	for _, tag := range event.Meta.Tag {
		if tag.System.Text == loadedTag.system && tag.Code.Text == loadedTag.code {
			return r, nil
		}
	}
	tag := r4.Coding{}
	tag.System.Text, tag.Code.Text = loadedTag.system, loadedTag.code
	event.Meta.Tag = append(event.Meta.Tag, tag)
	return fhir.Decode(s.Model, fhir.Encode(nil, event))
}

// mayAppend fails if there is an AuditEvent of this id: a PUT only creates AuditEvents.
func (s *Service) mayAppend(ctx context.Context, id string) error {
	if !fhir.ValidID(id) {
		return nil
	}
	_, err := s.Store.Read(ctx, "AuditEvent", id)
	switch {
	case err == nil, outcome.Is(err, outcome.CodeDeleted):
		return auditEventUnchangeable()
	case outcome.Is(err, outcome.CodeNotFound):
		return nil
	}
	return err
}

// appendOnly is a Guard that lets a PUT create a resource and never change one. It implements
// store.Guard.
type appendOnly struct {
	inner store.Guard // nil allows everything
	// equal reports whether the PUT changes nothing of a version, and so is allowed; nil allows none.
	equal func(fhir.Version) bool
}

func (g appendOnly) Sees(v fhir.Version) (bool, error) {
	if g.inner == nil {
		return true, nil
	}
	return g.inner.Sees(v)
}

func (g appendOnly) Hidden() error { return auditEventUnchangeable() }

func (g appendOnly) May(current *fhir.Version, id string, x *fhir.Index) error {
	switch {
	case current != nil && (g.equal == nil || !g.equal(*current)):
		return auditEventUnchangeable()
	case current != nil:
		return nil
	case g.inner == nil:
		return nil
	}
	return g.inner.May(nil, id, x)
}
