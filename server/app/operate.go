package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/server/access"
	"kiln/server/app/journal"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
)

// call is a call of an operation of an App, until the handler begins.
type call struct {
	invoking
	ctx context.Context // it ends with the time of the operation
	end context.CancelFunc
}

// cancel releases the resources of the call.
func (c *call) cancel() {
	if c != nil {
		c.end()
	}
}

// prepareCall does what goes before a handler, and changes nothing.
func (p *Platform) prepareCall(ctx context.Context, apps *snapshot, q interaction.OperationParams) (*call, error) {
	e, err := p.findOperation(ctx, apps, q)
	if err != nil {
		return nil, err
	}
	if err := e.checkLevel(q); err != nil {
		return nil, err
	}
	for _, i := range e.rights() {
		if err := p.Service.CheckAllowed(ctx, i, e.typ, q.ID); err != nil {
			return nil, err
		}
	}
	c := &call{invoking: invoking{entry: e, params: q}}
	if ctx, err = p.enterRecursion(ctx, e, interaction.CallerFrom(ctx).RequestID); err != nil {
		return nil, err
	}
	c.ctx, c.end = context.WithTimeout(ctx, p.Config().Timeout)
	if c.context, c.raw, err = p.context(c.ctx, e, q); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// operate has the handler of a call do its work, and records it.
func (p *Platform) operate(c *call) (interaction.Response, error) {
	ctx, e, q := c.ctx, c.entry, c.params
	c.log = p.beginInvocation(e, c.context)
	resp, err := p.invoke(ctx, &c.invoking)
	p.endInvocation(c.log, resp, err)
	// An operation that changes data waits until it is recorded.
	failed := p.journal.AddRecord(&journal.Record{Audit: p.auditRun(ctx, e, q, resp.Status, err), Invocation: c.log}, e.affects)
	if failed != nil {
		p.Logger.Error("record an App's operation", "app", e.app, "operation", e.name, "error", failed)
		if err == nil {
			return interaction.Response{}, fmt.Errorf("record an App's operation: %w", failed)
		}
	}
	return resp, err
}

// beginInvocation begins the log of a run of a handler.
func (p *Platform) beginInvocation(e *entry, hc *handlerContext) *journal.Invocation {
	return &journal.Invocation{ID: uuid.Must(uuid.NewV7()), App: e.app, Operation: strings.TrimPrefix(e.name, "$"), Subscription: e.subscription,
		ResourceType: e.typ, ResourceID: hc.ResourceID, RequestID: hc.RequestID, At: p.Now()}
}

// endInvocation says in the log how a run came to its end.
func (p *Platform) endInvocation(v *journal.Invocation, resp interaction.Response, err error) {
	v.Took, v.Outcome, v.Status = p.Now().Sub(v.At), "ok", resp.Status
	if err == nil && resp.Status < 400 {
		return
	}
	v.Outcome = "error"
	if err == nil {
		v.AddMessage("error", diagnostics(resp.Body), p.Now())
		return
	}
	o, ok := outcome.From(err)
	if !ok {
		o = outcome.New(outcome.CodeException, "internal error")
	}
	v.Status = o.HTTPStatus()
	var f *sandbox.Failure
	switch {
	case outcome.IsGatewayTimeout(o), errors.As(err, &f) && f.Kind == sandbox.KindTime:
		v.Outcome = "timeout"
	case errors.As(err, &f) && f.Kind == sandbox.KindMemory:
		v.Outcome = "memory"
	}
	v.AddMessage("error", o.Error(), p.Now())
}

// invoking is one run of a handler.
type invoking struct {
	*entry
	context *handlerContext
	raw     json.RawMessage // the parameters as they came
	log     *journal.Invocation
	params  interaction.OperationParams
}

// invoke has a handler do its work.
func (p *Platform) invoke(ctx context.Context, i *invoking) (interaction.Response, error) {
	e := i.entry
	switch {
	case e.broken != nil:
		return interaction.Response{}, badGateway(e, "may not be called: %v", e.broken)
	case e.remote != nil:
		release, err := sandbox.HoldResult(ctx)
		if err != nil {
			return interaction.Response{}, p.timely(e, err)
		}
		defer release()
		text, err := i.context.json(i.context.Resource)
		if err != nil {
			return interaction.Response{}, fmt.Errorf("context of %s: %w", e.label(), err)
		}
		resp, err := p.callRemote(ctx, e, i.context, text)
		return resp, p.timely(e, err)
	case e.internal != nil:
		if err := e.fixHandlerContext(i.context); err != nil {
			return interaction.Response{}, err
		}
	}
	switch {
	case e.internal != nil && e.internal.run != nil:
		release, err := sandbox.HoldResult(ctx)
		if err != nil {
			return interaction.Response{}, p.timely(e, err)
		}
		defer release()
		resp, err := e.internal.run(p, ctx, e, i.context, i.params)
		return resp, p.timely(e, err)
	case e.handler == "javascript" && !p.Enabled(ctx, FlagJavaScript):
		return interaction.Response{}, outcome.NotSupported("%s is a script, and the feature %s is off", e.label(), FlagJavaScript)
	}
	acting, err := p.contextOfHandler(ctx, e)
	if err != nil {
		return interaction.Response{}, err
	}
	text, err := i.context.json(nil)
	if err != nil {
		return interaction.Response{}, fmt.Errorf("context of %s: %w", e.label(), err)
	}
	result, err := p.Pool.Run(acting, &sandbox.Call{Code: e.code, Context: text, Resource: i.context.Resource, Parameters: i.raw, App: e.app, Client: clientOf(ctx), Fetch: p.Config().AllowFetch && len(e.hosts) > 0,
		Host: func(ctx context.Context, function string, args json.RawMessage) (json.RawMessage, *sandbox.Failure) {
			value, err := p.callHost(ctx, e, function, args)
			return value, failureOf(err)
		},
		Log: i.log.AddLine,
	})
	if err != nil {
		return interaction.Response{}, p.failed(e, err)
	}
	if result == nil {
		return interaction.Response{Status: http.StatusNoContent}, nil
	}
	return p.response(result)
}

// clientOf names the client that a run of a script counts for, "" without authorization.
func clientOf(ctx context.Context) string {
	c := access.PrincipalFrom(ctx)
	switch {
	case c == nil || c.IsOpen():
		return ""
	case c.ClientID != "":
		return c.ClientID
	}
	return c.Subject
}

// response answers with the result of a handler: a resource, checked to be FHIR, or other JSON. An object that
// describes a resource or an operation, like the context itself, also has a resourceType. These elements show that it is
// no resource.
func (p *Platform) response(result json.RawMessage) (interaction.Response, error) {
	var head struct {
		ResourceType *string         `json:"resourceType"`
		ResourceID   json.RawMessage `json:"resourceId"`
		Operation    json.RawMessage `json:"operation"`
	}
	if json.Unmarshal(result, &head) != nil || head.ResourceType == nil || head.ResourceID != nil || head.Operation != nil {
		return interaction.Response{Status: http.StatusOK, Body: result, ContentType: "application/json"}, nil
	}
	if _, err := fhir.Decode(p.Service.Model, result); err != nil {
		text := err.Error()
		return interaction.Response{}, outcome.UnprocessableContent(outcome.CodeInvalid, "the handler's result is no FHIR: %s", clip(text))
	}
	return interaction.Response{Status: http.StatusOK, Body: result}, nil
}

// timely turns the end of the operation's time into its error.
func (p *Platform) timely(e *entry, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return outcome.GatewayTimeout("%s took more than %s (%s)", e.label(), p.timeout(e), timeoutKey(e))
	}
	return err
}

