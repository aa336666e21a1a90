package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/web"
)

// Access serves /admin/policies. Its fields are set before Mount.
type Access struct {
	Decider  *access.Decider
	Policies *access.PolicySource
	Store    PolicyWriter
	// Changed is called after each change that an administrator has made; may be nil.
	Changed func(ctx context.Context, r *http.Request, x *web.Exchange, what, to string)
}

// PolicyWriter changes stored policies.
type PolicyWriter interface {
	access.PolicyStore
	// ChangePolicy makes a policy what change makes of its JSON, nil for none; nil
	// deletes it.
	ChangePolicy(ctx context.Context, name string, change func(old []byte) ([]byte, error)) (created bool, err error)
}

// Mount serves the paths, to administrators.
func (a *Access) Mount(m *web.Mux) {
	handle := func(pattern string, do func(x *web.Exchange, r *http.Request) error) {
		m.HandleFunc(web.Admin, pattern, func(w http.ResponseWriter, r *http.Request) {
			x := w.(*web.Exchange)
			x.Header().Set("Cache-Control", "no-store")
			if err := do(x, r); err != nil {
				x.Fail(r, err)
			}
		})
	}
	change := func(pattern, to string, do func(x *web.Exchange, r *http.Request) (name string, err error)) {
		handle(pattern, func(x *web.Exchange, r *http.Request) error {
			name, err := do(x, r)
			if err == nil && a.Changed != nil {
				a.Changed(r.Context(), r, x, "policy "+name, to)
			}
			return err
		})
	}
	handle("GET /admin/policies", a.list)
	change("POST /admin/policies", "created", a.create)
	handle("GET /admin/policies/{name}", a.read)
	change("PUT /admin/policies/{name}", "replaced", named(a.replace))
	change("PATCH /admin/policies/{name}", "changed", named(a.merge))
	change("DELETE /admin/policies/{name}", "deleted", named(a.delete))
}

// named is a handler of a policy that its path names.
func named(do func(x *web.Exchange, r *http.Request) error) func(x *web.Exchange, r *http.Request) (string, error) {
	return func(x *web.Exchange, r *http.Request) (string, error) { return r.PathValue("name"), do(x, r) }
}

// policy is a policy as it is answered; id is its name, by which its path goes.
type policy struct {
	ID string `json:"id"`
	*access.Policy
	// DryRunDenied counts the requests on this server that a dry run would have denied.
	DryRunDenied int64 `json:"dryRunDenied"`
}

func answerOf(p *access.Policy) policy { return policy{p.Name, p, p.Denied()} }

// maxDocument bounds the body of a request.
const maxDocument = 256 << 10

func body(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(err)
	case len(b) > maxDocument:
		return nil, outcome.New(outcome.CodeTooLong, "the body is larger than %d bytes", maxDocument)
	}
	return b, nil
}

// current are the policies as they are stored now.
func (a *Access) current(ctx context.Context) ([]*access.Policy, error) {
	if err := a.Policies.Load(ctx); err != nil {
		return nil, err
	}
	p, err := a.Policies.Current(ctx)
	if err != nil {
		return nil, err
	}
	return p.List, nil
}

func (a *Access) list(x *web.Exchange, r *http.Request) error {
	list, err := a.current(r.Context())
	if err != nil {
		return err
	}
	out := make([]policy, len(list))
	for i, p := range list {
		out[i] = answerOf(p)
	}
	x.SendJSON(r, http.StatusOK, out)
	return nil
}

func (a *Access) read(x *web.Exchange, r *http.Request) error {
	return a.tell(x, r, http.StatusOK, r.PathValue("name"))
}

// tell answers with a policy as it is stored.
func (a *Access) tell(x *web.Exchange, r *http.Request, status int, name string) error {
	list, err := a.current(r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(p *access.Policy) bool { return p.Name == name })
	if i < 0 {
		return noPolicy(name)
	}
	x.SendJSON(r, status, answerOf(list[i]))
	return nil
}

func noPolicy(name string) error {
	return outcome.New(outcome.CodeNotFound, "there is no policy %q", name)
}

