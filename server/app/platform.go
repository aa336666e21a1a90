package app

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/operation"
	"kiln/server/outbound"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// Config is the configuration of the platform.
type Config struct {
	MaxOperations int           // of one App
	Timeout       time.Duration // of one operation
}

// Platform are the Apps of a server, and its operations with theirs. Its fields are set
// before first use.
type Platform struct {
	Service *interaction.Service
	Store   *store.Store
	Own     *operation.Set // the server's own operations
	Pool    *sandbox.Pool
	Config  Config
	// Outbound says which addresses http handlers may have.
	Outbound outbound.Rules
	// Bundle writes a Bundle as JSON, with links below base.
	Bundle func(base string, b *interaction.Bundle) []byte
	Now    func() time.Time
	Logger *slog.Logger

	remotes sync.Once
	http    *http.Client // of http handlers; client makes it

	mu    sync.Mutex
	state *snapshot
}

// client calls http handlers.
func (p *Platform) client() *http.Client {
	p.remotes.Do(func() { p.http = p.Outbound.Client() })
	return p.http
}

type searcher interface {
	Search(ctx context.Context, q *search.Query) (*store.SearchResult, error)
}

// key finds an operation of an App.
type key struct{ typ, name string }

func keyOf(o *r4.AppOperations) key { return key{o.ResourceType.Text, "$" + o.Name.Text} }

// entry is an operation of an active App.
type entry struct {
	app, version string // id and version of the App
	typ, name    string // name has its $
	kind         string // read, search, write, execute
	affects      bool
	code         string
	internal     *internalHandler
	remote       *remote // of an http handler
	broken       error   // why it cannot be called
}

// snapshot are the Apps of a version. It is never changed.
type snapshot struct {
	version    int64
	operations map[key]*entry
	byType     map[string][]*entry // by name
}

