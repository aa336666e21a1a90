package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// Lease is how long a server may use what it knows of the search parameters
// without asking, when a Keeper says nothing else.
const Lease = 300 * time.Millisecond

// Keeper keeps the search parameters in force on one server. Its fields are set
// before Open and not changed.
type Keeper struct {
	Base  *search.Registry // the compiled parameters
	Value search.Indexer   // gen/index.Value
	Model *fhir.Model
	Store *store.Store
	// MakeIndex returns what a resource leaves in the index, by Current.
	MakeIndex func(id string, r fhir.Resource) (*fhir.Index, error)
	// FindSort gives sorters what a resource is sorted by, by Current.
	FindSort func(r fhir.Resource, by []*fhir.Sorter) error
	NewID    func() string
	Now      func() time.Time
	Logger   *slog.Logger
	// Forget is called when a profile, value set or code system was written, by
	// any server; may be nil.
	Forget func()
	// Lease must be the same on all servers of a database; 0 means the constant.
	Lease time.Duration

	known        atomic.Pointer[known]
	refresh      sync.Mutex  // one reader of the database at a time
	renewing     atomic.Bool // in the background
	wake         chan struct{}
	fingerprints search.Fingerprints // of Base
}

// known is what a server knows, as of one moment. It is not changed.
type known struct {
	store.RegistryState
	registry *search.Registry
	asked    time.Time
	stored   map[int64]*stored // by surrogate
	foreign  error             // the index is of another build; registry answers nothing then
}

// stored is a SearchParameter resource, read.
type stored struct {
	id         string
	version    int
	definition search.Definition
	retired    bool
	custom     *search.Custom // nil where it is a compiled one, retired, or err is set
	err        error
}

