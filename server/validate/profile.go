package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

const coreDefinitions = "http://hl7.org/fhir/StructureDefinition/"

// profile is a constraint StructureDefinition, ready to be applied.
type profile struct {
	url  string
	typ  string
	root *element
	// Of an extension: where it may stand (nil is anywhere), and whether it is a
	// modifier.
	contexts []extensionContext
	modifier bool
	// unread are its constraints that cannot be compiled, with the reason.
	unread []string
	// sliced are its elements that have slices.
	sliced []slicedElement
}

// slicedElement is an element with slices, with its id.
type slicedElement struct {
	id string
	*element
}

// element is one element definition of a snapshot with its children.
type element struct {
	name       string     // element name, without [x]
	typ        *fhir.Type // nil where it is not known or there are several
	slice      string     // "" for one that is no slice
	min, max   int        // max is fhir.Many without limit
	types      []typeRef
	fixed      fhir.Node
	pattern    fhir.Node
	least      fhir.Node // minValue[x]
	most       fhir.Node // maxValue[x]
	maxLength  int
	binding    *binding
	maximum    string // the maximum value set, "" for none or for the one of the base type
	bound      bool   // the element that a slice belongs to, or the base type, has the binding too
	choice     bool   // value[x]
	wide       bool   // it has all types and targets of the base type's element
	invariants []*invariant
	children   []*element
	slicing    *slicing
	slices     []*element // of a slice: those that it is sliced into again
}

// typeRef is one allowed type of an element.
type typeRef struct {
	code     string
	profiles []string
	targets  []string // profiles of a reference's target
}

// profiles makes and keeps profiles.
type profiles struct {
	validator *Validator
	mu        sync.RWMutex
	byURL     map[string]*profile // nil for one that is not known or is a base definition
	flaws     map[string]string   // why one that is known cannot be used
}

// maxProfiles bounds the cache of profiles by URL, as resources may name any URL.
const maxProfiles = 5000

// profileOf returns the profile with a canonical URL, nil where it is not known or is a
// base definition.
func (ps *profiles) profileOf(url string) *profile {
	ps.mu.RLock()
	p, ok := ps.byURL[url]
	ps.mu.RUnlock()
	if ok {
		return p
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, err := ps.make(url)
	if len(ps.byURL) < maxProfiles {
		ps.byURL[strings.Clone(url)] = p
		if err != nil {
			ps.flaws[strings.Clone(url)] = err.Error()
		}
	}
	return p
}

// reasonMissing says why of returns nothing.
func (ps *profiles) reasonMissing(url string) string {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	if why := ps.flaws[url]; why != "" {
		return "cannot be used: " + why
	}
	return "is not known here"
}

// isBase reports whether url is the definition of a type of the model.
func (ps *profiles) isBase(url string) bool {
	url, _, _ = strings.Cut(url, "|")
	name, ok := strings.CutPrefix(url, coreDefinitions)
	return ok && (ps.validator.plans.typeNamed(name) != nil || name == "Resource" || name == "DomainResource")
}

// forget drops the cache of a profile, after its definition changed.
func (ps *profiles) forget() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	clear(ps.byURL)
	clear(ps.flaws)
}

func (ps *profiles) make(url string) (*profile, error) {
	if ps.isBase(url) {
		return nil, nil
	}
	v := ps.validator
	sd, ok := load[*r4.StructureDefinition](v.plans.model, v.definitions, url)
	if !ok || sd.Derivation.Text != "constraint" && sd.Type_.Text != "Extension" {
		return nil, nil
	}
	return ps.prepare(sd, false)
}

