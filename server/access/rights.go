package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// Decider turns principals into rights. Its fields are set once, before first use.
type Decider struct {
	// Registry is the search parameters in force.
	Registry func() *search.Registry
	// Options are the options with which the search of a granular scope or of a policy is
	// parsed.
	Options func(ctx context.Context) search.Options
	// Patients returns the logical ids of the patients that RelatedPerson/id is
	// related to; none where there is no such resource.
	Patients func(ctx context.Context, id string) ([]string, error)
	// Policies are those in force, in their order; nil has none.
	Policies func(ctx context.Context) (*Policies, error)
	// PatientsSeeAudit reports whether patients' tokens see AuditEvents (audit.visible_to_patients);
	// nil is no.
	PatientsSeeAudit func() bool
	// Related reports whether one of the targets of m has one of its types and meets its
	// clauses. nil finds none.
	Related func(ctx context.Context, m match.Related) (bool, error)
}

// Rights are the rights of one principal: the one predicate that every path asks. A value
// is made for one request, or for all requests with the same rights, and is safe for
// concurrent use.
//
//	May      an interaction on a resource type, at all
//	Narrow   a query, with its chains, _has and includes
//	Condition and its Holds  one resource
type Rights struct {
	*Principal
	d       *Decider
	ctx     context.Context
	address netip.Addr // where the request comes from
	indexed bool       // conditions are asked of resources whose index is at hand

	known    atomic.Pointer[map[string]*answers] // by type; never changed in place
	mu       sync.Mutex                          // held to decide
	most     int                                 // types of known, 0 for any number
	patients []string                            // of a RelatedPerson, once they have been read
	asked    bool
	policies *Policies
	told     map[question]bool // of which DryRunsOfType was asked
}

// question is the key of a cached answer.
type question struct {
	permission smart.Permissions
	typ        string
}

// answers are those for each permission by its bit, nil where it was not asked for.
type answers [5]*answer

type answer struct {
	Condition
	err      error
	granted  bool   // a scope covers the type, with any reach and before policies
	denied   bool   // policies take all of it
	why      string // the scope that gives
	policies []string
	message  string // of the policy that denies
	dry      []DryRun
}

// RightsOf returns the rights of a principal in a request.
func (d *Decider) RightsOf(ctx context.Context, p *Principal) *Rights {
	r := &Rights{Principal: p, d: d, ctx: context.WithoutCancel(ctx)}
	r.known.Store(&map[string]*answers{})
	return r
}

// request is the content of a context.
type request struct {
	principal *Principal
	address   func() netip.Addr
	indexed   bool
	once      sync.Once
	rights    *Rights
}

type key struct{}

// WithPrincipal returns a context whose requests run as p.
func WithPrincipal(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, key{}, &request{principal: p})
}

// WithAddress is With, and says from which address the request comes, for policies: it is asked for
// once there are some.
func WithAddress(ctx context.Context, p *Principal, address func() netip.Addr) context.Context {
	return context.WithValue(ctx, key{}, &request{principal: p, address: address})
}

// WithIndex returns a context for decisions on resources whose index is at hand, made with
// the search parameters in force: the index is complete, even while the index of stored
// resources is being built.
func WithIndex(ctx context.Context, p *Principal) context.Context {
	r, _ := ctx.Value(key{}).(*request)
	if r == nil || r.principal != p {
		r = &request{}
	}
	if r.indexed {
		return ctx
	}
	return context.WithValue(ctx, key{}, &request{principal: p, address: r.address, indexed: true})
}

// PrincipalFrom returns the principal of a request, nil when there is none.
func PrincipalFrom(ctx context.Context) *Principal {
	if r, _ := ctx.Value(key{}).(*request); r != nil {
		return r.principal
	}
	return nil
}

// Rights returns the rights of a request; nil is everything. It fails with login, 401,
// without a principal.
func (d *Decider) Rights(ctx context.Context) (*Rights, error) {
	r, _ := ctx.Value(key{}).(*request)
	switch {
	case r == nil || r.principal == nil:
		return nil, outcome.New(outcome.CodeLogin, "an access token is needed")
	case r.principal.open:
		return nil, nil
	case d == nil:
		return nil, errors.New("access: a principal without a Decider")
	}
	r.once.Do(func() {
		if r.rights = d.remembered(ctx, r.principal); r.rights == nil {
			r.rights = d.RightsOf(ctx, r.principal)
			if r.address != nil {
				r.rights.address = r.address()
			}
			r.rights.indexed = r.indexed
		}
	})
	return r.rights, nil
}