// now returns the Apps in force: as new as the last write that was acknowledged before.
func (p *Platform) now(ctx context.Context) (*snapshot, error) {
	version, err := p.Store.AppsVersion(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != nil && p.state.version >= version {
		return p.state, nil
	}
	apps, err := p.active(ctx, p.Store)
	if err != nil {
		return nil, err
	}
	next := &snapshot{version: version, operations: make(map[key]*entry), byType: make(map[string][]*entry)}
	for _, a := range apps {
		for i := range a.Operations {
			o := &a.Operations[i]
			e := &entry{app: a.Header().ID.Text, version: a.Version.Text, typ: o.ResourceType.Text, name: "$" + o.Name.Text, kind: o.Type_.Text}
			e.affects = e.kind == "write" || e.kind == "execute" && o.AffectsState.Text != "false"
			if o.Handler != nil {
				e.code = o.Handler.Code.Text
				if e.internal = findInternal(o.Handler.URL.Text); o.Handler.Type_.Text != "internal" {
					e.internal = nil
				} else if e.internal != nil {
					e.code = e.internal.code
				}
				if o.Handler.Type_.Text == "http" {
					// It was judged when it was written; the rules may have become stricter.
					if e.remote, e.broken = p.remoteOf("App.operations.handler", o.Handler); e.broken != nil {
						p.Logger.Warn("an operation of an App cannot be called", "app", e.app, "operation", e.name, "error", e.broken)
					}
				}
			}
			next.operations[key{e.typ, e.name}] = e
			next.byType[e.typ] = append(next.byType[e.typ], e)
		}
	}
	for _, list := range next.byType {
		slices.SortFunc(list, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	}
	p.state = next
	return next, nil
}

// latest is now, or what was in force last when the database does not say.
func (p *Platform) latest() *snapshot {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := p.now(ctx)
	if err == nil {
		return s
	}
	p.Logger.Warn("the Apps in force are not known", slog.Any("error", err))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == nil {
		return new(snapshot)
	}
	return p.state
}

// Affects reports whether an operation can change something where it is called.
func (p *Platform) Affects(q interaction.OperationParams) bool {
	if p.Own.Has(q.Name) {
		return p.Own.Affects(q)
	}
	// In a Bundle an App's operation is refused.
	return true
}

// Listed are the operations of a resource type, the server's own first.
func (p *Platform) Listed(typ string) []interaction.OperationListing {
	out := p.Own.Listed(typ)
	for _, e := range p.latest().byType[typ] {
		out = append(out, interaction.OperationListing{Name: e.name[1:], Definition: definitionURL(e)})
	}
	return out
}

// Version differs when Listed does.
func (p *Platform) Version() int64 { return p.Own.Version()<<32 + p.latest().version }

// formTypes are the content types of the body of an App's operation.
var formTypes = []string{"application/fhir+json", "application/json", "application/x-www-form-urlencoded"}

// Accepts are the content types of an operation's body, nil where it is a resource.
func (p *Platform) Accepts(name string) []string {
	if p.Own.Has(name) {
		return p.Own.Accepts(name)
	}
	return formTypes
}

// Run carries out an operation of the server or of an App.
func (p *Platform) Run(ctx context.Context, q interaction.OperationParams) (interaction.Response, error) {
	if p.Own.Has(q.Name) {
		return p.Own.Run(ctx, q)
	}
	apps, err := p.now(ctx)
	if err != nil {
		return interaction.Response{}, err
	}
	e := apps.operations[key{q.ResourceType, q.Name}]
	if e == nil {
		var near []string
		for _, o := range apps.byType[q.ResourceType] {
			near = append(near, o.name)
		}
		_, err := p.Own.Run(ctx, q)
		if o, ok := outcome.From(err); ok && len(near) > 0 {
			o.Issues[0].Diagnostics += ", of Apps " + strings.Join(near, ", ")
		}
		return interaction.Response{}, err
	}
	if q.Bundled {
		return interaction.Response{}, outcome.NotSupported("%s is an operation of an App, which batches and transactions do not serve", q.Name)
	}
	return p.operate(ctx, e, q)
}

// definitionURL is the canonical of the OperationDefinition of an App's operation.
func definitionURL(e *entry) string {
	return "http://kiln/fhir/OperationDefinition/" + definitionID(e)
}

func definitionID(e *entry) string { return clipID("app-" + e.typ + "-" + e.name[1:]) }

func clipID(s string) string { return s[:min(len(s), 64)] }

// Definition returns the OperationDefinition of an active App's operation.
func (p *Platform) Definition(id string) ([]byte, bool, error) {
	if !strings.HasPrefix(id, "app-") {
		return nil, false, nil
	}
	for _, list := range p.latest().byType {
		for _, e := range list {
			if definitionID(e) == id {
				return e.definition(), true, nil
			}
		}
	}
	return nil, false, nil
}

// definition is the OperationDefinition of the operation.
func (e *entry) definition() []byte {
	text := func(s string) fhir.Primitive { return fhir.Primitive{Text: s} }
	flag := func(b bool) fhir.Boolean {
		if b {
			return fhir.Boolean{Primitive: text("true")}
		}
		return fhir.Boolean{Primitive: text("false")}
	}
	d := &r4.OperationDefinition{
		URL: fhir.URI{Primitive: text(definitionURL(e))}, Name: fhir.String{Primitive: text(strings.ReplaceAll(e.name[1:], "-", "_"))},
		Status: fhir.Code{Primitive: text("active")}, Kind: fhir.Code{Primitive: text("operation")},
		Description:  fhir.Markdown{Primitive: text("An operation of type " + e.kind + " of App/" + e.app + ".")},
		AffectsState: flag(e.affects), Code: fhir.Code{Primitive: text(e.name[1:])},
		Resource: []fhir.Code{{Primitive: text(e.typ)}}, System: flag(false),
		Type_: flag(e.kind != "read"), Instance: flag(e.kind != "search"),
	}
	d.ID.Text = definitionID(e)
	d.Version.Text = e.version
	return fhir.Encode(nil, d)
}

// where says whether the operation can be called as q calls it.
func (e *entry) where(q interaction.OperationParams) error {
	method := q.Method
	if method == "" {
		if method = http.MethodPost; q.Read {
			method = http.MethodGet
		}
	}
	var forms []string
	instance := q.ID != ""
	switch e.kind {
	case "read":
		forms = []string{"GET instance"}
	case "search":
		forms = []string{"GET type", "POST type"}
	case "write":
		forms = []string{"POST type", "PUT instance"}
	default:
		forms = []string{"POST instance", "POST type"}
	}
	level := "type"
	if instance {
		level = "instance"
	}
	if slices.Contains(forms, method+" "+level) || method == http.MethodHead && slices.Contains(forms, "GET "+level) {
		return nil
	}
	return outcome.NotSupported("%s is of type %s and is called by %s", e.name, e.kind, strings.Join(forms, " or ")).WithStatus(http.StatusMethodNotAllowed)
}

// rights are the interactions that the caller must be allowed.
func (e *entry) rights() []access.Interaction {
	switch {
	case e.kind == "read", e.kind == "execute" && !e.affects:
		return []access.Interaction{access.Read}
	case e.kind == "search":
		return []access.Interaction{access.Search}
	case e.kind == "write":
		return []access.Interaction{access.Create, access.Update}
	}
	return []access.Interaction{access.Update}
}

// clip bounds what an error repeats of its input.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
