package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/web"
)

// internalHandler is a handler of the server itself, which Apps name as internal:NAME.
type internalHandler struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Types       []string `json:"resourceTypes,omitempty"` // that it is for; none is all
	// Parameters are its parameters; the url may fix them: internal:notify?message=…
	Parameters []string `json:"parameters,omitempty"`
	// run does its work; nil with code, which a sandbox runs.
	run  func(p *Platform, ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error)
	code string
}

// internalHandlers are all there are, by name. docs/contract.md, Apps, section 3.
var internalHandlers = []*internalHandler{
	{Name: "everything", Description: "the resources of a patient's or an encounter's record, as $everything", Types: []string{"Encounter", "Patient"}, run: (*Platform).everything},
	{Name: "fhirpath", Description: "the values of the parameter expression, evaluated on the resource", Parameters: []string{"expression"}, code: `(c) => {
	const expression = (c.parameters || {}).expression || (c.query || {}).expression;
	if (typeof expression !== "string") throw new OperationOutcomeError(400, "required", "the operation needs one parameter expression");
	if (!c.resource) throw new OperationOutcomeError(400, "required", "the operation needs a resource: call it on one");
	return fhirpath(expression, c.resource);
}`},
	{Name: "notify", Description: "a message about the resource to users, as $notify; recipients that the url does not fix are for administrators", Parameters: []string{"recipients", "message"}, run: (*Platform).notifyUsers},
	{Name: "summary", Description: "how many resources of each type a patient's record has, and when the last of them was updated", Types: []string{"Patient"}, run: (*Platform).summary},
	{Name: "validate", Description: "the issues of the resource, as $validate", run: (*Platform).validate},
}

// findInternal reads a url internal:NAME or internal:NAME?parameter=value.
func findInternal(text string) (h *internalHandler, fixed map[string]any, err error) {
	name, query, _ := strings.Cut(strings.TrimPrefix(text, "internal:"), "?")
	i := slices.IndexFunc(internalHandlers, func(h *internalHandler) bool { return h.Name == name })
	if i < 0 || !strings.HasPrefix(text, "internal:") {
		var names []string
		for _, h := range internalHandlers {
			names = append(names, "internal:"+h.Name)
		}
		return nil, nil, fmt.Errorf("%q is no internal handler: expected %s", clip(text), strings.Join(names, ", "))
	}
	h = internalHandlers[i]
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, nil, fmt.Errorf("the parameters of %q cannot be read: %w", clip(text), err)
	}
	for parameter, list := range values {
		if !slices.Contains(h.Parameters, parameter) {
			return nil, nil, fmt.Errorf("internal:%s has no parameter %q", h.Name, clip(parameter))
		}
		if fixed == nil {
			fixed = make(map[string]any)
		}
		if fixed[parameter] = any(list); len(list) == 1 {
			fixed[parameter] = list[0]
		}
	}
	return h, fixed, nil
}

// fixHandlerContext overrides parameters of a call by those in the url of an internal handler.
func (e *entry) fixHandlerContext(hc *handlerContext) error {
	if len(e.fixed) == 0 {
		return nil
	}
	given := make(map[string]any)
	if len(hc.Parameters) > 0 {
		if err := json.Unmarshal(hc.Parameters, &given); err != nil {
			return outcome.New(outcome.CodeStructure, "the parameters cannot be read: %s", outcome.JSONProblem(err))
		}
	}
	maps.Copy(given, e.fixed)
	text, err := json.Marshal(given)
	hc.Parameters = text
	return err
}

// runBuiltIn calls an operation of the server with the parameters of an App's.
func (p *Platform) runBuiltIn(ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	more, err := searchValues(json.RawMessage(hc.Parameters))
	if err != nil {
		return interaction.Response{}, err
	}
	if ctx, err = p.contextOfHandler(ctx, e); err != nil {
		return interaction.Response{}, err
	}
	q.Values = mergeValues(q.Values, more)
	return p.Own.Run(ctx, q)
}

func (p *Platform) everything(ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	if q.ID == "" {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a resource: call it on one", e.label())
	}
	q.Name, q.Read, q.Method, q.Body = "$everything", true, http.MethodGet, nil
	return p.runBuiltIn(ctx, e, hc, q)
}

func (p *Platform) validate(ctx context.Context, e *entry, hc *handlerContext, q interaction.OperationParams) (interaction.Response, error) {
	if len(hc.Resource) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a resource: call it on one", e.label())
	}
	q.Name, q.ID, q.Read, q.Method, q.Body = "$validate", "", false, http.MethodPost, hc.Resource
	return p.runBuiltIn(ctx, e, hc, q)
}

