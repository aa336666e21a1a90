package validate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
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
	// system of it. known is false where that cannot be decided.
	Contains(valueSet, system, code string) (in, known bool)
	// InSystem reports whether a code is in a code system; version "" is any. known is
	// false where that cannot be decided.
	InSystem(system, version, code string) (in, known bool)
	// Display reports whether a display is one of a code; true where that cannot be decided. want is
	// the preferred display of the code where it is not.
	Display(system, version, code, display string) (want string, right bool)
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

// Options are the options of a validation. The zero value suits a write: errors only, by
// the base definitions and the profiles that the resource names.
type Options struct {
	// Profiles are canonical URLs that the resource must conform to beside those
	// in its meta.profile.
	Profiles []string
	// Warnings asks for warnings too: best practice, extensible bindings,
	// profiles that are not known.
	Warnings bool
	// Strict makes errors of what does not keep a resource from being stored, as HL7's
	// validator does: a code that its code system does not have where no required
	// binding says so, an extension outside the context of its definition, a modifier
	// extension without known definition, a relative URI of an identifier or code system,
	// a fullUrl with another id than the resource. HL7's examples and Synthea's patients
	// have such. Without it they are warnings, and codes are not looked up.
	Strict bool
	// Terminology answers memberOf() in invariants, Resolver resolve(); nil where
	// there is none.
	Terminology fhirpath.Terminology
	Resolver    fhirpath.Resolver
	// Check returns an outcome.Error with the errors and warnings that only the service
	// that stores the resource knows. Operate calls it; it may be nil.
	Check func(ctx context.Context, r fhir.Resource) error
	// Exists tells whether a resource that a literal local reference names is on
	// this server; nil leaves references unchecked.
	Exists func(ctx context.Context, typ, id string) (bool, error)
}

// maxIssues bounds one report.
const maxIssues = 100

// Validate returns the faults of r, worst and first found first; nil for a valid resource.
// Errors have the code invalid and name the element, the rule (the key of a constraint, the
// value set, the profile), the expected and the received value; line and column if r was
// decoded from JSON.
func (v *Validator) Validate(ctx context.Context, r fhir.Resource, o Options) []outcome.Issue {
	return v.validate(ctx, r, o, nil)
}

// validate is Validate of a resource that has lost values, see fhir.Reading.
func (v *Validator) validate(ctx context.Context, r fhir.Resource, o Options, lost []string) []outcome.Issue {
	u := v.runs.Get().(*run)
	u.begin(ctx, r, &o)
	u.lost = lost
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
	ids     map[string]bool    // element ids met in the resource that is being validated
	bundles []bundleScope      // the Bundles around the current element, outermost first
	within  within
	lost    []string                  // see fhir.Reading
	tried   map[tried][]outcome.Issue // what fails of an element held against a profile
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
	u.fp = fhirpath.Context{Context: ctx, Terminology: o.Terminology, Resolver: u, Profiles: u}
	u.known.Context = ctx
	u.depth = 0
}

func (u *run) end() {
	clear(u.nodes[:cap(u.nodes)])
	u.ctx, u.options, u.raw, u.issues, u.fp = nil, nil, nil, nil, fhirpath.Context{}
	u.known, u.applied, u.ids, u.lost, u.tried = constraint.Context{}, nil, nil, nil, nil
	u.within = within{}
	clear(u.bundles[:cap(u.bundles)])
	u.bundles = u.bundles[:0]
}

// ConformsTo answers conformsTo() in an invariant.
func (u *run) ConformsTo(ctx context.Context, n fhir.Node, url string) (conforms, known bool, err error) {
	p := u.v.profiles.profileOf(url)
	if p == nil {
		return false, false, nil
	}
	other := &run{v: u.v}
	r, ok := n.Element().(fhir.Resource)
	if !ok || u.depth > maxDepth {
		return false, false, nil
	}
	other.begin(ctx, r, &Options{Terminology: u.options.Terminology, Resolver: u.options.Resolver})
	other.depth, other.bundles = u.depth+1, slices.Clone(u.bundles)
	other.fp.Resource, other.fp.RootResource = n, u.rootOf(n)
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
	resource, rootResource, ids := u.fp.Resource, u.fp.RootResource, u.ids
	u.fp.Resource, u.fp.RootResource, u.ids = n, root, nil
	top := len(u.path) == 0
	if top {
		u.path = append(u.path, segment{n.T.Name, -1, n.T})
	}
	b, isBundle := n.Element().(*r4.Bundle)
	if isBundle {
		u.bundles = append(u.bundles, bundleScope{bundle: b})
	}
	u.element(n, u.v.plans.planOf(n.T))
	u.named(n, asked)
	if isBundle {
		u.bundles = u.bundles[:len(u.bundles)-1]
	}
	if top {
		u.path = u.path[:0]
	}
	u.fp.Resource, u.fp.RootResource, u.ids = resource, rootResource, ids
	u.depth--
}