// Open reads the stored SearchParameters and makes the store ask the Keeper. An
// index that another build has made becomes that of this one, with jobs to bring
// it up to date.
func (k *Keeper) Open(ctx context.Context) error {
	if k.Lease == 0 {
		k.Lease = Lease
	}
	k.wake = make(chan struct{}, 1)
	k.fingerprints = k.Base.Fingerprints()
	k.known.Store(&known{registry: k.Base, RegistryState: store.RegistryState{Version: -1}, stored: map[int64]*stored{}})
	k.Store.Indexer = k
	if k.Store.Hooks == nil {
		k.Store.Hooks = make(map[string]store.Hook)
	}
	k.Store.Hooks["SearchParameter"] = store.Hook{InTx: k.InTx, Committed: k.Committed}
	written := store.Hook{
		InTx: func(ctx context.Context, t *store.Tx, _ []*store.Write) (bool, error) {
			return true, t.BumpDefinitions(ctx)
		},
		Committed: func(ctx context.Context, _ bool) {
			if err := k.Refresh(ctx); err != nil {
				k.Logger.Warn("the version of definitions cannot be read", slog.Any("error", err))
			}
		},
	}
	for _, typ := range []string{"StructureDefinition", "ValueSet", "CodeSystem"} {
		k.Store.Hooks[typ] = written
	}
	err := k.Refresh(ctx)
	if err != nil && k.known.Load().foreign != nil {
		if err := k.claim(ctx); err != nil {
			return fmt.Errorf("take over the index: %w", err)
		}
		err = k.Refresh(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the search parameters: %w", err)
	}
	return nil
}

// Current returns the search parameters in force. When nobody can tell, for the
// database does not answer, it is a registry that answers nothing
// (search.Registry.Err).
func (k *Keeper) Current() *search.Registry {
	at := k.known.Load()
	switch age := since(at.asked); {
	case age < k.Lease/2:
	case age < k.Lease:
		if k.renewing.CompareAndSwap(false, true) {
			go func() {
				defer k.renewing.Store(false)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := k.Refresh(ctx); err != nil && k.known.Load().foreign == nil {
					k.Logger.Warn("the search parameters cannot be read", slog.Any("error", err))
				}
			}()
		}
	default:
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := k.Refresh(ctx); err != nil {
			return at.registry.Unavailable(err)
		}
		at = k.known.Load()
	}
	return at.registry
}

// Err is why the server can neither search nor write, nil for nearly all.
func (k *Keeper) Err() error { return k.Current().Err() }

// since is the time since t: the longer one of two measures, for the clock that
// never goes back stands still while a machine is suspended.
func since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// Refresh makes what Current returns as new as the database. It fails with
// exception, 503, when the index is of another build.
func (k *Keeper) Refresh(ctx context.Context) error {
	start := time.Now()
	k.refresh.Lock()
	defer k.refresh.Unlock()
	at := k.known.Load()
	if at.asked.After(start) {
		return at.foreign // somebody else asked after this call began
	}
	asked := time.Now()
	state, err := k.Store.RegistryState(ctx)
	if err != nil {
		return err
	}
	next := *at
	if next.Definitions = state.Definitions; next.Definitions != at.Definitions && k.Forget != nil {
		k.Forget()
	}
	if state.Fingerprint != k.fingerprints.All {
		return k.stop(&next, state, asked)
	}
	next.Fingerprint, next.foreign = state.Fingerprint, nil
	if state.Version != at.Version || state.Progress != at.Progress || at.foreign != nil {
		asked = time.Now()
		var list []store.StoredParameter
		if next.Version, next.Progress, list, err = k.Store.StoredParameters(ctx, at.versions()); err != nil {
			return err
		}
		next.stored = k.read(at, list)
		for rid, s := range next.stored {
			if s.err != nil && at.stored[rid] != s {
				k.Logger.Warn("a stored SearchParameter is not in force", slog.String("id", s.id), slog.Any("error", s.err))
			}
		}
		jobs, err := k.Store.ReindexJobs(ctx)
		if err != nil {
			return err
		}
		next.registry = k.build(&next, jobs)
	}
	next.asked = asked
	k.known.Store(&next)
	return nil
}

// versions are those that need not be read again.
func (at *known) versions() map[int64]int {
	out := make(map[int64]int, len(at.stored))
	for rid, s := range at.stored {
		out[rid] = s.version
	}
	return out
}

// read compiles what is new in list, and takes the rest from at.
func (k *Keeper) read(at *known, list []store.StoredParameter) map[int64]*stored {
	out := make(map[int64]*stored, len(list))
	var fresh []*stored
	for _, r := range list {
		if s := at.stored[r.RID]; s != nil && s.version == r.VersionID {
			out[r.RID] = s
			continue
		}
		s := &stored{id: r.ID, version: r.VersionID}
		resource, err := fhir.Decode(k.Model, r.Body)
		p, ok := resource.(*r4.SearchParameter)
		if err == nil && !ok {
			err = errors.New("it is no SearchParameter")
		}
		if s.err = err; err == nil {
			s.definition, s.retired = definition(p), p.Status.Text == "retired"
		}
		out[r.RID] = s
		fresh = append(fresh, s)
	}
	// What a composite is made of may have come, changed or gone.
	was, is := lookup(at.stored), lookup(out)
	for rid, s := range out {
		if at.stored[rid] == s && slices.ContainsFunc(s.definition.Components, func(c search.Component) bool {
			x, had := was(c.Definition)
			y, has := is(c.Definition)
			return had != has || x.Code != y.Code || x.Type != y.Type
		}) {
			again := *s
			again.err, again.custom = nil, nil
			out[rid] = &again
			fresh = append(fresh, &again)
		}
	}
	c := search.Compiler{Base: k.Base, Other: is}
	for _, s := range fresh {
		if s.err != nil || s.retired {
			continue
		}
		s.custom, s.err = k.compile(&c, s.definition)
	}
	return out
}

// lookup finds definitions by URL.
func lookup(list map[int64]*stored) func(url string) (search.Definition, bool) {
	return func(canonical string) (search.Definition, bool) {
		url, _, _ := strings.Cut(canonical, "|")
		for _, s := range list {
			if s.definition.URL != "" && s.definition.URL == url {
				return s.definition, true
			}
		}
		return search.Definition{}, false
	}
}

// compile compiles a definition; nil is one of a compiled parameter, which stays
// as it is.
func (k *Keeper) compile(c *search.Compiler, d search.Definition) (*search.Custom, error) {
	custom, err := c.Compile(d)
	if err != nil {
		if k.compiled(d) {
			return nil, nil
		}
		return nil, err
	}
	custom.Parameters = slices.DeleteFunc(custom.Parameters, func(p fhir.Parameter) bool {
		own, ok := k.Base.Lookup(p.Base, p.Code)
		same := ok && own.URL == p.URL && own.Type == p.Type && (own.Expression == p.Expression || own.Unsupported != "" && p.Unsupported != "")
		if same {
			custom.Drop(p.Base)
		}
		return same
	})
	if len(custom.Parameters) == 0 {
		return nil, nil
	}
	return custom, nil
}

// compiled reports whether d names a parameter that the server was compiled with.
func (k *Keeper) compiled(d search.Definition) bool {
	for _, typ := range k.Base.Types() {
		if p, ok := k.Base.Lookup(typ, d.Code); ok && p.URL == d.URL && p.Type == d.Type {
			return true
		}
	}
	return false
}

// definition is what a SearchParameter resource defines.
func definition(p *r4.SearchParameter) search.Definition {
	d := search.Definition{
		URL: p.URL.Text, Code: p.Code.Text, Type: fhir.SearchType(p.Type_.Text),
		Expression: p.Expression.Text, Description: p.Description.Text,
	}
	for i := range p.Base {
		d.Base = append(d.Base, p.Base[i].Text)
	}
	for i := range p.Target {
		d.Targets = append(d.Targets, p.Target[i].Text)
	}
	for i := range p.Component {
		d.Components = append(d.Components, search.Component{Definition: p.Component[i].Definition.Text, Expression: p.Component[i].Expression.Text})
	}
	return d
}

// customs are the parameters in force, by id of their resource.
func (at *known) customs() []*search.Custom {
	var list []*stored
	for _, s := range at.stored {
		if s.custom != nil {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *stored) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	out := make([]*search.Custom, len(list))
	for i, s := range list {
		out[i] = s.custom
	}
	return out
}

// build makes the registry of what is stored, with what the jobs let searches warn
// of.
func (k *Keeper) build(at *known, jobs []store.ReindexJob) *search.Registry {
	var warn search.Notice
	if len(jobs) > 0 {
		of := make(map[string][]store.ReindexJob)
		for _, j := range jobs {
			of[j.ResourceType] = append(of[j.ResourceType], j)
		}
		warn = func(typ, code string, keys []fhir.Key) string { return notice(typ, code, keys, of[typ]) }
	}
	return k.Base.Extended(at.Version, at.customs(), k.Value, warn)
}

// notice is what a search warns of that uses the entries of a resource type under
// keys, "" for nothing: by parameter code, or by "" a compartment. jobs are those
// of the type, oldest first.
func notice(typ, code string, keys []fhir.Key, jobs []store.ReindexJob) string {
	if len(jobs) == 0 {
		return ""
	}
	what := fmt.Sprintf("search parameter %s of %s", code, typ)
	if code == "" {
		what = "compartments and references of " + typ
	}
	in := func(list []fhir.Key) bool {
		return slices.ContainsFunc(keys, func(k fhir.Key) bool { return slices.Contains(list, k) })
	}
	text := ""
	for _, j := range jobs { // each evaluates every parameter: the last one knows best
		switch {
		case j.Finished.IsZero() && in(j.Keys):
			return fmt.Sprintf("the index of %s is still being built: resources stored before %s may be missing from the matches; GET /$reindex tells how far it is",
				what, j.Created.UTC().Format(time.RFC3339))
		case in(j.FailedKeys):
			text = fmt.Sprintf("some resources could not be indexed by %s and may be missing from the matches; GET /$reindex tells why", what)
		case !j.Finished.IsZero():
			text = ""
		}
	}
	return text
}

// Check tells whether a SearchParameter can be stored: whether its elements are
// there, its expressions parse and can give what its type needs. It fails with
// required or invalid, 400. What depends on other SearchParameters is checked
// again in the transaction.
func (k *Keeper) Check(p *r4.SearchParameter) error {
	at := k.known.Load()
	_, err := k.compile(&search.Compiler{Base: k.Base, Other: lookup(at.stored)}, definition(p))
	if errors.Is(err, search.ErrComponent) {
		return nil // it may come in the same transaction
	}
	return err
}

// InTx follows writes of SearchParameters inside their transaction.
func (k *Keeper) InTx(ctx context.Context, t *store.Tx, ws []*store.Write) (changed bool, err error) {
	before := k.known.Load()
	if before.foreign != nil {
		return false, before.foreign
	}

	// 1. One at a time, on top of what this server knows.
	if err := t.LockRegistry(ctx, before.Version); err != nil {
		return false, err
	}

	// 2. What is in force when this commits.
	after := &known{}
	_, _, list, err := t.StoredParameters(ctx, before.versions())
	if err != nil {
		return false, err
	}
	after.stored = k.read(before, list)
	for _, w := range ws {
		if err := k.admit(after, w.ID); err != nil {
			return false, err
		}
	}

	// 3. A job for each type whose index is to change.
	if slices.Equal(before.customs(), after.customs()) {
		return false, nil // a definition of what is compiled: nobody need know
	}
	if after.Version, err = t.BumpRegistry(ctx); err != nil {
		return false, err
	}
	return true, k.plan(ctx, t, before, after)
}

// admit refuses a written SearchParameter that cannot be in force beside the
// others.
func (k *Keeper) admit(at *known, id string) error {
	var own *stored
	for _, s := range at.stored {
		if s.id == id {
			own = s
		}
	}
	if own == nil {
		return nil // deleted
	}
	if own.err != nil {
		return own.err
	}
	for _, typ := range k.Base.Types() {
		for _, p := range k.Base.Parameters(typ) {
			if p.URL == own.definition.URL && p.Code != own.definition.Code {
				return outcome.New(outcome.CodeDuplicate, "the url %q is that of the parameter %s of %s; it must be unique", p.URL, p.Code, typ).
					WithStatus(400).At("SearchParameter.url")
			}
		}
	}
	for _, s := range at.stored {
		if s == own {
			continue
		}
		if s.definition.URL == own.definition.URL {
			return outcome.New(outcome.CodeDuplicate, "SearchParameter/%s has the url %q already; it must be unique", s.id, own.definition.URL).
				WithStatus(400).At("SearchParameter.url")
		}
		if s.custom == nil || own.custom == nil || s.definition.Code != own.definition.Code {
			continue
		}
		for _, p := range own.custom.Parameters {
			if slices.ContainsFunc(s.custom.Parameters, func(o fhir.Parameter) bool { return o.Base == p.Base }) {
				return outcome.New(outcome.CodeDuplicate, "%s has a search parameter %s already, SearchParameter/%s (%s)", p.Base, p.Code, s.id, s.definition.URL).
					WithStatus(400).At("SearchParameter.code")
			}
		}
	}
	return nil
}

// plan adds a job for each resource type whose own keys are others after than
// before.
func (k *Keeper) plan(ctx context.Context, t *store.Tx, before, after *known) error {
	was, is := before.customs(), after.customs()
	for _, typ := range k.Base.Types() {
		j := store.ReindexJob{ID: k.NewID(), ResourceType: typ, Registry: after.Version, Created: k.Now()}
		add := func(list, others []*search.Custom) (keys []fhir.Key) {
			for _, c := range list {
				for _, key := range c.Keys(typ) {
					if slices.ContainsFunc(others, func(o *search.Custom) bool { return slices.Contains(o.Keys(typ), key) }) {
						continue
					}
					keys = append(keys, key)
					j.Ranges = j.Ranges || c.Ordered(typ)
					if !slices.Contains(j.Parameters, c.URL) {
						j.Parameters = append(j.Parameters, c.URL)
					}
				}
			}
			return keys
		}
		j.Keys = add(is, was)
		gone := add(was, is)
		if len(j.Keys)+len(gone) == 0 {
			continue
		}
		if err := t.AddReindexJob(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// Committed follows the commit of such a transaction: when it returns, every
// server knows what changed.
func (k *Keeper) Committed(ctx context.Context, changed bool) {
	if !changed {
		return
	}
	wait := time.NewTimer(k.Lease + k.Lease/10) // clocks may run a little apart
	defer wait.Stop()
	if err := k.Refresh(ctx); err != nil {
		k.Logger.Warn("the search parameters cannot be read", slog.Any("error", err))
	}
	k.Wake()
	select {
	case <-wait.C:
	case <-ctx.Done(): // nobody is told then
	}
}

// Decode reads a stored resource.
func (k *Keeper) Decode(body []byte) (fhir.Resource, error) { return fhir.Decode(k.Model, body) }

// Index returns what a resource leaves in the index.
func (k *Keeper) Index(id string, r fhir.Resource) (*fhir.Index, error) { return k.MakeIndex(id, r) }

// Sort gives the sorters what a resource is sorted by.
func (k *Keeper) Sort(r fhir.Resource, by []*fhir.Sorter) error { return k.FindSort(r, by) }

// Wake lets Run look for work at once.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// How long Run rests: when there is nothing to do, when others do what there is or
// transactions have to end first, and after an error.
const (
	idle    = 5 * time.Second
	waiting = 50 * time.Millisecond
	failing = 2 * time.Second
)

// Run works on the jobs until ctx ends; those of another build it leaves to the
// servers of that build.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var worked, waits bool
		err := k.Refresh(ctx) // what searches warn of changes with every job that ends
		if err == nil {
			worked, waits, err = k.Store.Reindex(ctx)
		}
		rest := idle
		switch {
		case k.known.Load().foreign != nil:
		case err != nil && ctx.Err() == nil:
			k.Logger.Error("work on the index failed; it is tried again", slog.Any("error", err))
			rest = failing
		case worked:
			continue
		case waits:
			rest = waiting
		}
		t := time.NewTimer(rest)
		select {
		case <-t.C:
		case <-k.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
}