// prepare makes a definition ready to be applied. inherited asks for the
// constraints that stand in the base definitions too; they are left out
// otherwise, since the base is checked for itself.
func (ps *profiles) prepare(sd *r4.StructureDefinition, inherited bool) (*profile, error) {
	v := ps.validator
	list, err := v.snapshot(sd, 0)
	if err != nil {
		return nil, err
	}
	p := &profile{url: strings.Clone(sd.URL.Text), typ: strings.Clone(sd.Type_.Text)}
	byID := map[string]*element{}
	v.plans.mu.Lock()
	defer v.plans.mu.Unlock()
	for i := range list {
		d := &list[i]
		id := d.ID.Text
		e := ps.element(p, d, inherited)
		byID[id] = e
		dot := strings.LastIndexByte(id, '.')
		if dot < 0 {
			e.typ = v.plans.typeNamed(p.typ)
			p.root = e
			continue
		}
		parent := byID[id[:dot]]
		if parent == nil {
			continue
		}
		v.plans.setType(e, parent)
		if e.slice == "" {
			parent.children = append(parent.children, e)
			continue
		}
		// A slice stands beside the element it slices.
		whole := byID[id[:strings.LastIndexByte(id, ':')]]
		if slash := strings.LastIndexByte(id, '/'); slash > strings.LastIndexByte(id, ':') && byID[id[:slash]] != nil {
			whole = byID[id[:slash]]
		}
		if whole == nil {
			whole = &element{name: e.name, max: fhir.Many}
			parent.children = append(parent.children, whole)
			byID[id[:strings.LastIndexByte(id, ':')]] = whole
		}
		whole.slices = append(whole.slices, e)
	}
	if p.root == nil {
		return nil, fmt.Errorf("its snapshot has no root element")
	}
	p.modifier = list[0].IsModifier.Text == "true"
	for i := range sd.Context {
		c := &sd.Context[i]
		x := extensionContext{kind: strings.Clone(c.Type_.Text), expression: strings.Clone(strings.ReplaceAll(c.Expression.Text, "[x]", ""))}
		if x.kind == "fhirpath" {
			if x.program, err = ps.validator.plans.compileExpression(c.Expression.Text, nil); err != nil {
				p.contexts = nil // anywhere
				p.unread = append(p.unread, fmt.Sprintf("context %s cannot be compiled: %v", x.expression, err))
				break
			}
		}
		p.contexts = append(p.contexts, x)
	}
	// Before elements share their children: these make a tree here.
	for i := range list {
		if e := byID[list[i].ID.Text]; len(e.slices) > 0 {
			for _, s := range e.slices {
				markInherited(s, e)
			}
			if e.slicing != nil {
				p.sliced = append(p.sliced, slicedElement{strings.Clone(list[i].ID.Text), e})
			}
		}
	}
	// An element with a contentReference has the children and constraints of its target.
	for i := range list {
		_, id, ok := strings.Cut(list[i].ContentReference.Text, "#")
		if to := byID[id]; ok && to != nil {
			e := byID[list[i].ID.Text]
			if len(e.children) == 0 {
				e.children = to.children
			}
			e.invariants = append(e.invariants, to.invariants...)
		}
	}
	return p, nil
}

// setType finds the type of e, an element of parent, and whether the base definition has
// its binding.
func (ps *plans) setType(e, parent *element) {
	if parent.typ != nil {
		if f := parent.typ.Field(e.name); f != nil {
			if f.Of != nil {
				e.typ = f.Of.Type()
			}
			e.bound = e.binding != nil && e.binding.valueSet == f.Binding.ValueSet
			e.wide = e.allTypes(f)
		}
	}
	if e.typ == nil && len(e.types) == 1 {
		e.typ = ps.typeNamed(e.types[0].code)
	}
}

// allTypes reports whether e has all types and targets of a base type's element.
func (e *element) allTypes(f *fhir.Field) bool {
	if f.Of == nil {
		return !f.AnyResource && len(f.Choices) > 0 && len(e.types) >= len(f.Choices)
	}
	if len(e.types) != 1 || len(e.types[0].profiles) > 0 {
		return false
	}
	targets := e.types[0].targets
	return len(targets) >= len(f.Targets) && !slices.ContainsFunc(targets, func(url string) bool {
		typ, core := strings.CutPrefix(url, coreDefinitions)
		return !core || typ != "Resource" && !slices.Contains(f.Targets, typ)
	})
}

// markInherited marks the bindings of a slice that the element as a whole has too: they
// do not distinguish the slice.
func markInherited(s, whole *element) {
	if s.binding != nil && whole.binding != nil && s.binding.valueSet == whole.binding.valueSet {
		s.bound = true
	}
	for _, c := range s.children {
		for _, w := range whole.children {
			if c.name == w.name {
				markInherited(c, w)
			}
		}
	}
}