// timeout is how long a run of a handler may take.
func (p *Platform) timeout(e *entry) time.Duration {
	if e.subscription != "" {
		return p.Config().WebhookTimeout
	}
	return p.Config().Timeout
}

func timeoutKey(e *entry) string {
	if e.subscription != "" {
		return "apps.webhook_timeout_seconds"
	}
	return "apps.operation_timeout_seconds"
}

// failed is the answer to a script that did not come to its end.
func (p *Platform) failed(e *entry, err error) error {
	var f *sandbox.Failure
	if errors.Is(err, sandbox.ErrNoWorker) {
		return outcome.Unavailable("%s: no sandbox runs now that the script could run in", e.label()).Because(err)
	}
	if errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &f) {
		return p.timely(e, err)
	}
	switch f.Kind {
	case sandbox.KindTime, sandbox.KindMemory:
		return outcome.UnprocessableContent(outcome.CodeTooCostly, "%s: %s", e.label(), f.Message).Because(f)
	case sandbox.KindWorker:
		return outcome.New(outcome.CodeException, "%s: %s", e.label(), f.Message).Because(err)
	case sandbox.KindOutcome:
		if f.Status >= 400 && f.Status < 600 {
			return outcome.Relayed(f.Status, f.Code, f.Message)
		}
	}
	o := outcome.UnprocessableContent(outcome.CodeInvalid, "%s: %s", e.label(), f.Error())
	o.Issues[0].Line, o.Issues[0].Column = f.Line, f.Column
	return o
}

