package validate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/narrative"
	"kiln/server/outcome"
)

// Definitions finds conformance resources, as JSON.
type Definitions interface {
	// Resolve finds one by canonical URL, with or without |version.
	Resolve(canonical string) ([]byte, bool)
}

// Codes knows value sets: server/terminology.
type Codes interface {
	// Contains reports whether a code is in a value set; system "" stands for any
	// system of it. known is false where that cannot be told.
	Contains(valueSet, system, code string) (in, known bool)
	// Listed returns the codes of a value set in order, nil where there are more than
	// most of them or not all are known.
	Listed(valueSet string, most int) []string
}

// Validator validates resources of one model. Any number of goroutines may use
// it.
type Validator struct {
	plans       *plans
	codes       Codes
	definitions Definitions
	profiles    *profiles
	runs        sync.Pool
}

// New returns a validator. It prepares nothing yet: profiles are read when the first
// resource names them.
func New(model *fhir.Model, definitions Definitions, codes Codes) *Validator {
	v := &Validator{
		definitions: definitions,
		plans:       &plans{model: model, programs: map[programKey]*fhirpath.Program{}},
		codes:       codes,
	}
	v.profiles = &profiles{validator: v, byURL: map[string]*profile{}, flaws: map[string]string{}}
	v.runs.New = func() any { return &run{v: v} }
	return v
}

// Options say how to validate. The zero value is what a write needs: errors only,
// by the base definitions and the profiles the resource names.
type Options struct {
	// Profiles are canonical URLs that the resource must conform to beside those
	// in its meta.profile.
	Profiles []string
	// Warnings asks for warnings too: best practice, extensible bindings,
	// profiles that are not known.
	Warnings bool
	// Terminology answers memberOf() in invariants, Resolver resolve(); nil where
	// there is none.
	Terminology fhirpath.Terminology
	Resolver    fhirpath.Resolver
	// Exists tells whether a resource that a literal local reference names is on
	// this server; nil leaves references unchecked.
	Exists func(ctx context.Context, typ, id string) (bool, error)
}

// maxIssues bounds one report.
const maxIssues = 100

// Validate returns what is wrong with r, worst and first found first; nil for a
// valid resource. Errors have the code invalid and name the element, the rule
// (the key of a constraint, the value set, the profile), what was expected and
// what came; line and column where r was decoded from JSON.
func (v *Validator) Validate(ctx context.Context, r fhir.Resource, o Options) []outcome.Issue {
	u := v.runs.Get().(*run)
	u.begin(ctx, r, &o)
	n := fhir.NodeOf(r)
	u.resource(n, n, o.Profiles)
	issues := u.issues
	u.end()
	v.runs.Put(u)
	return issues
}

// Uncompiled lists the invariants met so far that this engine cannot compile,
// with the reason.
func (v *Validator) Uncompiled() []string {
	v.plans.mu.Lock()
	defer v.plans.mu.Unlock()
	return append([]string(nil), v.plans.failures...)
}

// run is one validation.
type run struct {
	v       *Validator
	ctx     context.Context
	options *Options
	raw     []byte
	path    []segment
	nodes   []fhir.Node
	issues  []outcome.Issue
	fp      fhirpath.Context
	known   constraint.Context // the same for invariants that codegen compiled
	applied *profile           // the profile that is being applied, nil for the base
	depth   int
}

// segment is one step of the path to the current element.
type segment struct {
	name  string
	index int        // -1 where the element does not repeat
	typ   *fhir.Type // of the element
}

func (u *run) begin(ctx context.Context, r fhir.Resource, o *Options) {
	u.ctx, u.options, u.raw, u.issues = ctx, o, r.Header().Raw, nil
	u.path, u.nodes = u.path[:0], u.nodes[:0]
	u.fp = fhirpath.Context{Context: ctx, Terminology: o.Terminology, Resolver: o.Resolver, Profiles: u}
	u.known.Context = ctx
	u.depth = 0
}