// rememberedRights are rights that hold for every request of a principal while the search
// parameters stay as they are: registry is nil where they do not depend on these.
type rememberedRights struct {
	*Rights
	registry *search.Registry
	audit    bool // patients saw AuditEvents
}

// maxRemembered bounds the types of which answers are remembered of one principal.
const maxRemembered = 32

// remembered returns the rights of a principal's earlier requests, nil where a request has
// rights of its own: under policies, by the search of a granular scope, for a
// RelatedPerson, whose patients change.
func (d *Decider) remembered(ctx context.Context, p *Principal) *Rights {
	if d.Policies != nil {
		policies, err := d.Policies(ctx)
		if err != nil || len(policies.List) > 0 || policies.DefaultDeny != nil && policies.DefaultDeny() {
			return nil
		}
	}
	if known := p.rights.Load(); known != nil && known.d == d && (known.registry == nil || known.registry == d.Registry() && known.audit == d.patientsSeeAudit()) {
		return known.Rights
	}
	if strings.HasPrefix(p.FHIRUser, "RelatedPerson/") || slices.ContainsFunc(p.Scopes.Resource, func(s smart.Scope) bool { return s.Search != "" }) {
		return nil
	}
	var registry *search.Registry
	if p.Patient != "" || strings.HasPrefix(p.FHIRUser, "Patient/") { // compartments are of search parameters
		registry = d.Registry()
	}
	r := d.RightsOf(context.Background(), p)
	r.policies, r.most = &Policies{}, maxRemembered
	p.rights.Store(&rememberedRights{r, registry, d.patientsSeeAudit()})
	return r
}

func (d *Decider) patientsSeeAudit() bool { return d.PatientsSeeAudit != nil && d.PatientsSeeAudit() }

// Condition returns what must hold of a resource of type typ for every one of
// permissions.
func (r *Rights) Condition(permissions smart.Permissions, typ string) (Condition, error) {
	all := Condition{}
	for p := smart.Create; p <= smart.Search; p <<= 1 {
		if permissions&p == 0 {
			continue
		}
		a := r.answer(p, typ)
		if a.err != nil {
			return nothing, a.err
		}
		if all.words != a.words || all.none != a.none || len(all.clauses) != len(a.clauses) {
			all = all.and(a.Condition)
		}
	}
	return all, nil
}

// Any returns what must hold of a resource of type typ for one of permissions at
// least.
func (r *Rights) Any(permissions smart.Permissions, typ string) (Condition, error) {
	any := nothing
	for p := smart.Create; p <= smart.Search; p <<= 1 {
		if permissions&p == 0 {
			continue
		}
		a := r.answer(p, typ)
		if a.err != nil {
			return nothing, a.err
		}
		any = any.or(a.Condition)
	}
	return any, nil
}

