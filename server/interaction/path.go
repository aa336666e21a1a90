package interaction

import (
	"errors"
	"strings"

	"kiln/server/outcome"
	"kiln/server/target"
)

// InteractionOf is the interaction of a method and path, in the words of
// http://hl7.org/fhir/restful-interaction, "" for none, and the reference of its resource,
// "" for none.
func (s *Service) InteractionOf(method, path string) (interaction, resource string) {
	t, err := s.parseTarget(path, "")
	if err != nil {
		return "", ""
	}
	return t.Interaction(method), t.Resource()
}

// parseTarget reads entry.request.url: relative to the base, or absolute below
// one of the service's own base URLs, base among them.
// Spec: https://hl7.org/fhir/R4/bundle-definitions.html#Bundle.entry.request.url.
func (s *Service) parseTarget(text, base string) (target.Target, error) {
	path, query, hasQuery := strings.Cut(text, "?")
	path = s.relativeReference(base, path)
	if strings.Contains(path, "://") {
		return target.Target{}, outcome.Invalid("request.url %q is not on this server; a relative URL such as Patient/1 always is", outcome.Clip(text))
	}
	if hasQuery {
		path += "?" + query
	}
	t, err := target.Read(s.Model, path)
	var unknown target.UnknownTypeError
	switch {
	case errors.As(err, &unknown):
		return t, s.UnknownType(string(unknown))
	case errors.Is(err, target.ErrURL):
		return t, outcome.Invalid("request.url %q is not a URL", outcome.Clip(text))
	case err != nil:
		return t, outcome.NotSupported("request.url %q names no interaction of this server", outcome.Clip(text))
	}
	return t, nil
}