func (u *run) end() {
	clear(u.nodes[:cap(u.nodes)])
	u.ctx, u.options, u.raw, u.issues, u.fp = nil, nil, nil, nil, fhirpath.Context{}
	u.known, u.applied = constraint.Context{}, nil
}

// ConformsTo answers conformsTo() in an invariant.
func (u *run) ConformsTo(ctx context.Context, n fhir.Node, url string) (conforms, known bool, err error) {
	p := u.v.profiles.of(url)
	if p == nil {
		return false, false, nil
	}
	other := &run{v: u.v}
	r, ok := n.Element().(fhir.Resource)
	if !ok || u.depth > maxDepth {
		return false, false, nil
	}
	other.begin(ctx, r, &Options{})
	other.depth = u.depth + 1
	other.fp.Resource, other.fp.RootResource = n, n
	other.profile(n, p)
	return len(other.issues) == 0, true, nil
}

// maxDepth bounds resources in resources and profiles in profiles.
const maxDepth = 64

// resource validates a resource inside root, with further profiles.
func (u *run) resource(n, root fhir.Node, asked []string) {
	if u.depth++; u.depth > maxDepth {
		u.depth--
		return
	}
	resource, rootResource := u.fp.Resource, u.fp.RootResource
	u.fp.Resource, u.fp.RootResource = n, root
	top := len(u.path) == 0
	if top {
		u.path = append(u.path, segment{n.T.Name, -1, n.T})
	}
	u.element(n, u.v.plans.of(n.T))
	u.named(n, asked)
	if top {
		u.path = u.path[:0]
	}
	u.fp.Resource, u.fp.RootResource = resource, rootResource
	u.depth--
}

// named applies the profiles that meta.profile and the request name.
func (u *run) named(n fhir.Node, asked []string) {
	base := len(u.nodes)
	u.nodes = n.AppendChild(u.nodes, "meta")
	if len(u.nodes) > base {
		meta := u.nodes[base]
		u.nodes = meta.AppendChild(u.nodes, "profile")
	}
	for i := base; i < len(u.nodes); i++ {
		if u.nodes[i].T.Kind != fhir.CanonicalKind {
			continue
		}
		url := u.nodes[i].Text()
		if p := u.v.profiles.of(url); p != nil {
			u.profile(n, p)
		} else if u.options.Warnings && !u.v.profiles.base(url) {
			u.report(outcome.Warning, "profile %s %s; it was not checked", url, u.v.profiles.missing(url))
		}
	}
	u.nodes = u.nodes[:base]
	for _, url := range asked {
		if p := u.v.profiles.of(url); p != nil {
			u.profile(n, p)
		} else if typ, ok := strings.CutPrefix(url, coreDefinitions); ok && u.v.profiles.base(url) {
			if typ != n.T.Name && typ != n.T.Base && typ != "Resource" {
				u.report(outcome.Failure, "expected resource type %s, found %s", typ, n.T.Name)
			}
		} else {
			u.report(outcome.Failure, "profile %s %s", url, u.v.profiles.missing(url))
		}
	}
}

