package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"kiln/gen/r4"
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
		InTx:   func(context.Context, *store.Tx, []*store.Write) (bool, error) { return true, nil },
	}
}

func (p *Platform) before(ctx context.Context, tx *store.Tx, ws []*store.Write) error {
	if err := tx.BumpApps(ctx); err != nil {
		return err
	}
	for i, w := range ws {
		if w.Method == fhir.DELETE {
			continue
		}
		current, err := tx.Read(ctx, "App", w.ID)
		if e, ok := outcome.From(err); ok && e.HTTPStatus() < 500 {
			current, err = fhir.Version{}, nil
		}
		if err != nil {
			return err
		}
		if w.Modify != nil {
			w.Modify = p.checkedModify(ctx, tx, w.ID, w.Modify)
			continue
		}
		next, ok := w.Resource.(*r4.App)
		if !ok {
			continue
		}
		if err := p.check(ctx, tx, w.ID, next, current.Body); err != nil {
			return &store.WriteError{Index: i, Err: err}
		}
	}
	return nil
}

// checkedModify checks what a patch makes.
func (p *Platform) checkedModify(ctx context.Context, tx *store.Tx, id string, modify func(fhir.Version) (*fhir.Body, *fhir.Index, error)) func(fhir.Version) (*fhir.Body, *fhir.Index, error) {
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
			if err := p.check(ctx, tx, id, next, current.Body); err != nil {
				return nil, nil, err
			}
		}
		return body, x, nil
	}
}

// check judges an App that is to be stored in place of before, which may be nil.
func (p *Platform) check(ctx context.Context, tx *store.Tx, id string, a *r4.App, before []byte) error {
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
	if n := len(a.Operations); n > p.Config.MaxOperations {
		return unprocessable("App.operations", "the App has %d operations; at most %d are allowed (apps.max_operations_per_app)", n, p.Config.MaxOperations)
	}
	seen := make(map[key]bool)
	for i := range a.Operations {
		at := fmt.Sprintf("App.operations[%d]", i)
		if err := p.checkOperation(ctx, at, status, &a.Operations[i]); err != nil {
			return err
		}
		k := keyOf(&a.Operations[i])
		if seen[k] {
			return unprocessable(at+".name", "the App has two operations %s on %s", k.name, k.typ)
		}
		seen[k] = true
	}
	if status != "active" {
		return nil
	}
	if len(a.Subscriptions) > 0 {
		return unprocessable("App.subscriptions", "this server runs no subscriptions of Apps: keep the App in draft, or leave them out")
	}
	return p.checkUnique(ctx, tx, id, seen)
}

// checkOperation judges one operation.
func (p *Platform) checkOperation(ctx context.Context, at, status string, o *r4.AppOperations) error {
	name, typ := o.Name.Text, o.ResourceType.Text
	switch {
	case !namePattern.MatchString(name):
		return unprocessable(at+".name", "%q is no name of an operation: expected a letter and up to 63 letters, digits and -, without $", clip(name))
	case p.Own.Has("$" + name):
		return unprocessable(at+".name", "$%s is an operation of the server itself", name)
	case p.Service.Model.Resources[typ] == nil:
		return unprocessable(at+".resourceType", "%q is no resource type", clip(typ))
	case o.Handler == nil:
		return unprocessable(at+".handler", "the operation has no handler")
	}
	h := o.Handler
	at += ".handler"
	auth := h.Auth.Text
	switch auth {
	case "", "none", "caller", "app":
	default:
		return unprocessable(at+".auth", "auth is %q: expected none, caller or app", clip(auth))
	}
	active := status == "active"
	switch h.Type_.Text {
	case "javascript":
		switch {
		case h.Code.Text == "":
			return unprocessable(at+".code", "a javascript handler needs code")
		case active && auth == "app":
			return unprocessable(at+".auth", "this server gives Apps no credentials of their own: a script runs with the caller's rights")
		case len(h.AllowHosts) > 0 && active:
			return unprocessable(at+".allowHosts", "this server has no fetch for scripts")
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
		return err
	case "http":
		if _, err := p.remoteOf(at, h); err != nil {
			return err
		}
		if active && auth == "app" {
			return unprocessable(at+".auth", "this server gives Apps no credentials of their own: expected none or caller")
		}
	case "internal":
		internal := findInternal(h.URL.Text)
		switch {
		case internal == nil:
			var names []string
			for _, h := range internalHandlers {
				names = append(names, "internal:"+h.Name)
			}
			return unprocessable(at+".url", "%q is no internal handler: expected %s", clip(h.URL.Text), strings.Join(names, ", "))
		case len(internal.Types) > 0 && !slices.Contains(internal.Types, typ):
			return unprocessable(at+".url", "internal:%s is for %s, not %s", internal.Name, strings.Join(internal.Types, ", "), typ)
		case active && internal.code != "" && !p.Pool.Supported():
			return unprocessable(at+".url", "internal:%s needs a sandbox, which this server's platform does not have", internal.Name)
		case active && auth == "app":
			return unprocessable(at+".auth", "an internal handler runs with the caller's rights")
		}
	default:
		return unprocessable(at+".type", "%q is no handler of an operation: expected http, javascript or internal", clip(h.Type_.Text))
	}
	return nil
}

// checkUnique refuses an operation that another active App has.
func (p *Platform) checkUnique(ctx context.Context, tx *store.Tx, id string, own map[key]bool) error {
	others, err := p.active(ctx, tx)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Header().ID.Text == id {
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

// active reads the active Apps, by id.
func (p *Platform) active(ctx context.Context, from searcher) ([]*r4.App, error) {
	var out []*r4.App
	for cursor := ""; ; {
		values := url.Values{"status": {"active"}, "_count": {"200"}, "_total": {"none"}}
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
			if a, ok := r.(*r4.App); ok {
				out = append(out, a)
			}
		}
		if !page.HasNext {
			return out, nil
		}
		cursor = page.Last
	}
}