// document reads a client's policy without the members that answers add. If it replaces
// old, only the different parts must pass today's checks.
func (a *Access) document(ctx context.Context, raw []byte, name string, old []byte) (*access.Policy, []byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return nil, nil, outcome.New(outcome.CodeStructure, "the body is no JSON object").Because(err)
	}
	if err := onceEach(raw); err != nil {
		return nil, nil, err
	}
	delete(fields, "id")
	delete(fields, "dryRunDenied")
	if name != "" {
		var own string
		if given, ok := fields["name"]; ok && (json.Unmarshal(given, &own) != nil || own != name) {
			return nil, nil, outcome.Invalid("the body has the name %s, the URL names %q", given, name)
		}
		fields["name"], _ = json.Marshal(name)
	}
	clean, err := json.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	p, err := a.Decider.ParsePolicy(ctx, clean)
	if err != nil {
		return nil, nil, err
	}
	var before *access.Policy
	if old != nil {
		_ = json.Unmarshal(old, &before) // nothing, where it cannot be read any more
	}
	if err := a.Decider.CheckPolicy(p, before); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(p)
	return p, text, err
}

// onceEach fails if an object of a document has a member twice: readers disagree on which
// one counts. Case makes no difference, as readers ignore it.
func onceEach(document []byte) error {
	in := json.NewDecoder(bytes.NewReader(document))
	type level struct {
		seen  map[string]bool // nil in an array
		value bool            // the next token is the value of a member
	}
	var levels []level
	for {
		token, err := in.Token()
		if err != nil {
			return nil // its end, or an error that the later decoding reports
		}
		if name, ok := token.(string); ok && len(levels) > 0 {
			if at := &levels[len(levels)-1]; at.seen != nil && !at.value {
				folded := strings.ToLower(strings.ToUpper(name))
				if at.seen[folded] {
					return outcome.Invalid("the body has the member %q twice", outcome.Clip(name))
				}
				at.seen[folded], at.value = true, true
				continue
			}
		}
		if len(levels) > 0 {
			levels[len(levels)-1].value = false
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{seen: make(map[string]bool)})
		case json.Delim('['):
			levels = append(levels, level{})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
	}
}

func (a *Access) create(x *web.Exchange, r *http.Request) (name string, err error) {
	raw, err := body(r)
	if err != nil {
		return "", err
	}
	p, text, err := a.document(r.Context(), raw, "", nil)
	if err != nil {
		return "", err
	}
	if _, err := a.Store.ChangePolicy(r.Context(), p.Name, func(old []byte) ([]byte, error) {
		if old != nil {
			return nil, outcome.Conflict("there is a policy %q already", p.Name)
		}
		return text, nil
	}); err != nil {
		return "", err
	}
	x.Header().Set("Location", "/admin/policies/"+url.PathEscape(p.Name))
	return p.Name, a.tell(x, r, http.StatusCreated, p.Name)
}

func (a *Access) replace(x *web.Exchange, r *http.Request) error {
	name := r.PathValue("name")
	raw, err := body(r)
	if err != nil {
		return err
	}
	_, text, err := a.document(r.Context(), raw, name, nil)
	if err != nil {
		return err
	}
	created, err := a.Store.ChangePolicy(r.Context(), name, func([]byte) ([]byte, error) { return text, nil })
	if err != nil {
		return err
	}
	if created {
		return a.tell(x, r, http.StatusCreated, name)
	}
	return a.tell(x, r, http.StatusOK, name)
}

// merge is a JSON merge patch. Spec: RFC 7396.
func (a *Access) merge(x *web.Exchange, r *http.Request) error {
	name := r.PathValue("name")
	raw, err := body(r)
	if err != nil {
		return err
	}
	if _, err := a.Store.ChangePolicy(r.Context(), name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, noPolicy(name)
		}
		if err := onceEach(raw); err != nil {
			return nil, err
		}
		next, err := jsonpatch.MergePatch(old, raw)
		if err != nil {
			return nil, outcome.New(outcome.CodeStructure, "the body is no JSON object").Because(err)
		}
		_, text, err := a.document(r.Context(), next, name, old)
		return text, err
	}); err != nil {
		return err
	}
	return a.tell(x, r, http.StatusOK, name)
}

func (a *Access) delete(x *web.Exchange, r *http.Request) error {
	if _, err := a.Store.ChangePolicy(r.Context(), r.PathValue("name"), func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		return err
	}
	if err := a.Policies.Load(r.Context()); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}
