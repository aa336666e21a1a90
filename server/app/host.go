package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"kiln/server/app/sandbox"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/patch"
)

// writes are the functions of fhir that change data.
var writes = map[string]bool{"create": true, "update": true, "patch": true, "delete": true, "transaction": true}

// hostArgs are the arguments of a function of fhir.
type hostArgs struct {
	Type     string          `json:"type"`
	ID       string          `json:"id"`
	Params   json.RawMessage `json:"params"`
	Resource json.RawMessage `json:"resource"`
	Patch    json.RawMessage `json:"patch"`
	Bundle   json.RawMessage `json:"bundle"`
	Path     string          `json:"path"`
	URL      string          `json:"url"`
	Options  hostOptions     `json:"options"`
}

// hostOptions are the options of fhir.operation and of fetch.
type hostOptions struct {
	Method     string            `json:"method"`
	Parameters json.RawMessage   `json:"parameters"`
	Headers    map[string]string `json:"headers"`
	Body       json.RawMessage   `json:"body"`
}

// callHost carries out a function of fhir with the rights of ctx. An operation that changes
// no data has none that does.
func (p *Platform) callHost(ctx context.Context, e *entry, function string, text json.RawMessage) (json.RawMessage, error) {
	var a hostArgs
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, outcome.Invalid("fhir.%s cannot be called with these arguments", function)
	}
	if err := checkHostCall(e, function, &a); err != nil {
		return nil, err
	}
	if dry, ok := ctx.Value(dryKey{}).(*dryRun); ok && a.hasEffect(function) {
		return dry.recordCall(function, text, &a)
	}
	if function != "operation" {
		release, err := sandbox.HoldResult(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return p.runHostFunction(ctx, e, function, a)
}

// checkHostCall checks that an operation may call a function of fhir, and that the
// arguments contain the type, the id or the resource that the function needs.
func checkHostCall(e *entry, function string, a *hostArgs) error {
	if writes[function] && !e.affects {
		return outcome.New(outcome.CodeForbidden, "%s is of type %s and changes no data: fhir.%s is not for it", e.label(), e.kind, function)
	}
	switch function {
	case "read", "patch", "delete":
		if a.ID == "" {
			return outcome.Invalid("fhir.%s needs an id", function)
		}
	case "search":
		if a.Type == "" {
			return outcome.Invalid("fhir.search needs a type")
		}
	}
	return nil
}

// hasEffect reports whether a call could change data, here or on another server. A replay
// records such a call and does not make it.
func (a *hostArgs) hasEffect(function string) bool {
	return writes[function] || function == "fetch" || function == "operation" && a.Options.Method != http.MethodGet
}

// runHostFunction carries out a call whose arguments are checked.
func (p *Platform) runHostFunction(ctx context.Context, e *entry, function string, a hostArgs) (json.RawMessage, error) {
	s := p.Service
	switch function {
	case "fetch":
		return p.fetchURL(ctx, e, a.URL, a.Options)
	case "read":
		return version(s.Read(ctx, interaction.ReadParams{ResourceType: a.Type, ID: a.ID}))
	case "search":
		values, err := searchValues(a.Params)
		if err != nil {
			return nil, err
		}
		return p.bundle(s.Search(ctx, interaction.SearchParams{ResourceType: a.Type, Values: values}))
	case "create":
		typ, _ := head(a.Resource)
		if len(a.Resource) == 0 {
			return nil, outcome.Invalid("fhir.create needs a resource")
		}
		return version(s.Create(ctx, interaction.CreateParams{ResourceType: typ, Body: a.Resource}))
	case "update":
		typ, id := head(a.Resource)
		if id == "" {
			return nil, outcome.Invalid("fhir.update needs a resource with an id")
		}
		return version(s.Update(ctx, interaction.UpdateParams{ResourceType: typ, ID: id, Body: a.Resource}))
	case "patch":
		contentType := "application/fhir+json"
		if b := bytes.TrimSpace(a.Patch); len(b) > 0 && b[0] == '[' {
			contentType = patch.JSONType
		}
		return version(s.Patch(ctx, interaction.PatchParams{ResourceType: a.Type, ID: a.ID, ContentType: contentType, Patch: a.Patch}))
	case "delete":
		_, err := s.Delete(ctx, interaction.DeleteParams{ResourceType: a.Type, ID: a.ID})
		return nil, err
	case "transaction":
		return p.bundle(s.Bundle(ctx, interaction.BundleParams{Body: a.Bundle, Return: interaction.ReturnRepresentation, BaseURL: p.Config().Address}))
	case "operation":
		return p.operation(ctx, e, a)
	}
	return nil, outcome.NotSupported("there is no function %s", clip(function))
}

// operation is fhir.operation.
func (p *Platform) operation(ctx context.Context, e *entry, a hostArgs) (json.RawMessage, error) {
	q, err := operationPath(a.Path)
	if err != nil {
		return nil, err
	}
	switch a.Options.Method {
	case "", http.MethodPost:
		q.Method, q.Body = http.MethodPost, p.plainParameters(q, a.Options.Parameters)
		if p.Own.Has(q.Name) {
			// Plain values go into the URL; FHIR Parameters and resources are a body.
			if more, err := searchValues(q.Body); err == nil && len(more) > 0 && !more.Has("resourceType") {
				q.Values, q.Body = mergeValues(q.Values, more), nil
			}
		}
	case http.MethodGet:
		q.Method, q.Read = http.MethodGet, true
		more, err := searchValues(a.Options.Parameters)
		if err != nil {
			return nil, err
		}
		q.Values = mergeValues(q.Values, more)
	default:
		return nil, outcome.Invalid("fhir.operation is called by GET or POST, not %q", clip(a.Options.Method))
	}
	if !e.affects && p.changes(ctx, q) {
		return nil, outcome.New(outcome.CodeForbidden, "%s is of type %s and changes no data: %s is not for it", e.name, e.kind, clip(q.Name))
	}
	if p.Own.Has(q.Name) { // an App's operation waits in Pool.Run, or holds by itself
		release, err := sandbox.HoldResult(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	r, err := p.Service.Operation(ctx, q)
	if err == nil && r.Status >= 400 {
		return nil, outcome.Relayed(r.Status, string(outcome.CodeInvalid), fmt.Sprintf("%s failed with status %d: %s", clip(q.Name), r.Status, clip(diagnostics(r.Body))))
	}
	if err == nil && r.Bundle == nil && r.Body != nil {
		return r.Body, nil
	}
	if err == nil && r.Bundle == nil {
		return version(r, nil)
	}
	return p.bundle(r, err)
}

// plainParameters is the body of a call that has an object of parameters: the call of an App
// has it as {"parameters": {…}}, unless it is a resource or in that form already. The server's own
// operations take FHIR Parameters.
func (p *Platform) plainParameters(q interaction.OperationParams, body json.RawMessage) json.RawMessage {
	var object map[string]json.RawMessage
	if p.Own.Has(q.Name) || json.Unmarshal(body, &object) != nil || object == nil || object["resourceType"] != nil || object["parameters"] != nil {
		return body
	}
	return append(append([]byte(`{"parameters":`), body...), '}')
}

// diagnostics is the text of an OperationOutcome's first issue.
func diagnostics(operationOutcome []byte) string {
	var o struct {
		Issue []struct{ Diagnostics string }
	}
	if json.Unmarshal(operationOutcome, &o) != nil || len(o.Issue) == 0 {
		return ""
	}
	return o.Issue[0].Diagnostics
}

// changes reports whether an operation can change data.
func (p *Platform) changes(ctx context.Context, q interaction.OperationParams) bool {
	if p.Own.Has(q.Name) {
		return p.Own.Affects(q)
	}
	apps, err := p.currentSnapshot(ctx)
	if err != nil {
		return true
	}
	o := apps.operations[key{q.ResourceType, q.Name}]
	return o != nil && o.affects
}

func version(r interaction.Response, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return r.Version.Body, nil
}

func (p *Platform) bundle(r interaction.Response, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if r.Bundle == nil {
		return r.Body, nil
	}
	return p.Bundle(p.Config().Address, r.Bundle), nil
}

// head is type and id of a resource, "" where there are none: the interaction says so.
func head(resource json.RawMessage) (typ, id string) {
	var h struct{ ResourceType, ID string }
	_ = json.Unmarshal(resource, &h)
	return h.ResourceType, h.ID
}

// searchValues reads the parameters of a search: an object of texts, numbers, booleans
// and arrays of them, or a query string.
func searchValues(text json.RawMessage) (url.Values, error) {
	if text = bytes.TrimSpace(text); len(text) == 0 || string(text) == "null" {
		return url.Values{}, nil
	}
	if text[0] == '"' {
		var query string
		if err := json.Unmarshal(text, &query); err != nil {
			return nil, err
		}
		if len(query) > 0 && query[0] == '?' {
			query = query[1:]
		}
		return interaction.ParseQuery(query)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		return nil, outcome.Invalid("the parameters of a search are an object or a query string")
	}
	out := make(url.Values, len(object))
	for name, v := range object {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, one := range list {
			switch one.(type) {
			case string, json.Number, bool:
				out.Add(name, fmt.Sprint(one))
			default:
				return nil, outcome.Invalid("the search parameter %q is no text, number or boolean", clip(name))
			}
		}
	}
	return out, nil
}