// named applies the profiles that meta.profile and the request name, each once.
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
		if slices.Contains(asked, url) || slices.ContainsFunc(u.nodes[base:i], func(o fhir.Node) bool { return o.Text() == url }) {
			continue
		}
		if p := u.v.profiles.profileOf(url); p != nil {
			u.profile(n, p)
		} else if u.options.Warnings && !u.v.profiles.isBase(url) {
			u.report(outcome.Warning, "profile %s %s; it was not checked", url, u.v.profiles.reasonMissing(url))
		}
	}
	u.nodes = u.nodes[:base]
	for i, url := range asked {
		if slices.Contains(asked[:i], url) {
			continue
		}
		if p := u.v.profiles.profileOf(url); p != nil {
			u.profile(n, p)
		} else if typ, ok := strings.CutPrefix(url, coreDefinitions); ok && u.v.profiles.isBase(url) {
			if typ != n.T.Name && typ != n.T.Base && typ != "Resource" {
				u.report(outcome.Failure, "expected resource type %s, found %s", typ, n.T.Name)
			}
		} else {
			u.report(outcome.Failure, "profile %s %s", url, u.v.profiles.reasonMissing(url))
		}
	}
}

// element validates a complex element or resource against the plan of its type.
func (u *run) element(n fhir.Node, p *plan) {
	contained := false
	content := p.typ.Kind == fhir.ResourceKind
	for i := range p.fields {
		fp := &p.fields[i]
		base := len(u.nodes)
		u.nodes = n.AppendField(u.nodes, fp.field)
		count := len(u.nodes) - base
		u.checkCount(fp, count)
		if count == 0 {
			continue
		}
		content = content || !fp.id
		contained = contained || isContained(fp.field)
		repeats := fp.field.Repeats()
		for j := range count {
			c := u.nodes[base+j]
			u.push(fp.field, repeats, j, c.T)
			if p.special == bundleType {
				u.inEntry(fp.field.Name, j)
			}
			if fp.field.AnyResource {
				u.innerResource(c, fp.field)
			} else {
				u.fieldValue(c, n, fp)
			}
			u.popPath()
		}
		u.nodes = u.nodes[:base]
	}
	if u.lost != nil && u.isDamaged() {
		return
	}
	if !content {
		u.report(outcome.Failure, "%s", noContent)
	}
	u.checkType(n, p, contained)
}

// checkCount checks the number of values of an element.
func (u *run) checkCount(fp *fieldPlan, count int) {
	switch least, most := fp.field.Min, fp.field.Max; {
	case count == 0:
		if least > 0 {
			u.reportMissing(fp)
		}
	case count < least:
		u.report(outcome.Failure, "%s: expected at least %d, found %d", fp.field.Name, least, count)
	case most > 1 && count > most:
		u.report(outcome.Failure, "%s: expected at most %d, found %d", fp.field.Name, most, count)
	}
}

// isContained reports whether a field is DomainResource.contained.
func isContained(f *fhir.Field) bool { return f.AnyResource && f.Name == "contained" }

// innerResource validates a resource inside another one. A contained resource keeps the
// %rootResource of its container; the resource of an entry is its own.
func (u *run) innerResource(n fhir.Node, f *fhir.Field) {
	root := n
	if isContained(f) {
		root = u.fp.RootResource
		u.id(n)
	}
	u.resource(n, root, nil)
}

// fieldValue validates one value of an element of parent: its codes, its content and the
// invariants of the element. If the decoder has lost a part of the value, it checks the
// content alone.
func (u *run) fieldValue(n, parent fhir.Node, fp *fieldPlan) {
	whole := u.lost == nil || !u.isDamaged()
	if fp.binding != nil && whole {
		u.binding(n, fp.binding)
	}
	if fp.maximum != "" && whole {
		u.checkMaximum(n, fp.maximum)
	}
	switch {
	case !n.T.Kind.Primitive():
		p := fp.planOf(u.v.plans, n.T)
		u.element(n, p)
		if whole {
			u.special(n, parent, fp, p)
		}
	case !fp.plain || n.Extra() != nil:
		u.primitive(n, fp, whole)
	}
	if !whole {
		return
	}
	for _, inv := range fp.invariants {
		u.invariant(n, inv)
	}
}

// checkType checks the rules of a type: those in code, then its invariants. contained
// reports whether n has contained resources.
func (u *run) checkType(n fhir.Node, p *plan, contained bool) {
	switch p.special {
	case bundleType:
		u.bundle(n)
	case responseType:
		u.response(n)
	}
	if contained {
		u.contained(n)
	}
	for _, inv := range p.invariants {
		if contained || !inv.contained {
			u.invariant(n, inv)
		}
	}
}