func (ps *profiles) element(p *profile, d *r4.ElementDefinition, inherited bool) *element {
	path := d.Path.Text
	name, choice := strings.CutSuffix(path[strings.LastIndexByte(path, '.')+1:], "[x]")
	e := &element{name: strings.Clone(name), choice: choice, max: fhir.Many}
	last := d.ID.Text[strings.LastIndexByte(d.ID.Text, '.')+1:]
	if _, slice, ok := strings.Cut(last, ":"); ok {
		e.slice = strings.Clone(slice)
	}
	e.min, _ = strconv.Atoi(d.Min.Text)
	if n, err := strconv.Atoi(d.Max.Text); err == nil {
		e.max = n
	}
	e.maxLength, _ = strconv.Atoi(d.MaxLength.Text)
	for i := range d.Type_ {
		t := &d.Type_[i]
		r := typeRef{code: strings.Clone(t.Code.Text)}
		for j := range t.Profile {
			r.profiles = append(r.profiles, strings.Clone(t.Profile[j].Text))
		}
		for j := range t.TargetProfile {
			r.targets = append(r.targets, strings.Clone(t.TargetProfile[j].Text))
		}
		e.types = append(e.types, r)
	}
	e.fixed, e.pattern = ps.detach(d.Fixed), ps.detach(d.Pattern)
	e.least, e.most = ps.detach(d.MinValue), ps.detach(d.MaxValue)
	if b := d.Binding; b != nil && b.ValueSet.Text != "" && (b.Strength.Text == "required" || b.Strength.Text == "extensible") {
		e.binding = &binding{required: b.Strength.Text == "required", valueSet: strings.Clone(strings.Split(b.ValueSet.Text, "|")[0])}
	}
	if d.Binding != nil {
		e.maximum = maximumOf(d.Binding)
	}
	for _, c := range d.Constraint {
		// Constraints of the base definitions are checked with the base.
		if !inherited && (ps.isBase(c.Source.Text) || c.Source.Text == "" && strings.HasPrefix(c.Key.Text, "dom-")) {
			continue
		}
		inv, err := ps.validator.plans.interpretInvariant(c)
		if err != nil {
			p.unread = append(p.unread, fmt.Sprintf("constraint %s of %s was not checked: %v", c.Key.Text, d.ID.Text, err))
		} else if inv != nil {
			e.invariants = append(e.invariants, inv)
		}
	}
	if s := d.Slicing; s != nil {
		e.slicing = &slicing{closed: s.Rules.Text == "closed", openAtEnd: s.Rules.Text == "openAtEnd", ordered: s.Ordered.Text == "true"}
		for i := range s.Discriminator {
			e.slicing.discriminators = append(e.slicing.discriminators, readDiscriminator(&s.Discriminator[i]))
		}
	}
	return e
}

// detach copies a value, whose strings are parts of the whole definition's JSON,
// so that a profile does not hold that.
func (ps *profiles) detach(e fhir.Element) fhir.Node {
	if e == nil {
		return fhir.Node{}
	}
	name := e.Type().Name
	b := []byte(`{"resourceType":"Parameters","parameter":[{"name":"v","value` + strings.ToUpper(name[:1]) + name[1:] + `":`)
	b = append(fhir.Encode(b, e), "}]}"...)
	if r, err := fhir.Decode(ps.validator.plans.model, b); err == nil {
		if p, ok := r.(*r4.Parameters); ok && p.Parameter[0].Value != nil {
			return fhir.NodeOf(p.Parameter[0].Value)
		}
	}
	return fhir.NodeOf(e)
}

// profile validates n against a profile.
func (u *run) profile(n fhir.Node, p *profile) {
	outer := u.applied
	u.applied = p
	defer func() { u.applied = outer }()
	if u.depth++; u.depth > maxDepth {
		u.depth--
		u.report(outcome.Failure, "profile %s refers to itself without end", p.url)
		return
	}
	if !u.isType(n.T, p.typ) {
		u.report(outcome.Failure, "profile %s is for %s, found a %s", p.url, p.typ, n.T.Name)
	} else {
		u.against(n, p.root)
		if u.options.Warnings {
			for _, text := range p.unread {
				u.report(outcome.Warning, "%s", text)
			}
			u.undecidedSlices(p)
		}
	}
	u.depth--
}

