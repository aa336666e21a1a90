package app

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/web"
)

// internalHandler is a handler of the server itself, which Apps name as internal:NAME.
type internalHandler struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Types       []string `json:"resourceTypes,omitempty"` // that it is for; none is all
	// run does its work; nil with code, which a sandbox runs.
	run  func(p *Platform, ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error)
	code string
}

// internalHandlers are all there are, by name. docs/contract.md, Apps, section 3.
var internalHandlers = []*internalHandler{
	{Name: "everything", Description: "the resources of a patient's or an encounter's record, as $everything", Types: []string{"Encounter", "Patient"}, run: (*Platform).everything},
	{Name: "fhirpath", Description: "the values of the parameter expression, evaluated on the resource", code: `(c) => {
	const expression = (c.parameters || {}).expression || (c.query || {}).expression;
	if (typeof expression !== "string") throw new OperationOutcomeError(400, "required", "the operation needs one parameter expression");
	if (!c.resource) throw new OperationOutcomeError(400, "required", "the operation needs a resource: call it on one");
	return fhirpath(expression, c.resource);
}`},
	{Name: "validate", Description: "the issues of the resource, as $validate", run: (*Platform).validate},
}

// findInternal returns the handler of a url internal:NAME, nil where there is none.
func findInternal(url string) *internalHandler {
	name := strings.TrimPrefix(url, "internal:")
	if i := slices.IndexFunc(internalHandlers, func(h *internalHandler) bool { return h.Name == name }); i >= 0 && name != url {
		return internalHandlers[i]
	}
	return nil
}

// own calls an operation of the server with the parameters of an App's.
func (p *Platform) own(ctx context.Context, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	more, err := searchValues(hc.Parameters)
	if err != nil {
		return interaction.Response{}, err
	}
	q.Values = merged(q.Values, more)
	return p.Own.Run(ctx, q)
}

func (p *Platform) everything(ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	if q.ID == "" {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a resource: call it on one", e.name)
	}
	q.Name, q.Read, q.Method, q.Body = "$everything", true, http.MethodGet, nil
	return p.own(ctx, hc, q)
}

func (p *Platform) validate(ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	if len(hc.Resource) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a resource: call it on one", e.name)
	}
	q.Name, q.ID, q.Read, q.Method, q.Body = "$validate", "", false, http.MethodPost, hc.Resource
	return p.own(ctx, hc, q)
}

// Mount serves GET /admin/apps/handlers.
func (p *Platform) Mount(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/apps/handlers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"handlers": internalHandlers})
	})
}