// element validates a complex element or resource against the plan of its type.
func (u *run) element(n fhir.Node, p *plan) {
	contained := false
	for i := range p.fields {
		fp := &p.fields[i]
		base := len(u.nodes)
		u.nodes = n.AppendField(u.nodes, fp.field)
		end := len(u.nodes)
		if end == base {
			if fp.field.Min > 0 {
				u.report(outcome.Failure, "%s is required: expected at least %d, found none", fp.field.Name, fp.field.Min)
			}
			continue
		}
		if end-base < fp.field.Min {
			u.report(outcome.Failure, "%s: expected at least %d, found %d", fp.field.Name, fp.field.Min, end-base)
		}
		if fp.field.Max > 1 && end-base > fp.field.Max {
			u.report(outcome.Failure, "%s: expected at most %d, found %d", fp.field.Name, fp.field.Max, end-base)
		}
		repeats := fp.field.Repeats()
		if fp.field.AnyResource {
			inside := fp.field.Name == "contained"
			contained = contained || inside
			for j := base; j < end; j++ {
				u.push(fp.field, repeats, j-base, u.nodes[j].T)
				root := u.nodes[j]
				if inside {
					root = u.fp.RootResource
					u.id(u.nodes[j])
				}
				u.resource(u.nodes[j], root, nil)
				u.pop()
			}
			u.nodes = u.nodes[:base]
			continue
		}
		for j := base; j < end; j++ {
			c := u.nodes[j]
			u.push(fp.field, repeats, j-base, c.T)
			if fp.binding != nil {
				u.binding(c, fp.binding)
			}
			if c.T.Kind.Primitive() {
				if x := c.Extra(); x != nil {
					u.extensions(x.Extension)
				}
			} else {
				child := fp.planOf(u.v.plans, c.T)
				u.element(c, child)
				if child.special == referenceType {
					u.reference(c, fp)
				}
			}
			for _, inv := range fp.invariants {
				u.invariant(c, inv)
			}
			u.pop()
		}
		u.nodes = u.nodes[:base]
	}
	switch p.special {
	case extensionType:
		u.extension(n)
	case narrativeType:
		u.narrative(n)
	}
	if contained {
		u.contained(n)
	}
	for _, inv := range p.invariants {
		if inv.contained && !contained {
			continue
		}
		u.invariant(n, inv)
	}
}

// id checks the id of a contained resource, by which others refer to it. That of the
// resource itself is what the request makes it.
func (u *run) id(n fhir.Node) {
	if r, ok := n.Element().(fhir.Resource); ok && r.Header().ID.Text != "" && !fhir.ValidID(r.Header().ID.Text) {
		u.path = append(u.path, segment{"id", -1, r.Header().ID.Type()})
		u.report(outcome.Failure, "%q is not a valid id: expected 1 to 64 letters, digits, - and .", r.Header().ID.Text)
		u.pop()
	}
}

// contained checks that contained resources have different ids, and dom-3: every
// contained resource is referred to from somewhere in the resource, or refers to the
// resource itself.
func (u *run) contained(n fhir.Node) {
	referred := map[string]bool{}
	u.references(n, referred)
	base := len(u.nodes)
	u.nodes = n.AppendChild(u.nodes, "contained")
	ids := map[string]bool{}
	for i := base; i < len(u.nodes); i++ {
		c := u.nodes[i]
		r, ok := c.Element().(fhir.Resource)
		if !ok {
			continue
		}
		id := r.Header().ID.Text
		u.path = append(u.path, segment{"contained", i - base, c.T})
		if ids[id] {
			u.report(outcome.Failure, "expected an id of its own, another contained resource has the id %s", id)
		}
		ids[id] = id != ""
		if id == "" || !referred["#"+id] {
			inside := map[string]bool{}
			if u.references(c, inside); !inside["#"] {
				u.report(outcome.Failure, "constraint dom-3: nothing refers to the contained resource #%s", id)
			}
		}
		u.pop()
	}
	u.nodes = u.nodes[:base]
}

// references collects what References, canonicals, uris and urls below n name
// inside the resource.
func (u *run) references(n fhir.Node, into map[string]bool) {
	base := len(u.nodes)
	u.nodes = n.AppendChildren(u.nodes)
	for i := base; i < len(u.nodes); i++ {
		c := u.nodes[i]
		switch c.T.Kind {
		case fhir.CanonicalKind, fhir.URIKind, fhir.URLKind, fhir.StringKind:
			if s := c.Text(); strings.HasPrefix(s, "#") && (c.T.Kind != fhir.StringKind || n.T.Name == "Reference") {
				into[s] = true
			}
		}
		if !c.T.Kind.Primitive() || c.Extra() != nil {
			u.references(c, into)
		}
	}
	u.nodes = u.nodes[:base]
}

func (u *run) push(f *fhir.Field, repeats bool, i int, t *fhir.Type) {
	if !repeats {
		i = -1
	}
	u.path = append(u.path, segment{f.Name, i, t})
}