// undecidedSlices warns of the slices of a profile that fix nothing by which they could be
// told from others.
func (u *run) undecidedSlices(p *profile) {
	for _, e := range p.sliced {
		for _, s := range e.slices {
			if path, is := u.undecided(e.element, s); is {
				u.report(outcome.Warning, "slice %s of %s could not be distinguished: it fixes no value at %s, the path of the discriminator", s.slice, e.id, path)
			}
		}
	}
}

// isType reports whether t is the named type or specialises it.
func (u *run) isType(t *fhir.Type, name string) bool {
	for range 6 {
		if t.Name == name || t.Base == name || name == "Resource" && t.Kind == fhir.ResourceKind || name == "Element" {
			return true
		}
		base := u.v.plans.typeNamed(t.Base)
		if base == nil {
			return false
		}
		t = base
	}
	return false
}

// against validates the children of n and the invariants of e. Where n is a resource
// inside another, it is %resource of its children. It is %resource of the invariants too
// where e is the root of its profile; where e is an element, such as Bundle.entry.resource,
// that is the resource which has the element.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#variables.
func (u *run) against(n fhir.Node, e *element) {
	resource, root := u.fp.Resource, u.fp.RootResource
	if n.T.Kind == fhir.ResourceKind && !n.Same(resource) {
		u.fp.Resource, u.fp.RootResource = n, u.rootOf(n)
	}
	for _, c := range e.children {
		base := len(u.nodes)
		u.nodes = n.AppendChild(u.nodes, c.name)
		u.groupSlices(n, c, base, len(u.nodes))
		u.nodes = u.nodes[:base]
	}
	if u.applied == nil || e != u.applied.root {
		u.fp.Resource, u.fp.RootResource = resource, root
	}
	for _, inv := range e.invariants {
		u.invariant(n, inv)
	}
	u.fp.Resource, u.fp.RootResource = resource, root
}

func (u *run) cardinality(name string, low, high, count int) {
	switch {
	case count == 0 && low > 0:
		u.reportOnce("%s is required: expected at least %d, found none", name, low)
	case count < low:
		u.reportOnce("%s: expected at least %d, found %d", name, low, count)
	case high == 0 && count > 0:
		u.reportOnce("%s is not allowed here", name)
	case high >= 0 && count > high:
		u.reportOnce("%s: expected at most %d, found %d", name, high, count)
	}
}

// reportOnce reports an error that the base or another profile may have reported.
func (u *run) reportOnce(format string, args ...any) {
	text, at := fmt.Sprintf(format, args...), u.expression()
	for i := range u.issues {
		if said := u.issues[i].Diagnostics; (said == text || said == text+u.reportedBy()) && u.issues[i].Expression == at {
			return
		}
	}
	u.report(outcome.Failure, "%s", text)
}

// checkItem validates one value against its definition.
func (u *run) checkItem(n fhir.Node, e *element) {
	ref := u.allowedType(n, e)
	if len(e.types) > 0 && ref == nil {
		u.reportOnce("expected %s, found %s", typeNames(e.types), n.T.Name)
		return
	}
	if ref != nil {
		u.typeProfiles(n, ref)
		if len(ref.targets) > 0 {
			u.checkTargets(n, ref)
		}
	}
	if e.fixed.T != nil && !equal(n, e.fixed) {
		u.reportOnce("expected %s, found %s", showValue(e.fixed), showValue(n))
	}
	if e.pattern.T != nil && !contains(n, e.pattern) {
		u.reportOnce("expected at least %s, found %s", showValue(e.pattern), showValue(n))
	}
	if e.least.T != nil && !constraint.Possible(n.Element(), ">=", e.least.Element()) {
		u.reportOnce("expected %s or more, found %s", showValue(e.least), showValue(n))
	}
	if e.most.T != nil && !constraint.Possible(n.Element(), "<=", e.most.Element()) {
		u.reportOnce("expected %s or less, found %s", showValue(e.most), showValue(n))
	}
	if e.maxLength > 0 && len([]rune(n.Text())) > e.maxLength {
		u.reportOnce("expected at most %d characters, found %d", e.maxLength, len([]rune(n.Text())))
	}
	if e.binding != nil {
		before := len(u.issues)
		u.binding(n, e.binding)
		// The base may have said so already.
		if len(u.issues) > before {
			last := u.issues[before]
			u.issues = u.issues[:before]
			if last.Severity == outcome.Failure {
				u.reportOnce("%s", strings.TrimSuffix(last.Diagnostics, u.reportedBy()))
			} else {
				u.issues = append(u.issues, last)
			}
		}
	}
	if e.maximum != "" {
		u.checkMaximum(n, e.maximum)
	}
	u.against(n, e)
}