func (r *Rights) answer(permission smart.Permissions, typ string) *answer {
	bit := bits.TrailingZeros8(uint8(permission))
	if of := (*r.known.Load())[typ]; of != nil && of[bit] != nil {
		return of[bit]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.known.Load()
	var of answers
	if before := known[typ]; before != nil {
		of = *before
	}
	if of[bit] == nil {
		decided := r.decide(permission, typ)
		of[bit] = &decided
		if r.most == 0 || known[typ] != nil || len(known) < r.most {
			more := maps.Clone(known)
			more[typ] = &of
			r.known.Store(&more)
		}
	}
	return of[bit]
}

// adminOnly are the types whose rows change the server itself: they need admin instead of a
// scope. The value says whether reading them needs admin too.
var adminOnly = map[string]bool{"App": true, "SearchParameter": false}

// decide is the union over the scopes, from which policies take away.
func (r *Rights) decide(permission smart.Permissions, typ string) answer {
	a := answer{Condition: nothing}
	if reading, ok := adminOnly[typ]; ok {
		if r.Admin {
			return answer{granted: true, why: "admin"}
		}
		if reading || permission&(smart.Read|smart.Search) == 0 {
			return a
		}
	}
	for _, scope := range r.Scopes.Resource {
		if scope.Permissions&permission == 0 || scope.Type != "*" && scope.Type != typ {
			continue
		}
		c, ok, err := r.reach(scope, permission, typ)
		if err != nil {
			a.err = err
			return a
		}
		if !ok {
			continue
		}
		a.granted = true
		if a.why != "" {
			a.why += " "
		}
		a.why += scope.String()
		if a.Condition = a.or(c); a.Whole() {
			break
		}
	}
	if a.none {
		return a
	}
	r.applyPolicies(&a, permission, typ)
	// A condition with related asks whether the security context is readable: policies are part of it.
	if typ == "Binary" && !a.none && a.related == nil && r.policies != nil && permission&(smart.Read|smart.Search) != 0 {
		a.Condition, a.err = r.withoutHiddenContext(a.Condition)
	}
	return a
}

// systemOnly reports whether only a system/ scope gives a permission: AuditEvents are records
// of services, and no user writes them.
func systemOnly(permission smart.Permissions, typ string) bool {
	return typ == "AuditEvent" && permission == smart.Create
}

// reach is the condition that a scope with permission and typ gives on the resources of
// typ. ok is false if it can give none: it names a patient that the token does not have,
// writes of a type that it may not write, a search that the type does not have, or one
// whose index is still being built.
func (r *Rights) reach(scope smart.Scope, permission smart.Permissions, typ string) (c Condition, ok bool, err error) {
	ok = true
	if systemOnly(permission, typ) && scope.Context != smart.System {
		return nothing, false, nil
	}
	switch scope.Context {
	case smart.Patient:
		if r.Patient == "" {
			return nothing, false, nil
		}
		acts, failure := r.actsFor(r.Patient)
		if failure != nil {
			return nothing, false, failure
		}
		if acts {
			c, ok, err = r.reachPatients(permission, typ, r.Patient)
		} else {
			c, ok, err = r.reachPatients(permission, typ)
		}
		if err != nil {
			return nothing, false, err
		}
	case smart.User:
		kind, id, _ := strings.Cut(r.FHIRUser, "/")
		switch kind {
		case "":
			// Somebody at another authorization server is nobody here without a fhirUser.
			if r.Unbound || r.Issuer != "" {
				return nothing, false, nil
			}
		case "Patient":
			c, ok, err = r.reachPatients(permission, typ, id)
		case "RelatedPerson":
			patients, failure := r.patientsOfRelated(id)
			if failure != nil {
				return nothing, false, failure
			}
			c, ok, err = r.reachPatients(permission, typ, patients...)
		}
		if err != nil {
			return nothing, false, err
		}
	}
	if !ok || c.none || scope.Search == "" {
		return c, ok, nil
	}
	granular, err := r.d.search(r.ctx, typ, scope.Search)
	if err != nil || !r.whole(granular) { // `:not` would match resources that are not indexed yet
		return nothing, false, nil
	}
	return c.and(granular), true, nil
}

// actsFor reports whether the user may still act for the token's patient. Only a
// RelatedPerson can lose that right: each request asks again.
func (r *Rights) actsFor(patient string) (bool, error) {
	id, ok := strings.CutPrefix(r.FHIRUser, "RelatedPerson/")
	if !ok {
		return true, nil
	}
	patients, err := r.patientsOfRelated(id)
	return slices.Contains(patients, patient), err
}

// patientsOfRelated returns the patients of RelatedPerson/id, and asks for them once.
func (r *Rights) patientsOfRelated(id string) ([]string, error) {
	if r.asked {
		return r.patients, nil
	}
	patients, err := r.d.Patients(r.ctx, id)
	if err != nil {
		return nil, fmt.Errorf("patients of a related person: %w", err)
	}
	r.patients, r.asked = patients, true
	return patients, nil
}

// whole reports whether everything that c matches can be found: nothing is missing from an
// index that it asks.
func (r *Rights) whole(c Condition) bool { return r.indexed || c.notice == "" }

// reachPatients is compartments, and decides on a Binary by its security context.
func (r *Rights) reachPatients(permission smart.Permissions, typ string, patients ...string) (c Condition, ok bool, err error) {
	switch {
	case typ != "Binary":
		c, ok = r.compartments(permission, typ, patients...)
	case len(patients) == 0:
		c, ok = nothing, true
	case permission&(smart.Read|smart.Search) != 0:
		c, err = r.readableContext()
		ok = true
	default:
		c, ok = r.writableContext(permission, patients...), true
	}
	return c, ok, err
}

// compartments is what may be done with the resources of typ on behalf of patients; ok
// is false for a write of a type that is in nobody's compartment.
func (r *Rights) compartments(permission smart.Permissions, typ string, patients ...string) (c Condition, ok bool) {
	reading := permission&(smart.Read|smart.Search) != 0
	if shared[typ] {
		c.none = !reading
		return c, reading
	}
	any := r.d.Registry().CompartmentMatches(typ, "Patient", patients...)
	if !reading { // to have performed another patient's record gives no right to write it
		any = r.d.Registry().SubjectMatches(typ, "Patient", patients...)
	}
	if len(any) == 0 || len(patients) == 0 || typ == "AuditEvent" && reading && !r.d.patientsSeeAudit() {
		return nothing, reading || len(any) > 0
	}
	words := make([]string, len(patients))
	for i, id := range patients {
		words[i] = "Patient/" + id + "/" + typ
		if typ == "Patient" {
			words[i] = "Patient/" + id
		}
	}
	text := strings.Join(words, " or ")
	return Condition{clauses: []match.Clause{{Name: "compartment", Value: text, Any: any}}, words: text, notice: r.d.Registry().CompartmentNotice(typ)}, true
}

// ScopeMatchesAny reports whether a scope is about resources that there can be: its type is one,
// and its search can be asked of the type, of some type where it is about every one.
func (d *Decider) ScopeMatchesAny(ctx context.Context, s smart.Scope) bool {
	searched := func(typ string) bool {
		_, err := d.search(ctx, typ, s.Search)
		return err == nil
	}
	switch {
	case s.Type != "*":
		return d.Registry().Has(s.Type) && (s.Search == "" || searched(s.Type))
	case s.Search == "":
		return true
	}
	return slices.ContainsFunc(d.Registry().Types(), searched)
}

// search reads the search of a granular scope or of a policy on typ. It fails where
// the search is none, or cannot be asked of one resource alone.
func (d *Decider) search(ctx context.Context, typ, query string) (Condition, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nothing, err
	}
	options := search.Options{}
	if d.Options != nil {
		options = d.Options(ctx)
	}
	options.Lenient = false
	q, err := search.Parse(d.Registry(), typ, values, options)
	if err != nil {
		return nothing, err
	}
	if len(q.Clauses) == 0 || len(q.Includes)+len(q.RevIncludes)+len(q.Sort)+len(q.Elements) > 0 || q.Cursor != nil || q.Offset > 0 {
		return nothing, fmt.Errorf("%q is no condition: it asks for a page and not which resources match", query)
	}
	if err := checkDecidable(q.Clauses); err != nil {
		return nothing, err
	}
	c := Condition{clauses: q.Clauses, words: typ + "?" + query}
	if len(q.Notices) > 0 {
		c.notice = q.Notices[0].Diagnostics
	}
	return c, nil
}