func (u *run) pop() { u.path = u.path[:len(u.path)-1] }

func (u *run) extensions(list []fhir.Extension) {
	for i := range list {
		n := fhir.NodeOf(&list[i])
		u.path = append(u.path, segment{"extension", i, n.T})
		u.element(n, u.v.plans.of(n.T))
		u.pop()
	}
}

// invariant evaluates one constraint on n.
func (u *run) invariant(n fhir.Node, inv *invariant) {
	if inv.warning && !u.options.Warnings {
		return
	}
	var ok bool
	var err error
	if inv.check != nil {
		u.known.Reset()
		u.known.Resource = u.fp.Resource
		ok = inv.check(&u.known, n.Element())
		err = u.known.Err
	} else {
		ok, err = inv.program.Holds(&u.fp, n)
	}
	var stopped *fhirpath.Error
	switch {
	case err != nil && u.applied != nil && !inv.warning && errors.As(err, &stopped) && stopped.Phase == fhirpath.Limit && u.ctx.Err() == nil:
		// Who brings a profile says what its rules may cost: what was not decided does
		// not conform to it.
		u.report(outcome.Failure, "constraint %s could not be evaluated: %v", inv.key, err)
	case err != nil:
		if u.ctx.Err() == nil && u.options.Warnings {
			u.report(outcome.Warning, "constraint %s could not be evaluated: %v", inv.key, err)
		}
	case !ok && inv.warning:
		u.report(outcome.Warning, "constraint %s: %s", inv.key, inv.human)
	case !ok:
		u.report(outcome.Failure, "constraint %s: %s", inv.key, inv.human)
	}
}

// extension checks ext-1, and where the definition of the extension is known what
// it says: where it may stand and what it holds.
func (u *run) extension(n fhir.Node) {
	x, ok := n.Element().(*fhir.Extension)
	if !ok {
		return
	}
	switch has := x.Value != nil; {
	case has && len(x.Extension) > 0:
		u.report(outcome.Failure, "constraint ext-1: an extension has either extensions or a value, found both")
	case !has && len(x.Extension) == 0:
		u.report(outcome.Failure, "constraint ext-1: an extension has either extensions or a value, found neither")
	}
	if nested := len(u.path) > 1 && u.path[len(u.path)-2].typ.Name == "Extension"; u.options.Warnings && !nested && x.URL.Text != "" && !strings.Contains(x.URL.Text, ":") {
		// https://hl7.org/fhir/R4/extensibility.html#Extension
		u.report(outcome.Warning, "expected the absolute url of a definition, found %s", x.URL.Text)
	}
	p := u.v.profiles.of(x.URL.Text)
	if p == nil || p.typ != "Extension" || len(u.path) < 2 {
		return
	}
	if u.options.Warnings && !u.inContext(p) {
		// HL7's own definitions of R4 carry hundreds of extensions outside the
		// context that these name, structuredefinition-normative-version on a
		// CodeSystem first of all: it cannot be a reason to refuse.
		u.report(outcome.Warning, "extension %s is not allowed here, only in %s", p.url, strings.Join(p.contexts, ", "))
	}
	if modifier := u.path[len(u.path)-1].name == "modifierExtension"; modifier != p.modifier {
		if modifier {
			u.report(outcome.Failure, "extension %s is no modifier: expected it in extension", p.url)
		} else {
			u.report(outcome.Failure, "extension %s is a modifier: expected it in modifierExtension", p.url)
		}
	}
	u.profile(n, p)
	for i := range x.Extension {
		// Only an extension of its own has an absolute url.
		if part := x.Extension[i].URL.Text; part != "" && !strings.Contains(part, ":") && !p.part(part) {
			u.path = append(u.path, segment{"extension", i, n.T})
			u.report(outcome.Failure, "extension %s has no part %s", p.url, part)
			u.pop()
		}
	}
}

