package interaction

import (
	"net/http"
	"net/url"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// target is the resource, type or operation in the URL of a Bundle entry.
type target struct {
	typ, id string
	version string // of …/_history/{version}
	history bool
	// compartment is the type searched in `Patient/1/Observation`, "*" for all.
	compartment string
	operation   string // with its $
	search      bool   // …/_search
	query       string // what follows `?`
	hasQuery    bool
}

// interaction is the interaction of a method on the target, in the words of
// http://hl7.org/fhir/restful-interaction.
func (t *target) interaction(method string) string {
	switch {
	case t.operation == "metadata":
		return "capabilities"
	case t.operation != "":
		return "operation"
	case method == http.MethodPost && t.typ == "" && !t.search:
		return "batch"
	case method == http.MethodPost && !t.search:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodPatch:
		return "patch"
	case method == http.MethodDelete:
		return "delete"
	case t.version != "":
		return "vread"
	case t.history && t.id != "":
		return "history-instance"
	case t.history && t.typ != "":
		return "history-type"
	case t.history:
		return "history-system"
	case t.compartment != "":
		return "search"
	case t.id != "":
		return "read"
	case t.typ != "":
		return "search-type"
	}
	return "search-system"
}

// InteractionOf is the interaction of a method and path, in the words of
// http://hl7.org/fhir/restful-interaction, "" for none, and the reference of its resource,
// "" for none.
func (s *Service) InteractionOf(method, path string) (interaction, resource string) {
	t, err := s.parseTarget(strings.TrimPrefix(path, "/"), "")
	if err != nil {
		return "", ""
	}
	return t.interaction(method), t.resource()
}

// resource is the reference of the resource that the target names, "" for none.
func (t *target) resource() string {
	if t.typ == "" || !fhir.ValidID(t.id) {
		return ""
	}
	return t.typ + "/" + t.id
}

// parseTarget reads entry.request.url: relative to the base, or absolute below
// one of the service's own base URLs, base among them.
// Spec: https://hl7.org/fhir/R4/bundle-definitions.html#Bundle.entry.request.url.
func (s *Service) parseTarget(text, base string) (target, error) {
	var t target
	path, query, hasQuery := strings.Cut(text, "?")
	t.query, t.hasQuery = query, hasQuery
	path = s.relativeReference(base, path)
	if strings.Contains(path, "://") {
		return t, outcome.Invalid("request.url %q is not on this server; a relative URL such as Patient/1 always is", outcome.Clip(text))
	}
	path = strings.Trim(path, "/")
	var parts []string
	if path != "" {
		parts = strings.Split(path, "/")
	}
	for i, p := range parts {
		var err error
		if parts[i], err = url.PathUnescape(p); err != nil {
			return t, outcome.Invalid("request.url %q is not a URL", outcome.Clip(text))
		}
	}
	if len(parts) > 0 && parts[0] != "_history" && !strings.HasPrefix(parts[0], "$") && parts[0] != "metadata" {
		known := s.Model.Resources[parts[0]]
		if known == nil {
			return t, s.UnknownType(parts[0])
		}
		t.typ, parts = known.Type().Name, parts[1:] // not part of text, which may be a Bundle's: a type is kept for longer
		if len(parts) > 0 && parts[0] != "_history" && parts[0] != "_search" && !strings.HasPrefix(parts[0], "$") {
			t.id, parts = parts[0], parts[1:]
		}
	}
	switch {
	case len(parts) == 0:
		return t, nil
	case len(parts) == 1 && strings.HasPrefix(parts[0], "$"):
		t.operation = parts[0]
		return t, nil
	case len(parts) == 1 && parts[0] == "metadata":
		t.operation = "metadata"
		return t, nil
	case len(parts) == 1 && parts[0] == "_search" && t.id == "":
		t.search = true
		return t, nil
	case len(parts) == 1 && parts[0] == "_history":
		t.history = true
		return t, nil
	case len(parts) == 2 && parts[0] == "_history" && t.id != "":
		t.history, t.version = true, parts[1]
		return t, nil
	case len(parts) == 1 && t.id != "" && (parts[0] == "*" || s.Model.Resources[parts[0]] != nil):
		t.compartment = parts[0]
		return t, nil
	}
	return t, outcome.NotSupported("request.url %q names no interaction of this server", outcome.Clip(text))
}