// reportMissing reports that a required element is not there.
func (u *run) reportMissing(fp *fieldPlan) {
	switch {
	case u.lost != nil && u.without(fp.field.Name):
	case !fp.optional:
		u.report(outcome.Failure, "%s is required: expected at least %d, found none", fp.field.Name, fp.field.Min)
	case u.options.Warnings:
		u.report(outcome.Warning, "%s is required by FHIR R4 and not by this server: found none", fp.field.Name)
	}
}

// noContent is ele-1. Its FHIRPath does not count the id.
// Spec: https://hl7.org/fhir/R4/element.html#constraints.
const noContent = "constraint ele-1: an element has a value or children, found neither beside its id"

// primitive validates a primitive beyond its format, which the decoder has checked.
func (u *run) primitive(n fhir.Node, fp *fieldPlan, whole bool) {
	text := n.Text()
	if x := n.Extra(); x != nil {
		if text == "" && len(x.Extension) == 0 && whole {
			u.report(outcome.Failure, "%s", noContent)
		}
		if x.ID.Text != "" {
			u.elementID(x.ID.Text)
		}
		u.extensions(x.Extension, n)
	}
	switch {
	case fp.id:
		if text != "" {
			u.path = u.path[:len(u.path)-1]
			u.elementID(text)
			u.path = u.path[:len(u.path)+1]
		}
	case text == "":
	case fp.absolute && !isAbsolute(text):
		u.reportFailure("expected an absolute URI, found %s", text)
	case fp.absolute:
		u.name(text)
	case n.T.Kind == fhir.CanonicalKind && text[0] != '#' && !isAbsolute(text):
		// R4's own examples have relative ones.
		if u.options.Warnings {
			u.report(outcome.Warning, "expected a canonical URL, which is absolute or starts with #, found %s", text)
		}
	}
}

// isAbsolute reports whether a URI starts with a scheme. Spec: RFC 3986 §4.3.
func isAbsolute(uri string) bool {
	for i := 0; i < len(uri); i++ {
		switch c := uri[i]; {
		case c == ':':
			return i > 0 && i+1 < len(uri)
		case c|0x20 >= 'a' && c|0x20 <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return false
}

// elementID checks that no other element of the resource has the id.
// Spec: https://hl7.org/fhir/R4/element-definitions.html#Element.id.
func (u *run) elementID(id string) {
	key := id
	if u.fp.Resource.T.Name == "StructureDefinition" {
		// A snapshot and a differential have the same elements, each once (sdf-16, sdf-17).
		for _, s := range u.path {
			if s.name == "snapshot" || s.name == "differential" {
				key = s.name + " " + id
			}
		}
	}
	if u.ids[key] {
		u.report(outcome.Failure, "expected an id of its own, another element of the resource has the id %s", id)
		return
	}
	if u.ids == nil {
		u.ids = map[string]bool{}
	}
	u.ids[key] = true
}

// special validates a value, in parent, of a type that the walk knows by name.
func (u *run) special(n, parent fhir.Node, fp *fieldPlan, p *plan) {
	switch p.special {
	case referenceType:
		u.reference(n, fp)
	case extensionType:
		u.extension(n, parent)
	case narrativeType:
		u.narrative(n)
	case codingType:
		if u.options.Strict {
			u.checkConcept(n)
		}
		if u.options.Warnings {
			u.checkDisplay(n)
		}
	case quantityType:
		if u.options.Strict {
			u.checkUnit(n)
		}
	}
}

// isDamaged reports whether the element at the end of the path, or one below it, has lost its
// value: rules that read it would report false faults.
func (u *run) isDamaged() bool {
	at := u.expression()
	return slices.ContainsFunc(u.lost, func(lost string) bool {
		rest, ok := strings.CutPrefix(lost, at)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// without reports whether the values of an element below the end of the path are lost.
func (u *run) without(name string) bool {
	at := u.expression() + "." + name
	return slices.ContainsFunc(u.lost, func(lost string) bool {
		rest, ok := strings.CutPrefix(lost, at)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func (u *run) push(f *fhir.Field, repeats bool, i int, t *fhir.Type) {
	if !repeats {
		i = -1
	}
	u.path = append(u.path, segment{f.Name, i, t})
}

func (u *run) popPath() { u.path = u.path[:len(u.path)-1] }

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
		// The author of a profile chooses the cost of its rules: a resource does not
		// conform to a rule that was too expensive to decide.
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

// Forget empties the caches of profiles. It must be called after conformance resources were
// stored or deleted, or a package was installed.
func (v *Validator) Forget() { v.profiles.forget() }

// Writes is the validator as the write path calls it, with fixed options.
type Writes struct {
	Validator *Validator
	Options   Options
}

// Validate returns the issues of a resource, see Validator.Validate. Rules about
// elements whose JSON could not be read are left out.
func (w Writes) Validate(ctx context.Context, in fhir.Reading) []outcome.Issue {
	return w.Validator.validate(ctx, in.Resource, w.Options, in.Lost)
}