// inContext reports whether the extension at the end of the path stands where its
// definition allows. Spec: https://hl7.org/fhir/R4/defining-extensions.html#context.
func (u *run) inContext(p *profile) bool {
	if len(p.contexts) == 0 {
		return true
	}
	parent := u.path[len(u.path)-2]
	for _, c := range p.contexts {
		if u.is(parent.typ, c) || c == "BackboneElement" && strings.Contains(parent.typ.Name, ".") {
			return true
		}
	}
	// A path starts at the type of any element above.
	for i := range u.path[:len(u.path)-1] {
		path := u.path[i].typ.Name
		for _, s := range u.path[i+1 : len(u.path)-1] {
			path += "." + s.name
		}
		if slices.Contains(p.contexts, path) {
			return true
		}
	}
	return false
}

// reference checks ref-1, the form of a relative reference, and the type of the
// target. Spec: https://hl7.org/fhir/R4/references.html#literal,
// references-definitions.html#Reference.type.
func (u *run) reference(n fhir.Node, fp *fieldPlan) {
	r, ok := n.Element().(*r4.Reference)
	if !ok {
		return
	}
	ref := r.Reference.Text
	typ, ok := u.target(r)
	if !ok {
		u.report(outcome.Failure, "constraint ref-1: %s names no contained resource", ref)
		return
	}
	if ref != "" && ref[0] != '#' && !strings.ContainsAny(ref, ":?") {
		t, id, _ := strings.Cut(ref, "/")
		id, version, versioned := strings.Cut(id, "/_history/")
		if typ == "" || t != typ || !fhir.ValidID(id) || versioned && !fhir.ValidID(version) {
			u.report(outcome.Failure, "expected a relative reference of the form [type]/[id], found %s", ref)
			return
		}
		if u.options.Exists != nil && !versioned {
			u.exists(typ, id)
		}
	}
	switch said := saidType(r); {
	case typ == "":
	case said != "" && typ != said:
		u.report(outcome.Failure, "expected a reference to %s, which type says, found %s", said, ref)
	case !fp.allows(typ):
		u.report(outcome.Failure, "expected a reference to %s, found %s", strings.Join(fp.field.Targets, ", "), cmp.Or(ref, typ))
	}
}

// target returns the resource type that a reference points at, "" where it does not
// say; ok is false when it names a contained resource that is not there.
func (u *run) target(r *r4.Reference) (typ string, ok bool) {
	if strings.HasPrefix(r.Reference.Text, "#") {
		return u.inside(r.Reference.Text)
	}
	for _, typ := range []string{fhirpath.ReferenceType(r.Reference.Text), saidType(r)} {
		if u.v.plans.model.Resources[typ] != nil {
			return typ, true
		}
	}
	return "", true
}

// saidType is Reference.type, without the base of R4's own types.
func saidType(r *r4.Reference) string { return strings.TrimPrefix(r.Type_.Text, coreDefinitions) }

// inside returns the type of the resource that a reference within the resource
// names; # alone is the one that contains it.
func (u *run) inside(ref string) (typ string, ok bool) {
	root := u.fp.RootResource
	id := strings.TrimPrefix(ref, "#")
	if id == "" {
		return root.T.Name, true
	}
	base := len(u.nodes)
	u.nodes = root.AppendChild(u.nodes, "contained")
	for _, c := range u.nodes[base:] {
		if res, ok := c.Element().(fhir.Resource); ok && res.Header().ID.Text == id {
			typ = c.T.Name
		}
	}
	u.nodes = u.nodes[:base]
	return typ, typ != ""
}

func (u *run) exists(typ, id string) {
	ok, err := u.options.Exists(u.ctx, typ, id)
	if err == nil && !ok {
		u.report(outcome.Failure, "expected a reference to a resource of this server, %s/%s does not exist", typ, id)
	}
}

// narrative checks txt-1 and txt-2.
func (u *run) narrative(n fhir.Node) {
	t, ok := n.Element().(*r4.Narrative)
	if !ok || t.Div.Text == "" {
		return
	}
	if err := narrative.Check(t.Div.Text); err != nil {
		u.path = append(u.path, segment{"div", -1, t.Div.Type()})
		u.report(outcome.Failure, "constraint txt-1: %v", err)
		u.pop()
	}
}

