package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/app/eventfilter"
	"kiln/server/app/journal"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/notify/queue"
	"kiln/server/notify/webhook"
	"kiln/server/operation"
	"kiln/server/outbound"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// Config is the configuration of the platform.
type Config struct {
	Enabled        bool          // operations are served, and events delivered
	JavaScript     bool          // scripts run
	Notifications  bool          // events are delivered
	MaxOperations  int           // of one App
	Timeout        time.Duration // of one operation
	WebhookTimeout time.Duration // of one attempt to hand over an event
	WebhookRetries int           // of an event after the first attempt
	AllowFetch     bool          // scripts may fetch from the hosts that their App names
	LogRetention   time.Duration
	Address        string // base of the links in Bundles that scripts get, without a trailing slash
}

// Platform are the Apps of a server, and its operations with theirs. Its fields are set
// before first use.
type Platform struct {
	Service *interaction.Service
	Store   *store.Store
	Own     *operation.Set // the server's own operations
	Pool    *sandbox.Pool
	// Config is the configuration in force; Enabled says whether a feature flag is on for
	// the client of a request.
	Config  func() Config
	Enabled func(ctx context.Context, flag string) bool
	// Clients are the Apps' own clients; nil without authorization.
	Clients Clients
	// Events are notifications.
	Events Events
	// AuditWrites returns a context whose writes are recorded with an App as agent.
	AuditWrites func(ctx context.Context, app, requestID string) context.Context
	// Audit keeps the AuditEvents of operations.
	Audit queue.Audit
	// SecretKey seals secrets; "" keeps them as they are.
	SecretKey string
	// Outbound says which addresses http handlers may have, by the settings in force.
	Outbound func() outbound.Rules
	// Bundle writes a Bundle as JSON, with links below base.
	Bundle func(base string, b *interaction.Bundle) []byte
	Now    func() time.Time
	Logger *slog.Logger
	// Metrics gets the metrics of runs; may be nil.
	Metrics prometheus.Registerer

	runs    *runMetrics
	http    *http.Client // of http handlers
	journal *journal.Journal
	work    context.CancelFunc
	done    sync.WaitGroup

	mu    sync.Mutex
	state *snapshot
}

// The feature flags of the platform.
const (
	FlagApps       = "apps"
	FlagJavaScript = "apps.javascript"
)

// Start begins to keep what handlers did. Close ends it.
func (p *Platform) Start() {
	p.http = outbound.Client(p.Outbound)
	p.journal = journal.New(p.Store, p.Audit, p.Logger)
	p.runs = newRunMetrics(p, p.Metrics)
	p.journal.Ended = p.runs.countRun
	ctx, cancel := context.WithCancel(context.Background())
	p.work = cancel
	p.done.Go(func() { p.deleteOldLogs(ctx) })
}

// Reconfigured tells that Outbound may have become stricter.
func (p *Platform) Reconfigured() { p.http.CloseIdleConnections() }

// Close writes the pending records.
func (p *Platform) Close() {
	p.work()
	p.done.Wait()
	p.journal.Close()
	p.http.CloseIdleConnections()
}

type searcher interface {
	Search(ctx context.Context, q *search.Query) (*store.SearchResult, error)
}

// key finds an operation of an App.
type key struct{ typ, name string }

func keyOf(o *r4.AppOperations) key { return key{o.ResourceType.Text, "$" + o.Name.Text} }

// entry is an operation or a subscription of an active App, with its handler.
type entry struct {
	app, version, title string // id, version and name of the App
	typ                 string // resource type
	name, kind          string // of an operation, with $: read, search, write, execute
	subscription        string // of a subscription: App/id/number
	place               int    // of a subscription: its place in the App, from 0
	affects             bool   // data may be changed

	handler   string // http, webhook, javascript, internal
	auth      string // none, caller, app
	code      string
	hosts     []string // that a script may fetch from
	recursive bool
	internal  *internalHandler
	fixed     map[string]any // parameters in the url of an internal handler
	remote    *remote        // of an http handler
	broken    error          // why it cannot be called

	events matching.Kinds
	filter eventfilter.Filter
	policy webhook.Policy
}