// allowedType returns the type of e that n is of.
func (u *run) allowedType(n fhir.Node, e *element) *typeRef {
	for i := range e.types {
		code := e.types[i].code
		// Some definitions call Element.id and Extension.url a string or uri.
		if n.T.Kind == fhir.SystemStringKind || strings.HasPrefix(code, "http://hl7.org/fhirpath/") || u.isExactly(n.T, code) {
			return &e.types[i]
		}
	}
	return nil
}

// isExactly reports whether t is the named type. A code is no string here, though it
// specialises string: only an abstract type stands for those below it.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.type.
func (u *run) isExactly(t *fhir.Type, name string) bool {
	switch name {
	case "Element", "BackboneElement", "Resource", "DomainResource":
		return u.isType(t, name) || name == "BackboneElement" && strings.Contains(t.Name, ".")
	}
	return t.Name == name
}

func typeNames(list []typeRef) string {
	var names []string
	for _, t := range list {
		names = append(names, t.code)
	}
	return strings.Join(names, " or ")
}

// typeProfiles applies the profiles of a type: one of them must hold.
func (u *run) typeProfiles(n fhir.Node, ref *typeRef) {
	var known []*profile
	for _, url := range ref.profiles {
		p := u.v.profiles.profileOf(url)
		if p == nil {
			if u.options.Warnings && !u.v.profiles.isBase(url) {
				u.reportAs(outcome.Warning, outcome.CodeIncomplete, "profile %s %s; it was not checked", url, u.v.profiles.reasonMissing(url))
			}
			return // one that cannot be looked at may hold
		}
		known = append(known, p)
	}
	switch len(known) {
	case 0:
	case 1:
		u.profile(n, known[0])
	default:
		near := match{}
		for _, p := range known {
			failures := u.failuresOf(n, p)
			if len(failures) == 0 {
				return
			}
			near = nearestMatch(near, match{verdict: out, why: firstFailure(failures), fails: len(failures)})
		}
		u.reportOnce("expected conformance with one of %s; the nearest fails: %s", strings.Join(ref.profiles, ", "), near.why)
	}
}

// tried names a resource or element and a profile that it was held against.
type tried struct {
	element fhir.Element
	profile *profile
}

// failuresOf returns the rules of a profile that n fails, without reporting them. Resources
// that refer to each other conform where nothing but that is to be shown.
func (u *run) failuresOf(n fhir.Node, p *profile) []outcome.Issue {
	if u.depth > maxDepth {
		return []outcome.Issue{{Severity: outcome.Failure, Diagnostics: "profile " + p.url + " refers to itself without end", Expression: n.T.Name}}
	}
	if u.tried == nil {
		u.tried = map[tried][]outcome.Issue{}
	}
	key := tried{n.Element(), p}
	if known, ok := u.tried[key]; ok {
		return known
	}
	u.tried[key] = nil
	other := &run{v: u.v, ctx: u.ctx, options: &Options{Terminology: u.options.Terminology, Resolver: u.options.Resolver},
		fp: u.fp, depth: u.depth + 1, bundles: slices.Clone(u.bundles), tried: u.tried, path: []segment{{n.T.Name, -1, n.T}}}
	other.fp.Resolver, other.fp.Profiles = other, other
	other.profile(n, p)
	u.tried[key] = other.issues
	return other.issues
}

// load decodes the definition with a canonical URL.
func load[T fhir.Resource](m *fhir.Model, d Definitions, url string) (T, bool) {
	var none T
	b, ok := d.Resolve(url)
	if !ok {
		return none, false
	}
	r, err := fhir.Decode(m, b)
	if err != nil {
		return none, false
	}
	t, ok := r.(T)
	return t, ok
}