// Check fails with forbidden, 403, where no scope covers permission on typ, which the
// error names, or where policies deny all of it. It says nothing of any one resource.
func (r *Rights) Check(permission smart.Permissions, typ string) error {
	return r.mayNaming(permission, typ, permission)
}

// MayPut is May for a PUT, which creates or updates: its error names a scope for both, so that
// the answer does not depend on the existence of the resource.
func (r *Rights) MayPut(permission smart.Permissions, typ string) error {
	return r.mayNaming(permission, typ, smart.Create|smart.Update)
}

// mayNaming is May whose error names a scope for the permissions named.
func (r *Rights) mayNaming(permission smart.Permissions, typ string, named smart.Permissions) error {
	a := r.answer(permission, typ)
	switch {
	case a.err != nil:
		return a.err
	case a.denied:
		return Denied(a.message)
	case a.granted:
		return nil
	}
	scope := r.missingScope(permission, typ)
	if scope != "admin" && r.Scopes.Covers(scope) {
		if r.FHIRUser == "" {
			return outcome.New(outcome.CodeForbidden, "the user of the access token has no fhirUser here: user/ scopes reach nothing")
		}
		// The token has it: its user is a patient, or acts for one.
		return outcome.New(outcome.CodeForbidden, "the user of the access token may not write %s, which belongs to no patient", typ)
	}
	return Insufficient(r.missingScope(named, typ))
}

// MayAny fails with forbidden, 403, where no scope covers permission, Read or Search, on
// any type; policies and admin are not asked. The error names a scope of every type.
func (r *Rights) MayAny(permission smart.Permissions) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, scope := range r.Scopes.Resource {
		if scope.Permissions&permission == 0 {
			continue
		}
		types := []string{scope.Type}
		if scope.Type == "*" {
			types = r.d.Registry().Types()
		}
		for _, typ := range types {
			if adminOnly[typ] {
				continue
			}
			if _, ok, err := r.reach(scope, permission, typ); err != nil || ok {
				return err
			}
		}
	}
	if scope := r.anyType(permission); !r.Scopes.Covers(scope) {
		return Insufficient(scope)
	}
	return outcome.New(outcome.CodeForbidden, "the user of the access token reaches nothing by its scopes")
}

// anyType is the scope that an interaction about every type needs.
func (r *Rights) anyType(permission smart.Permissions) string {
	return r.context(permission, "Patient") + "/*." + permission.String()
}