// failureOf is an error as a script catches it.
func failureOf(err error) *sandbox.Failure {
	if err == nil {
		return nil
	}
	o, ok := outcome.From(err)
	if !ok {
		o = outcome.New(outcome.CodeException, "internal error")
	}
	return &sandbox.Failure{Kind: sandbox.KindOutcome, Status: o.HTTPStatus(), Code: string(o.Issues[0].Code), Message: o.Error(), Outcome: outcome.JSON(o.Issues)}
}

// context makes the handlerContext of a call.
func (p *Platform) context(ctx context.Context, e *entry, q interaction.OperationParams) (hc *handlerContext, raw json.RawMessage, err error) {
	hc = &handlerContext{Operation: e.name[1:], Type: e.kind, ResourceType: e.typ, ResourceID: q.ID, App: appName{e.app, e.version},
		RequestID: interaction.CallerFrom(ctx).RequestID}
	if c := access.PrincipalFrom(ctx); c != nil {
		hc.User, hc.Client, hc.Patient = user{c.Subject, c.FHIRUser, c.Roles}, c.ClientID, c.Patient
	}
	values := q.Values
	body := bytes.TrimSpace(q.Body)
	if len(body) > 0 && body[0] != '{' {
		if e.kind != "search" {
			return nil, raw, outcome.New(outcome.CodeStructure, "the body is no JSON object, which %s takes", e.name)
		}
		form, err := interaction.ParseQuery(string(body))
		if err != nil {
			return nil, raw, err
		}
		body, values = nil, mergeValues(values, form)
	}
	if len(values) > 0 {
		hc.Query = make(map[string]any, len(values))
		for name, list := range values {
			if hc.Query[name] = any(list); len(list) == 1 {
				hc.Query[name] = list[0]
			}
		}
	}
	if q.ID != "" && e.kind != "write" {
		read, err := p.Service.Read(ctx, interaction.ReadParams{ResourceType: e.typ, ID: q.ID})
		if err != nil {
			return nil, raw, err
		}
		hc.Resource = read.Version.Body
	}
	switch {
	case e.kind == "write":
		if hc.Resource, err = p.written(e, q.ID, body); err != nil {
			return nil, raw, err
		}
		if q.ID != "" {
			if err = p.Service.MayReplace(ctx, e.typ, q.ID); err != nil {
				return nil, raw, err
			}
		}
	case len(body) > 0:
		if raw, hc.RawParameters, err = p.readParameters(body); err != nil {
			return nil, nil, err
		}
		hc.Parameters = raw
		if hc.RawParameters != nil {
			raw = hc.RawParameters
		}
	}
	return hc, raw, nil
}

func mergeValues(a, b url.Values) url.Values {
	out := make(url.Values, len(a)+len(b))
	for _, v := range []url.Values{a, b} {
		for name, list := range v {
			out[name] = append(out[name], list...)
		}
	}
	return out
}

// written is the body of a write: a resource of the type.
func (p *Platform) written(e *entry, id string, body []byte) (json.RawMessage, error) {
	if len(body) == 0 {
		return nil, outcome.New(outcome.CodeRequired, "%s needs a resource of type %s in the body", e.name, e.typ)
	}
	r, err := fhir.Decode(p.Service.Model, body)
	if err != nil {
		return nil, err
	}
	if got := r.Type().Name; got != e.typ {
		return nil, outcome.Invalid("the body is a resource of type %s, the URL names %s", got, e.typ)
	}
	if got := r.Header().ID.Text; id != "" && got != id {
		return nil, outcome.Invalid("the body has the id %q, the URL names %q", clip(got), id)
	}
	return body, nil
}

