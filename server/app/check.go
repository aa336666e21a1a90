package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/app/eventfilter"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// transitions are the states that an App can go to from a state; "" is
// the state of a new App. The contract, Apps section 1.
var transitions = map[string][]string{
	"":         {"draft", "active"},
	"draft":    {"draft", "active", "retired"},
	"active":   {"active", "inactive", "retired"},
	"inactive": {"inactive", "active", "retired"},
	"retired":  nil,
}

var namePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)

// unprocessable is a 422 about an element.
func unprocessable(at, format string, args ...any) *outcome.Error {
	return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...), Expression: at}})
}

// Hook checks Apps as they are written, one transaction after the other.
func (p *Platform) Hook() store.Hook {
	return store.Hook{
		Before: p.before,
		InTx:   p.after,
	}
}

// after makes the client of a new App, and removes the data of a deleted one.
func (p *Platform) after(ctx context.Context, tx *store.Tx, ws []*store.Write) (changed bool, err error) {
	for _, w := range ws {
		current, err := tx.Read(ctx, "App", w.ID)
		if err != nil && !outcome.Theirs(err) {
			return false, err
		}
		if err := p.registerBody(ctx, tx, w.ID, current.Body, false); err != nil {
			return false, err
		}
		switch {
		case w.Method == fhir.DELETE:
			if err := db.New(tx.Conn()).DeleteAppSecrets(ctx, w.ID); err != nil {
				return false, err
			}
			if p.Clients != nil {
				if err := p.Clients.Remove(ctx, tx.Conn(), w.ID); err != nil {
					return false, err
				}
			}
		case w.Created && p.Clients != nil:
			name := ""
			if a, ok := w.Resource.(*r4.App); ok {
				name = a.Name.Text
			}
			if err := p.Clients.Make(ctx, tx.Conn(), w.ID, name); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func (p *Platform) before(ctx context.Context, tx *store.Tx, ws []*store.Write) error {
	if err := tx.BumpApps(ctx); err != nil {
		return err
	}
	together := together{make(map[string]bool), make(map[key]string)}
	for _, w := range ws {
		if w.Modify == nil {
			together.replaced[w.ID] = true
		}
	}
	for i, w := range ws {
		current, err := tx.Read(ctx, "App", w.ID)
		if outcome.Theirs(err) {
			current, err = fhir.Version{}, nil
		}
		if err != nil {
			return err
		}
		// An App from before subscriptions had identities: its pending deliveries go by position.
		if len(current.Body) > 0 {
			if err := p.registerBody(ctx, tx, w.ID, current.Body, true); err != nil {
				return err
			}
		}
		if w.Method == fhir.DELETE {
			continue
		}
		if w.Modify != nil {
			w.Modify = p.checkedModify(ctx, tx, w.ID, w.Modify, together)
			continue
		}
		next, ok := w.Resource.(*r4.App)
		if !ok {
			continue
		}
		if err := p.check(ctx, tx, w.ID, next, current.Body, together); err != nil {
			return &store.WriteError{Index: i, Err: err}
		}
		if err := together.take(w.ID, next); err != nil {
			return &store.WriteError{Index: i, Err: err}
		}
	}
	return nil
}

// together are the Apps that one transaction writes.
type together struct {
	replaced map[string]bool // by id: written anew or deleted; the operations of before do not count
	taken    map[key]string  // operations, by the id of the App that has them now
}

// take notes the operations of an App as it is to be. It fails where another App of the same
// transaction has one of them.
func (t together) take(id string, a *r4.App) error {
	if a.Status.Text != "active" {
		return nil
	}
	for i := range a.Operations {
		k := keyOf(&a.Operations[i])
		if other, ok := t.taken[k]; ok && other != id {
			return unprocessable("App.operations", "App/%s of the same Bundle has an operation %s on %s too", other, k.name, k.typ)
		}
		t.taken[k] = id
	}
	return nil
}

// checkedModify checks the result of a patch.
func (p *Platform) checkedModify(ctx context.Context, tx *store.Tx, id string, modify func(fhir.Version) (*fhir.Body, *fhir.Index, error), together together) func(fhir.Version) (*fhir.Body, *fhir.Index, error) {
	return func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		body, x, err := modify(current)
		if err != nil {
			return nil, nil, err
		}
		r, err := fhir.Decode(p.Service.Model, body.Render(nil, id, current.VersionID, current.LastUpdated))
		if err != nil {
			return nil, nil, err
		}
		if next, ok := r.(*r4.App); ok {
			if err := p.check(ctx, tx, id, next, current.Body, together); err != nil {
				return nil, nil, err
			}
			if err := together.take(id, next); err != nil {
				return nil, nil, err
			}
		}
		return body, x, nil
	}
}

// check judges an App that is to be stored in place of before, which may be nil.
func (p *Platform) check(ctx context.Context, tx *store.Tx, id string, a *r4.App, before []byte, together together) error {
	var was struct{ Status string }
	if before != nil {
		if err := json.Unmarshal(before, &was); err != nil {
			return fmt.Errorf("resource App/%s: %w", id, err)
		}
	}
	status := a.Status.Text
	if status == "" {
		return unprocessable("App.status", "an App needs a status: draft or active for a new one")
	}
	if allowed := transitions[was.Status]; !slices.Contains(allowed, status) {
		switch {
		case was.Status == "retired":
			return unprocessable("App.status", "a retired App can only be deleted")
		case was.Status == "":
			return unprocessable("App.status", "a new App is draft or active, not %q", clip(status))
		}
		return unprocessable("App.status", "an App that is %s cannot become %q; it can become %s", was.Status, clip(status), strings.Join(allowed, ", "))
	}
	if n, most := len(a.Operations), p.Config().MaxOperations; n > most {
		return unprocessable("App.operations", "the App has %d operations; at most %d are allowed (apps.max_operations_per_app)", n, most)
	}
	if n := len(a.Subscriptions); n > maxSubscriptions {
		return unprocessable("App.subscriptions", "the App has %d subscriptions; at most %d are allowed", n, maxSubscriptions)
	}
	active := status == "active"
	seen := make(map[key]bool)
	for i := range a.Operations {
		at := fmt.Sprintf("App.operations[%d]", i)
		if err := p.checkOperation(ctx, at, active, &a.Operations[i]); err != nil {
			return err
		}
		k := keyOf(&a.Operations[i])
		if seen[k] {
			return unprocessable(at+".name", "the App has two operations %s on %s", k.name, k.typ)
		}
		seen[k] = true
		if active && a.Operations[i].Handler.Auth.Text == "app" {
			if err := p.checkGranted(ctx, id, at+".handler.auth", "the handler has auth app"); err != nil {
				return err
			}
		}
	}
	names := make(map[string]bool)
	for i := range a.Subscriptions {
		if name := a.Subscriptions[i].Name.Text; name != "" && names[name] {
			return unprocessable(fmt.Sprintf("App.subscriptions[%d].name", i), "the App has two subscriptions of the name %q", clip(name))
		} else if name != "" {
			names[name] = true
		}
		if err := p.checkSubscription(ctx, fmt.Sprintf("App.subscriptions[%d]", i), active, &a.Subscriptions[i]); err != nil {
			return err
		}
	}
	if !active {
		return nil
	}
	if len(a.Subscriptions) > 0 {
		if !p.Config().Notifications {
			return unprocessable("App.subscriptions", "this server delivers no events: notifications.enabled is off")
		}
		if err := p.checkGranted(ctx, id, "App.subscriptions", "the App has subscriptions"); err != nil {
			return err
		}
	}
	return p.checkUnique(ctx, tx, id, seen, together)
}

// maxSubscriptions bounds the subscriptions of one App.
const maxSubscriptions = 100

// reservedNames are operations of the server beside FHIR's, by resource type; "" is every type.
var reservedNames = map[string][]string{
	"":             {"events", "events-history", "notify"},
	"App":          {"log"},
	"Subscription": {"secret", "status", "test"},
}

// checkOperation judges one operation.
func (p *Platform) checkOperation(ctx context.Context, at string, active bool, o *r4.AppOperations) error {
	name, typ := o.Name.Text, o.ResourceType.Text
	switch {
	case !namePattern.MatchString(name):
		return unprocessable(at+".name", "%q is no name of an operation: expected a letter and up to 63 letters, digits and -, without $", clip(name))
	case p.Own.Has("$"+name) || slices.Contains(reservedNames[""], name) || slices.Contains(reservedNames[typ], name):
		return unprocessable(at+".name", "$%s is an operation of the server itself", name)
	case p.Service.Model.Resources[typ] == nil:
		return unprocessable(at+".resourceType", "%q is no resource type", clip(typ))
	case !slices.Contains([]string{"read", "write", "search", "execute"}, o.Type_.Text):
		return unprocessable(at+".type", "%q is no type of an operation: expected read, write, search or execute", clip(o.Type_.Text))
	case o.Handler == nil:
		return unprocessable(at+".handler", "the operation has no handler")
	}
	return p.checkHandler(ctx, at+".handler", active, typ, o.Handler, false)
}

// checkSubscription judges one subscription.
func (p *Platform) checkSubscription(ctx context.Context, at string, active bool, s *r4.AppSubscriptions) error {
	typ := s.ResourceType.Text
	if p.Service.Model.Resources[typ] == nil {
		return unprocessable(at+".resourceType", "%q is no resource type", clip(typ))
	}
	if _, err := kindsOf(s.Events); err != nil {
		return unprocessable(at+".events", "%v", err)
	}
	if _, err := eventfilter.CompileFilter(p.Service.Model, typ, s.Filter.Text); err != nil {
		return unprocessable(at+".filter", "%v", err)
	}
	if s.Handler == nil {
		return unprocessable(at+".handler", "the subscription has no handler")
	}
	return p.checkHandler(ctx, at+".handler", active, typ, handlerOf(s.Handler), true)
}

// The bounds of a retryPolicy.
const (
	maxRetries = 20
	maxBackoff = 24 * 60 * 60 // seconds
)

// checkRetries judges a retryPolicy.
func checkRetries(at string, r *r4.AppOperationsHandlerRetryPolicy) error {
	if r == nil {
		return nil
	}
	if text := r.MaxRetries.Text; text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 0 || n > maxRetries {
			return unprocessable(at+".maxRetries", "maxRetries is %s: expected 0 to %d", clip(text), maxRetries)
		}
	}
	if len(r.BackoffSeconds) > maxRetries {
		return unprocessable(at+".backoffSeconds", "backoffSeconds has %d values: at most %d", len(r.BackoffSeconds), maxRetries)
	}
	for i := range r.BackoffSeconds {
		if n, err := strconv.Atoi(r.BackoffSeconds[i].Text); err != nil || n < 0 || n > maxBackoff {
			return unprocessable(fmt.Sprintf("%s.backoffSeconds[%d]", at, i), "backoffSeconds has %s: expected 0 to %d", clip(r.BackoffSeconds[i].Text), maxBackoff)
		}
	}
	return nil
}

var hostPattern = regexp.MustCompile(`^(?i:[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)

// checkHandler judges the handler of an operation, or of a subscription.
func (p *Platform) checkHandler(ctx context.Context, at string, active bool, typ string, h *r4.AppOperationsHandler, subscription bool) error {
	auth := h.Auth.Text
	switch auth {
	case "", "none", "app":
	case "caller":
		if subscription {
			return unprocessable(at+".auth", "an event has no caller: a subscription runs as the App's own client")
		}
	default:
		return unprocessable(at+".auth", "auth is %q: expected none, caller or app", clip(auth))
	}
	if err := checkRetries(at+".retryPolicy", h.RetryPolicy); err != nil {
		return err
	}
	for i := range h.AllowHosts {
		if host := h.AllowHosts[i].Text; len(host) > 260 || !hostPattern.MatchString(host) {
			return unprocessable(fmt.Sprintf("%s.allowHosts[%d]", at, i), "%q is no host: expected a name such as api.example.org, with a port or without", clip(host))
		}
	}
	switch kind := h.Type_.Text; {
	case kind == "javascript":
		switch {
		case strings.TrimSpace(h.Code.Text) == "":
			return unprocessable(at+".code", "a javascript handler needs code")
		case !p.Pool.Supported() && active:
			return unprocessable(at+".type", "this server has no sandbox for scripts: its platform cannot hold them")
		case !p.Pool.Supported():
			return nil
		}
		var f *sandbox.Failure
		err := p.Pool.Check(ctx, h.Code.Text)
		if errors.As(err, &f) && f.Kind != sandbox.KindWorker {
			return unprocessable(at+".code", "line %d, column %d: %s", f.Line, f.Column, f.Message)
		}
		if errors.Is(err, sandbox.ErrNoWorker) {
			return outcome.Unavailable("the script of %s cannot be checked now: no sandbox runs", at).Because(err)
		}
		return err
	case kind == "http", kind == "webhook" && subscription:
		return p.checkRemote(at, h)
	case kind == "internal":
		internal, _, err := findInternal(h.URL.Text)
		switch {
		case err != nil:
			return unprocessable(at+".url", "%v", err)
		case len(internal.Types) > 0 && !slices.Contains(internal.Types, typ):
			return unprocessable(at+".url", "internal:%s is for %s, not %s", internal.Name, strings.Join(internal.Types, ", "), typ)
		case active && internal.code != "" && !p.Pool.Supported():
			return unprocessable(at+".url", "internal:%s needs a sandbox, which this server's platform does not have", internal.Name)
		}
	case subscription:
		return unprocessable(at+".type", "%q is no handler of a subscription: expected webhook, http, javascript or internal", clip(kind))
	default:
		return unprocessable(at+".type", "%q is no handler of an operation: expected http, javascript or internal", clip(kind))
	}
	return nil
}

// readApp is an App as it is stored. It fails with not-found and deleted.
func (p *Platform) readApp(ctx context.Context, id string) (*r4.App, error) {
	v, err := p.Store.Read(ctx, "App", id)
	if err != nil {
		return nil, err
	}
	r, err := fhir.Decode(p.Service.Model, v.Body)
	if err != nil {
		return nil, fmt.Errorf("resource App/%s: %w", id, err)
	}
	a, ok := r.(*r4.App)
	if !ok {
		return nil, fmt.Errorf("resource App/%s is no App", id)
	}
	return a, nil
}

// checkUnique refuses an operation that another active App has, and keeps in this
// transaction.
func (p *Platform) checkUnique(ctx context.Context, tx *store.Tx, id string, own map[key]bool, together together) error {
	if len(own) == 0 {
		return nil
	}
	var names []string
	for k := range own {
		names = append(names, k.name[1:])
	}
	others, err := p.activeApps(ctx, tx, names...)
	if err != nil {
		return err
	}
	for _, o := range others {
		if other := o.Header().ID.Text; other == id || together.replaced[other] {
			continue
		}
		for i := range o.Operations {
			if k := keyOf(&o.Operations[i]); own[k] {
				return unprocessable("App.operations", "the active App %q (App/%s) has an operation %s on %s already", clip(o.Name.Text), o.Header().ID.Text, k.name, k.typ)
			}
		}
	}
	return nil
}

// activeApps reads the active Apps, by id: all, or those with an operation of one of some names.
func (p *Platform) activeApps(ctx context.Context, from searcher, operations ...string) ([]*r4.App, error) {
	var out []*r4.App
	for cursor := ""; ; {
		// An index that is being rebuilt finds no Apps by their status.
		values := url.Values{"_count": {"200"}, "_total": {"none"}}
		if len(operations) > 0 {
			values.Set("operation", strings.Join(operations, ","))
		}
		if cursor != "" {
			values.Set("_cursor", cursor)
		}
		q, err := search.Parse(p.Service.Parameters.Current(), "App", values, search.Options{MaxCount: 200})
		if err != nil {
			return nil, err
		}
		page, err := from.Search(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, v := range page.Matches {
			r, err := fhir.Decode(p.Service.Model, v.Body)
			if err != nil {
				return nil, fmt.Errorf("resource App/%s: %w", v.ID, err)
			}
			if a, ok := r.(*r4.App); ok && a.Status.Text == "active" {
				out = append(out, a)
			}
		}
		if !page.HasNext {
			return out, nil
		}
		cursor = page.Last
	}
}