// notifyUsers sends a message to users. Whom, the App says in its url, or an administrator
// by a parameter: others cannot choose.
func (p *Platform) notifyUsers(ctx context.Context, e *entry, hc *handlerContext, _ interaction.OperationParams) (interaction.Response, error) {
	var in struct {
		Recipients any `json:"recipients"`
		Message    any `json:"message"`
	}
	if len(hc.Parameters) > 0 {
		if err := json.Unmarshal(hc.Parameters, &in); err != nil {
			return interaction.Response{}, outcome.New(outcome.CodeStructure, "the parameters cannot be read: %s", outcome.JSONProblem(err))
		}
	}
	c := access.PrincipalFrom(ctx)
	if c != nil && !c.IsOpen() && !c.Admin && e.fixed["recipients"] == nil {
		return interaction.Response{}, outcome.New(outcome.CodeForbidden, "the App (internal:notify?recipients=…) or an administrator chooses the recipients of a message")
	}
	var recipients []string
	list, ok := in.Recipients.([]any)
	if text, one := in.Recipients.(string); one {
		for name := range strings.SplitSeq(text, ",") {
			list = append(list, strings.TrimSpace(name))
		}
	} else if in.Recipients != nil && !ok {
		return interaction.Response{}, outcome.Invalid("recipients is a list of user ids or usernames")
	}
	for _, one := range list {
		name, ok := one.(string)
		if !ok {
			return interaction.Response{}, outcome.Invalid("recipients is a list of user ids or usernames")
		}
		recipients = append(recipients, name)
	}
	message, _ := in.Message.(string)
	if message == "" && hc.Event != "" {
		message = fmt.Sprintf("%s of %s/%s", hc.Event, hc.ResourceType, hc.ResourceID)
	}
	if !p.Config().Notifications {
		return interaction.Response{}, outcome.NotSupported("this server sends no notifications: notifications.enabled is off")
	}
	if hc.ResourceID == "" {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a resource: call it on one", e.label())
	}
	id, sent, err := p.Events.NotifyUsers(ctx, hc.ResourceType, hc.ResourceID, recipients, message)
	if err != nil {
		return interaction.Response{}, err
	}
	body, err := json.Marshal(map[string]any{"id": id, "recipients": sent})
	return interaction.Response{Status: http.StatusAccepted, Body: body, ContentType: "application/json"}, err
}

// summaryType is the summary of a resource type.
type summaryType struct {
	Type  string `json:"type"`
	Count int    `json:"count"`
	Last  string `json:"last,omitempty"` // meta.lastUpdated of the one that was updated last
}

// summary counts the resources of a patient's record, with the rights of the handler's principal: types that may not be
// searched are left out.
func (p *Platform) summary(ctx context.Context, e *entry, hc *handlerContext, _ interaction.OperationParams) (interaction.Response, error) {
	if hc.ResourceID == "" {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "%s needs a patient: call it on one", e.label())
	}
	ctx, err := p.contextOfHandler(ctx, e)
	if err != nil {
		return interaction.Response{}, err
	}
	out := struct {
		Patient string        `json:"patient"`
		Total   int           `json:"total"`
		Last    string        `json:"last,omitempty"`
		Types   []summaryType `json:"types"`
	}{Patient: "Patient/" + hc.ResourceID, Types: []summaryType{}}
	compartment, ok := p.Service.Parameters.Current().Compartment("Patient")
	if !ok {
		return interaction.Response{}, outcome.NotSupported("there is no patient compartment")
	}
	for _, typ := range interaction.CompartmentTypes(compartment) {
		if typ == "AuditEvent" {
			continue // reads of the record are not part of it
		}
		one, err := p.summaryOf(ctx, typ, hc.ResourceID)
		if outcome.Is(err, outcome.CodeForbidden) {
			continue
		}
		if err != nil {
			return interaction.Response{}, err
		}
		if one.Count > 0 {
			out.Types, out.Total, out.Last = append(out.Types, one), out.Total+one.Count, max(out.Last, one.Last)
		}
	}
	body, err := json.Marshal(out)
	return interaction.Response{Status: http.StatusOK, Body: body, ContentType: "application/json"}, err
}

func (p *Platform) summaryOf(ctx context.Context, typ, patient string) (summaryType, error) {
	r, err := p.Service.Search(ctx, interaction.SearchParams{ResourceType: typ, Compartment: "Patient", CompartmentID: patient,
		Values: url.Values{"_sort": {"-_lastUpdated"}, "_count": {"1"}, "_total": {"accurate"}}})
	if err != nil {
		return summaryType{}, err
	}
	defer r.Release()
	out := summaryType{Type: typ, Count: r.Bundle.Total}
	for _, found := range r.Bundle.Entries {
		if found.Mode == "match" {
			out.Last = found.Version.LastUpdated.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	return out, nil
}

// handlers answers GET /admin/apps/handlers.
func (p *Platform) handlers(w http.ResponseWriter, r *http.Request) error {
	return sendJSON(w, r, http.StatusOK, map[string]any{"handlers": internalHandlers})
}

// Mount serves what administrators do with Apps.
func (p *Platform) Mount(m *web.Mux) {
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /admin/apps/handlers":               p.handlers,
		"GET /admin/apps/{id}/grants":            p.showGrants,
		"POST /admin/apps/{id}/grants":           p.putGrants,
		"PUT /admin/apps/{id}/grants":            p.putGrants,
		"GET /admin/apps/{id}/secrets":           p.listSecrets,
		"PUT /admin/apps/{id}/secrets/{name}":    p.storeSecret,
		"DELETE /admin/apps/{id}/secrets/{name}": p.removeSecret,
		"POST /admin/apps/{id}/replay":           p.replay,
	} {
		m.HandleFunc(web.Admin, pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil {
				web.ExchangeOf(w).Fail(r, err)
			}
		})
	}
}