// readParameters reads {"parameters": {…}}, FHIR Parameters, or an empty object: raw are
// Parameters as they came.
func (p *Platform) readParameters(body []byte) (plain, raw json.RawMessage, err error) {
	var head struct {
		ResourceType string          `json:"resourceType"`
		Parameters   json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return nil, nil, outcome.New(outcome.CodeStructure, "the body cannot be read: %s", outcome.JSONProblem(err))
	}
	switch {
	case head.ResourceType == "Parameters":
		if _, err := fhir.Decode(p.Service.Model, body); err != nil {
			return nil, nil, err
		}
		list, err := parameters.Read(body)
		if err != nil {
			return nil, nil, outcome.New(outcome.CodeStructure, "the body cannot be read: %v", err)
		}
		if nameless(list) {
			return nil, nil, outcome.UnprocessableContent(outcome.CodeRequired, "a parameter has no name: name is required")
		}
		plain, err := json.Marshal(plainObject(list))
		return plain, body, err
	case head.ResourceType != "":
		return nil, nil, outcome.Invalid("the body is a resource of type %s: expected Parameters or {\"parameters\": {…}}", clip(head.ResourceType))
	case string(head.Parameters) == "null", head.Parameters == nil && len(bytes.TrimSpace(body[1:])) == 1: // {}
		return nil, nil, nil
	case head.Parameters == nil:
		return nil, nil, outcome.Invalid("the body has no parameters: expected Parameters or {\"parameters\": {…}}")
	case bytes.TrimSpace(head.Parameters)[0] != '{':
		return nil, nil, outcome.Invalid("parameters is no object")
	}
	return head.Parameters, nil, nil
}

// nameless reports whether a parameter, or a part of one, has no name.
func nameless(list []parameters.Parameter) bool {
	return slices.ContainsFunc(list, func(q parameters.Parameter) bool { return q.Name == "" || nameless(q.Part) })
}

// plainObject makes a plain object of parameters: a repeated name is an array, a part an
// object.
func plainObject(list []parameters.Parameter) map[string]any {
	out := make(map[string]any, len(list))
	repeated := make(map[string]bool)
	for _, q := range list {
		var v any = q.Value
		switch {
		case q.Resource != nil:
			v = q.Resource
		case len(q.Part) > 0:
			v = plainObject(q.Part)
		case q.Value == nil:
			v = nil
		}
		switch before, ok := out[q.Name]; {
		case !ok:
			out[q.Name] = v
		case repeated[q.Name]:
			out[q.Name] = append(before.([]any), v)
		default:
			out[q.Name], repeated[q.Name] = []any{before, v}, true
		}
	}
	return out
}

// audit is the AuditEvent of an operation. docs/contract.md, specification, AuditEvent.

// auditRun returns the AuditEvent of a run.
func (p *Platform) auditRun(ctx context.Context, e *entry, q interaction.OperationParams, status int, failed error) *journal.AuditEvent {
	on := ""
	if q.ID != "" {
		on = e.typ + "/" + q.ID
	}
	return journal.NewAuditEvent(e.app, e.name, on, access.PrincipalFrom(ctx), p.Now(), status, failed)
}

// operationPath reads "Type/id/$name?query" of fhir.operation.
func operationPath(path string) (q interaction.OperationParams, err error) {
	path, query, _ := strings.Cut(strings.Trim(path, "/"), "?")
	parts := strings.Split(path, "/")
	q.Name = parts[len(parts)-1]
	if !strings.HasPrefix(q.Name, "$") || len(parts) > 3 {
		return q, outcome.Invalid("%q is no path of an operation: expected [Type/[id/]]$name", clip(path))
	}
	if len(parts) > 1 {
		q.ResourceType = parts[0]
	}
	if len(parts) > 2 {
		q.ID = parts[1]
	}
	q.Values, err = interaction.ParseQuery(query)
	return q, err
}