// binding checks the codes of n against a value set.
func (u *run) binding(n fhir.Node, b *binding) {
	if !b.required && !u.options.Warnings {
		return
	}
	severity := outcome.Failure
	if !b.required {
		severity = outcome.Warning
	}
	var found string
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		if len(e.Coding) == 0 {
			// Where the binding is extensible, text is what stands for a concept that it
			// has no code for; an extension may say why there is none.
			// Spec: https://hl7.org/fhir/R4/terminologies.html#strength.
			if b.required && len(e.Extension) == 0 {
				u.report(severity, "expected a code of %s (required binding), found none", b.valueSet)
			}
			return
		}
		for i := range e.Coding {
			c := &e.Coding[i]
			if u.coding(b, c.System.Text, c.Code.Text) != outside {
				return
			}
			if found != "" {
				found += ", "
			}
			found += c.System.Text + "|" + c.Code.Text
		}
	case *r4.Coding:
		if e.Code.Text == "" || u.coding(b, e.System.Text, e.Code.Text) != outside {
			return
		}
		found = e.System.Text + "|" + e.Code.Text
	case *r4.Quantity:
		if e.Code.Text == "" || u.coding(b, e.System.Text, e.Code.Text) != outside {
			return
		}
		found = e.System.Text + "|" + e.Code.Text
	default:
		if !n.T.Kind.Primitive() || n.Text() == "" || u.code(b, n.Text()) != outside {
			return
		}
		found = n.Text()
	}
	word := "required"
	if !b.required {
		word = "extensible"
	}
	hint := ""
	if list := u.v.codes.Listed(b.valueSet, maxHint); len(list) > 0 {
		hint = "; it has " + strings.Join(list, ", ")
	}
	u.report(severity, "expected a code of %s (%s binding), found %s%s", b.valueSet, word, found, hint)
}

// maxHint is how many codes a value set may have to be told in full.
const maxHint = 12

// answer is whether a code is in a value set.
type answer uint8

const (
	undecidable answer = iota // the value set, or a code system of it, is not known
	inside
	outside
)

// coding asks for a code with its system. One without system is in no value set.
func (u *run) coding(b *binding, system, code string) answer {
	in, known := u.v.codes.Contains(b.valueSet, system, code)
	return answerOf(in && system != "", known)
}

// code asks for a code whose system the element implies.
func (u *run) code(b *binding, code string) answer {
	return answerOf(u.v.codes.Contains(b.valueSet, "", code))
}

func answerOf(in, known bool) answer {
	switch {
	case in:
		return inside
	case known:
		return outside
	}
	return undecidable
}

// report adds an issue about the element at the end of the path, with the profile
// that it goes against.
func (u *run) report(severity outcome.Severity, format string, args ...any) {
	if len(u.issues) >= maxIssues {
		return
	}
	i := outcome.Issue{Severity: severity, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...) + u.by(), Expression: u.expression()}
	i.Line, i.Column = u.place()
	u.issues = append(u.issues, i)
}

// by names the profile that is being applied, "" for the base definitions.
func (u *run) by() string {
	if u.applied == nil {
		return ""
	}
	return " (profile " + u.applied.url + ")"
}

func (u *run) expression() string {
	var b strings.Builder
	for i, s := range u.path {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.name)
		if s.index >= 0 {
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(s.index))
			b.WriteByte(']')
		}
	}
	return b.String()
}

// Forget drops what was made of profiles: to be called when conformance resources
// were stored or deleted, or a package was installed.
func (v *Validator) Forget() { v.profiles.forget() }

// Writes is the validator as the write path calls it, with fixed options.
type Writes struct {
	Validator *Validator
	Options   Options
}

// Validate returns what is wrong with r, see Validator.Validate.
func (w Writes) Validate(ctx context.Context, r fhir.Resource) []outcome.Issue {
	return w.Validator.Validate(ctx, r, w.Options)
}