// missingScope is the scope that would do.
func (r *Rights) missingScope(permission smart.Permissions, typ string) string {
	if reading, ok := adminOnly[typ]; ok && (reading || permission&(smart.Read|smart.Search) == 0) {
		return "admin"
	}
	return r.context(permission, typ) + "/" + typ + "." + permission.String()
}

// context is the first part of the scope that would allow it.
func (r *Rights) context(permission smart.Permissions, typ string) string {
	switch {
	case r.APIKey:
		return "system" // the only one that it can have
	case systemOnly(permission, typ):
		return "system"
	case r.Patient != "" && r.inReach(permission, typ):
		return "patient"
	case r.FHIRUser != "" || r.Patient != "" || r.Subject != r.ClientID:
		return "user"
	}
	return "system"
}

// inReach reports whether a scope patient/ can give anything.
func (r *Rights) inReach(permission smart.Permissions, typ string) bool {
	_, ok := r.compartments(permission, typ, r.Patient)
	return ok || typ == "Binary"
}

// MayAdmin fails with forbidden, 403, for a principal without the scope admin.
func (r *Rights) MayAdmin() error {
	if r.Admin {
		return nil
	}
	return Insufficient("admin")
}

// Insufficient is the error of a token that lacks a scope.
// Spec: RFC 6750 §3.1, insufficient_scope.
func Insufficient(scope string) error {
	e := outcome.New(outcome.CodeForbidden, "the access token does not allow this; the scope %s would", scope)
	e.Challenge = `Bearer error="insufficient_scope", scope="` + scope + `"`
	return e
}

// OutsideOfReach is the error of a write before or after which the resource is outside of the
// token's reach.
func OutsideOfReach(typ string) error {
	return outcome.New(outcome.CodeForbidden, "the %s would be outside of the access token's reach", typ)
}

// Denied is the error of a policy's refusal.
func Denied(message string) error {
	if message == "" {
		message = "a policy of this server does not allow this"
	}
	return outcome.New(outcome.CodeForbidden, "%s", message)
}

// Narrow returns q with the principal's rights: permissions for its matches, read for
// chains, `_has` and includes. Types that permissions do not reach at all are left out. It
// warns of resources that are hidden because an index that the rights need is still being
// built.
func (r *Rights) Narrow(q *search.Query, permissions smart.Permissions) (*search.Query, error) {
	types := q.Types
	if len(types) == 0 {
		types = r.d.Registry().Types()
	}
	conditions := make(map[string]Condition, len(types))
	var reached []string
	for _, t := range types {
		c, err := r.Condition(permissions, t)
		if err != nil {
			return nil, err
		}
		if !c.none {
			conditions[t] = c
			reached = append(reached, t)
		}
	}
	n := *q
	n.Clauses = append([]match.Clause(nil), q.Clauses...)
	n.Explain = false // it would reveal other patients' data
	n.Notices = slices.Clip(q.Notices)
	for _, t := range reached {
		n.Warn(conditions[t].notice)
	}
	stored := r // rights to the targets of chains, `_has` and includes, found by the index of stored resources
	if r.indexed {
		stored = r.d.RightsOf(r.ctx, r.Principal)
		stored.address = r.address
	}
	var failure error
	n.Restrict(func(types []string) []match.Clause {
		clauses, err := stored.readable(types)
		failure = errors.Join(failure, err)
		return clauses
	})
	if failure != nil {
		return nil, failure
	}
	switch {
	case len(reached) == 0:
		n.And(neverClause())
	case len(types) == 1:
		n.Clauses = append(n.Clauses, conditions[reached[0]].clauses...)
	default:
		if len(reached) < len(types) {
			n.Types = reached
		}
		if len(q.Clauses) == 0 {
			types = reached
		} // else the clauses, which were read for all of types, find any of these
		if c, ok := joinByType(types, conditions); ok {
			n.And(c)
		}
	}
	return &n, nil
}

// readable is what must hold of a resource of one of types, nil for every type, to
// be read.
func (r *Rights) readable(types []string) ([]match.Clause, error) {
	if len(types) == 0 {
		types = r.d.Registry().Types()
	}
	conditions := make(map[string]Condition, len(types))
	for _, t := range types {
		c, err := r.Condition(smart.Read, t)
		if err != nil {
			return nil, err
		}
		conditions[t] = c
	}
	if len(types) == 1 {
		return conditions[types[0]].Clauses(), nil
	}
	if c, ok := joinByType(types, conditions); ok {
		return []match.Clause{c}, nil
	}
	return nil, nil
}