// label names the entry in messages.
func (e *entry) label() string {
	if e.subscription != "" {
		return e.subscription
	}
	return e.name
}

// snapshot are the Apps of a version. It is never changed.
type snapshot struct {
	version       int64
	operations    map[key]*entry
	byType        map[string][]*entry // by name
	subscriptions map[string]*entry   // by subscriber
}

// currentSnapshot returns the Apps in force: as new as the last write that was acknowledged before.
func (p *Platform) currentSnapshot(ctx context.Context) (*snapshot, error) {
	version, err := p.Store.AppsVersion(ctx)
	if err != nil {
		return nil, err
	}
	return p.since(ctx, version)
}

// last returns the Apps that were in force last, without asking; nil where none are known.
func (p *Platform) last() *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Forget makes the platform read the Apps anew before the next use.
func (p *Platform) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = nil
}

// since returns the Apps of a version, or newer ones.
func (p *Platform) since(ctx context.Context, version int64) (*snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != nil && p.state.version >= version {
		return p.state, nil
	}
	apps, err := p.activeApps(ctx, p.Store)
	if err != nil {
		return nil, err
	}
	secrets, err := p.secrets(ctx)
	if err != nil {
		return nil, err
	}
	known, err := readIdentities(ctx, db.New(p.Store.Pool()), "")
	if err != nil {
		return nil, err
	}
	next := &snapshot{version: version, operations: make(map[key]*entry), byType: make(map[string][]*entry), subscriptions: make(map[string]*entry)}
	for _, a := range apps {
		for _, e := range p.entries(a, secrets[a.Header().ID.Text], known[a.Header().ID.Text]) {
			if e.broken != nil {
				p.Logger.Warn("a handler of an App cannot be called", "app", e.app, "handler", e.label(), "error", e.broken)
			}
			if e.subscription != "" {
				next.subscriptions[e.subscription] = e
				continue
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

// entries are the operations and subscriptions of an App. It was judged when it was
// written; the rules may have become stricter since, and a secret may be missing.
func (p *Platform) entries(a *r4.App, secrets map[string]string, known []identity) []*entry {
	var out []*entry
	id := a.Header().ID.Text
	for i := range a.Operations {
		o := &a.Operations[i]
		e := &entry{app: id, version: a.Version.Text, title: a.Name.Text, typ: o.ResourceType.Text, name: "$" + o.Name.Text, kind: o.Type_.Text}
		e.affects = e.kind == "write" || e.kind == "execute" && o.AffectsState.Text != "false"
		p.handle(e, o.Handler, secrets)
		out = append(out, e)
	}
	numbers, _ := identifySubscriptions(known, a.Subscriptions)
	for i := range a.Subscriptions {
		s := &a.Subscriptions[i]
		e := &entry{place: i, app: id, version: a.Version.Text, title: a.Name.Text, typ: s.ResourceType.Text, subscription: subscriberID(id, numbers[i]), affects: true}
		p.handle(e, handlerOf(s.Handler), secrets)
		e.auth = "app"
		var err error
		e.filter, err = eventfilter.CompileFilter(p.Service.Model, e.typ, s.Filter.Text)
		if err == nil {
			e.events, err = kindsOf(s.Events)
		}
		if err != nil && e.broken == nil {
			e.broken = err
		}
		e.policy = p.policyOf(handlerOf(s.Handler))
		out = append(out, e)
	}
	return out
}

// handle reads the handler of an entry.
func (p *Platform) handle(e *entry, h *r4.AppOperationsHandler, secrets map[string]string) {
	if h == nil {
		return
	}
	e.handler, e.auth, e.code, e.recursive = h.Type_.Text, h.Auth.Text, h.Code.Text, h.Recursive.Text == "true"
	for i := range h.AllowHosts {
		e.hosts = append(e.hosts, strings.ToLower(h.AllowHosts[i].Text))
	}
	switch e.handler {
	case "internal":
		if e.internal, e.fixed, e.broken = findInternal(h.URL.Text); e.internal != nil {
			e.code = e.internal.code
		}
	case "http", "webhook":
		if e.remote, e.broken = p.remoteOf("App.operations.handler", h); e.broken == nil {
			e.broken = e.remote.fillSecrets(secrets)
		}
	}
}

// latestSnapshot returns the present snapshot, or the last one if the database does not answer.
func (p *Platform) latestSnapshot() *snapshot {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := p.currentSnapshot(ctx)
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
	if isLogCall(q) {
		return false
	}
	if p.Own.Has(q.Name) {
		return p.Own.Affects(q)
	}
	// In a Bundle an App's operation is refused.
	return true
}

// Listed are the operations of a resource type, the server's own first.
func (p *Platform) Listed(typ string) []interaction.OperationListing {
	out := p.Own.Listed(typ)
	if !p.Config().Enabled {
		return out
	}
	for _, e := range p.latestSnapshot().byType[typ] {
		out = append(out, interaction.OperationListing{Name: e.name[1:], Definition: definitionURL(e)})
	}
	return out
}

// Needs implements interaction.Operations.
func (p *Platform) Needs(q interaction.OperationParams) (needs []access.Interaction, known bool) {
	if isLogCall(q) {
		return []access.Interaction{access.Admin}, true
	}
	if needs, known = p.Own.Needs(q); known || !p.Config().Enabled {
		return needs, known
	}
	for _, e := range p.latestSnapshot().byType[q.ResourceType] {
		if e.name == q.Name {
			return e.rights(), true
		}
	}
	return nil, false
}

// Version differs when Listed does.
func (p *Platform) Version() int64 {
	v := p.Own.Version()<<32 + p.latestSnapshot().version<<1
	if p.Config().Enabled {
		v++
	}
	return v
}

// formTypes are the content types of the body of an App's operation.
var formTypes = []string{"application/fhir+json", "application/json", "application/x-www-form-urlencoded"}

// Accepts are the content types of an operation's body, nil where it is a resource.
func (p *Platform) Accepts(name string) []string {
	if p.Own.Has(name) {
		return p.Own.Accepts(name)
	}
	return formTypes
}

// Methods returns the methods of an App's operation, none on a level without the operation.
func (p *Platform) Methods(q interaction.OperationParams) []string {
	if isLogCall(q) || p.Own.Has(q.Name) || !p.Config().Enabled {
		return nil
	}
	e := p.latestSnapshot().operations[key{q.ResourceType, q.Name}]
	if e == nil {
		return nil
	}
	methods := []string{}
	for _, f := range e.forms() {
		if f.instance == (q.ID != "") {
			methods = append(methods, f.method)
			if f.method == http.MethodGet {
				methods = append(methods, http.MethodHead)
			}
		}
	}
	return methods
}

// Run carries out an operation of the server or of an App.
func (p *Platform) Run(ctx context.Context, q interaction.OperationParams) (interaction.Response, error) {
	if isLogCall(q) {
		return p.answerLog(ctx, q)
	}
	if p.Own.Has(q.Name) {
		return p.Own.Run(ctx, q)
	}
	// The call is prepared for the Apps that were in force last. Which version they have is
	// asked together with the instance, which is read for that.
	question := p.Store.AskAppsVersion()
	before := p.last()
	var c *call
	var err error
	if before != nil {
		c, err = p.prepareCall(ctx, before, q)
	}
	version, failed := question.Answer(ctx)
	var apps *snapshot
	if failed == nil {
		apps, failed = p.since(ctx, version)
	}
	if failed != nil || apps != before {
		c.cancel()
		if failed != nil {
			return interaction.Response{}, failed
		}
		c, err = p.prepareCall(ctx, apps, q)
	}
	if err != nil {
		return interaction.Response{}, err
	}
	defer c.cancel()
	return p.operate(c)
}

// findOperation returns an operation of an App, or why it cannot be called.
func (p *Platform) findOperation(ctx context.Context, apps *snapshot, q interaction.OperationParams) (*entry, error) {
	e := apps.operations[key{q.ResourceType, q.Name}]
	if e == nil {
		var near []string
		for _, o := range apps.byType[q.ResourceType] {
			near = append(near, o.name)
		}
		_, err := p.Own.Run(ctx, q) // it has none of this name
		if o, ok := outcome.From(err); ok && len(near) > 0 {
			o.Issues[0].Diagnostics += ", of Apps " + strings.Join(near, ", ")
		}
		return nil, err
	}
	if !p.Enabled(ctx, FlagApps) {
		return nil, outcome.NotSupported("%s is an operation of an App, and the feature %s is off", q.Name, FlagApps)
	}
	if q.Bundled {
		return nil, outcome.NotSupported("%s is an operation of an App, which batches and transactions do not serve", q.Name)
	}
	return e, nil
}

// definitionBase begins the canonicals of OperationDefinitions.
const definitionBase = "http://kiln/fhir/OperationDefinition/"

// definitionURL is the canonical of the OperationDefinition of an App's operation.
func definitionURL(e *entry) string { return definitionBase + definitionID(e) }

// DefinitionID is the id that a canonical names an OperationDefinition of an App's
// operation by; false where it names another one.
func DefinitionID(canonical string) (id string, ok bool) {
	id, ok = strings.CutPrefix(canonical, definitionBase)
	return id, ok && strings.HasPrefix(id, "app-")
}

// definitionID is the logical id of the OperationDefinition, of at most 64 characters.
func definitionID(e *entry) string {
	id := "app-" + e.typ + "-" + e.name[1:]
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return id[:maxID-17] + "-" + hex.EncodeToString(sum[:8])
}

const maxID = 64 // characters of a logical id

// Definition returns the OperationDefinition of an active App's operation.
func (p *Platform) Definition(id string) ([]byte, bool) {
	if !strings.HasPrefix(id, "app-") || !p.Config().Enabled {
		return nil, false
	}
	for _, list := range p.latestSnapshot().byType {
		for _, e := range list {
			if definitionID(e) == id {
				return e.definition(), true
			}
		}
	}
	return nil, false
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

// form is a way to call an operation.
type form struct {
	method   string
	instance bool // on a resource, not on its type
}

func (f form) String() string {
	if f.instance {
		return f.method + " instance"
	}
	return f.method + " type"
}

// forms are the ways to call the operation. docs/contract.md, Apps, section 2.
func (e *entry) forms() []form {
	switch e.kind {
	case "read":
		return []form{{http.MethodGet, true}}
	case "search":
		return []form{{http.MethodGet, false}, {http.MethodPost, false}}
	case "write":
		return []form{{http.MethodPost, false}, {http.MethodPut, true}}
	}
	return []form{{http.MethodPost, true}, {http.MethodPost, false}}
}

// checkLevel says whether the operation can be called as q calls it.
func (e *entry) checkLevel(q interaction.OperationParams) error {
	method := q.Method
	switch {
	case method == http.MethodHead, method == "" && q.Read:
		method = http.MethodGet
	case method == "":
		method = http.MethodPost
	}
	var names []string
	for _, f := range e.forms() {
		if f == (form{method, q.ID != ""}) {
			return nil
		}
		names = append(names, f.String())
	}
	return outcome.MethodNotAllowed("%s is of type %s and is called by %s", e.name, e.kind, strings.Join(names, " or "))
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

// clip limits the input that an error repeats.
func clip(s string) string { return outcome.Clip(s) }
