package validate

import (
	"fmt"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// discriminator is one ElementDefinition.slicing.discriminator.
// Spec: https://hl7.org/fhir/R4/profiling.html#discriminator.
type discriminator struct {
	kind  string // value, pattern, exists, type, profile
	path  string
	steps []step // of the path; empty for $this
	// unread says that the path is not of the restricted FHIRPath of discriminators.
	unread bool
}

// step is one step of a discriminator's path.
type step struct {
	kind stepKind
	name string // of an element, the url of an extension, a type
}

type stepKind uint8

const (
	elementStep   stepKind = iota // system
	extensionStep                 // extension('http://…')
	resolveStep                   // resolve()
	typeStep                      // ofType(Quantity)
)

// readDiscriminator reads the path of a discriminator into steps.
// Spec: https://hl7.org/fhir/R4/profiling.html#discriminator, restricted FHIRPath.
func readDiscriminator(d *r4.ElementDefinitionSlicingDiscriminator) discriminator {
	out := discriminator{kind: strings.Clone(d.Type_.Text), path: strings.Clone(d.Path.Text)}
	expr, err := fhirpath.Parse(out.path)
	if err != nil {
		out.unread = true
		return out
	}
	for n := expr.Root; n != nil && !out.unread; {
		s := step{}
		switch m := n.(type) {
		case *fhirpath.Special:
			out.unread = m.Name != "this"
			n = nil
			continue
		case *fhirpath.Member:
			s.kind, s.name, n = elementStep, m.Name, m.Left
		case *fhirpath.TypeOp:
			out.unread = m.Op != "as"
			s.kind, s.name, n = typeStep, m.Type.Name, m.X
		case *fhirpath.Call:
			s.kind, s.name, out.unread = readCall(m)
			n = m.Left
		default:
			out.unread = true
		}
		out.steps = append(out.steps, s)
	}
	slices.Reverse(out.steps)
	for i := range out.steps {
		out.steps[i].name = strings.Clone(out.steps[i].name)
	}
	return out
}

// readCall reads a function of the restricted FHIRPath.
func readCall(c *fhirpath.Call) (kind stepKind, name string, unread bool) {
	switch {
	case c.Name == "resolve" && len(c.Args) == 0:
		return resolveStep, "", false
	case c.Name == "extension" && len(c.Args) == 1:
		if l, ok := c.Args[0].(*fhirpath.Literal); ok && l.Kind == fhirpath.StringLiteral {
			return extensionStep, l.Text, false
		}
	case (c.Name == "ofType" || c.Name == "as") && len(c.Args) == 1:
		if m, ok := c.Args[0].(*fhirpath.Member); ok {
			return typeStep, m.Name, false
		}
	}
	return 0, "", true
}

// verdict is the answer to whether a value is in a slice.
type verdict uint8

const (
	open   verdict = iota // the slice leaves the discriminator open
	in                    // the value is in the slice
	out                   // it is not
	unsure                // that cannot be decided here
)

// match is a verdict with its reason.
type match struct {
	verdict
	why string // of unsure; of out by a profile: the first rule that fails
	// fails counts the rules of the profile that fail.
	fails int
}

// matches decides whether n, a value of c, is in slice s of c. A discriminator that the
// slice leaves open does not count; if all are open, nothing can be decided.
func (u *run) matches(n fhir.Node, c, s *element) match {
	if c.slicing == nil || len(c.slicing.discriminators) == 0 {
		// The slices of a choice element need no discriminator: their types differ.
		if !c.choice || len(s.types) == 0 || len(s.types) > 1 && len(s.types) == len(c.types) {
			return match{verdict: unsure, why: "the slicing has no discriminator"}
		}
		if u.allowedType(n, s) != nil {
			return match{verdict: in}
		}
		return match{verdict: out}
	}
	all := match{}
	values := [1]fhir.Node{n}
	for i := range c.slicing.discriminators {
		switch m := u.discriminate(values[:], &c.slicing.discriminators[i], c, s); m.verdict {
		case out:
			return m
		case unsure:
			all = m
		case in:
			if all.verdict == open {
				all = m
			}
		}
	}
	if all.verdict == open {
		all = match{verdict: unsure, why: "the slice leaves every discriminator open"}
	}
	return all
}

// discriminate decides by one discriminator whether values, the one value of c or none,
// are in slice s.
func (u *run) discriminate(values []fhir.Node, d *discriminator, c, s *element) match {
	if d.unread {
		return match{verdict: unsure, why: "its discriminator " + d.path + " is not of the FHIRPath that discriminators may have"}
	}
	switch d.kind {
	case "value", "pattern":
		return u.byValue(values, layers{s}, d.steps)
	case "exists":
		if len(d.steps) > 0 {
			return u.byExistence(values, layers{s}, d.steps)
		}
	case "type", "profile":
		return u.byType(values, d, c, s)
	}
	return match{verdict: unsure, why: "its discriminator of type " + d.kind + " by " + d.path + " cannot be used"}
}

// undecided returns the first discriminator of c that slice s leaves open, if it leaves
// all of them open: its values cannot be told from others then.
func (u *run) undecided(c, s *element) (path string, is bool) {
	for i := range c.slicing.discriminators {
		d := &c.slicing.discriminators[i]
		if m := u.discriminate(nil, d, c, s); m.verdict == in || m.verdict == out {
			return "", false
		}
		if path == "" {
			path = d.path
		}
	}
	return path, len(c.slicing.discriminators) > 0
}

// layers are the definitions of the values at one step of a path. All of them hold.
type layers []*element

// maxAlternatives bounds the alternatives of one step.
const maxAlternatives = 64

// expand adds the profiles of the type of each definition. Each profile of a type is an
// alternative. why says which profile is not known, "" for none.
func (u *run) expand(at layers) (alternatives []layers, why string) {
	alternatives = []layers{at}
	for _, e := range at {
		if len(e.types) != 1 {
			continue
		}
		var next []layers
		for _, url := range e.types[0].profiles {
			p := u.v.profiles.profileOf(url)
			if p == nil && !u.v.profiles.isBase(url) {
				why = "profile " + url + " " + u.v.profiles.reasonMissing(url)
			}
			for _, a := range alternatives {
				if p != nil {
					a = append(slices.Clip(a), p.root)
				}
				next = append(next, a)
			}
		}
		if len(next) > 0 && len(next) <= maxAlternatives {
			alternatives = next
		}
	}
	return alternatives, why
}

// follow returns the definitions behind a step: each slice of the element is an
// alternative, and whole is the element itself.
func (u *run) follow(at layers, s step) (sliced []layers, whole layers) {
	name := s.name
	switch s.kind {
	case resolveStep:
		for _, e := range at {
			for _, t := range e.types {
				for _, url := range t.targets {
					typ, known := u.targetType(url)
					if !known {
						typ = "Resource"
					}
					sliced = append(sliced, layers{{name: typ, max: 1, wide: e.wide, types: []typeRef{{code: typ, profiles: []string{url}}}}})
				}
			}
		}
		return sliced, nil
	case typeStep:
		isType := func(t typeRef) bool { return t.code == name }
		for _, e := range at {
			for _, c := range e.slices {
				if len(c.types) == 1 && c.types[0].code == name {
					sliced = append(sliced, layers{c})
				}
			}
			if len(e.types) == 0 || slices.ContainsFunc(e.types, isType) {
				whole = append(whole, e)
			}
		}
		return sliced, whole
	case extensionStep:
		name = "extension"
	}
	for _, e := range at {
		for _, c := range e.children {
			if c.name != name {
				continue
			}
			for _, x := range c.slices {
				if s.kind != extensionStep || x.isExtension(s.name) {
					sliced = append(sliced, layers{x})
				}
			}
			if s.kind != extensionStep {
				whole = append(whole, c)
			}
		}
	}
	return sliced, whole
}

// isExtension reports whether a slice has the extension with a url.
func (e *element) isExtension(url string) bool {
	for _, t := range e.types {
		for _, p := range t.profiles {
			if p, _, _ = strings.Cut(p, "|"); p == url {
				return true
			}
		}
	}
	for _, c := range e.children {
		if c.name == "url" && c.fixed.T != nil && c.fixed.Text() == url {
			return true
		}
	}
	return false
}

// walk returns the values to which steps lead. lost says that a reference on the way
// could not be resolved.
func (u *run) walk(values []fhir.Node, steps []step) (found []fhir.Node, lost bool) {
	for _, s := range steps {
		var next []fhir.Node
		for _, n := range values {
			switch s.kind {
			case elementStep:
				next = n.AppendChild(next, s.name)
			case extensionStep:
				for _, x := range n.AppendChild(nil, "extension") {
					if e, ok := x.Element().(*fhir.Extension); ok && e.URL.Text == s.name {
						next = append(next, x)
					}
				}
			case typeStep:
				if u.isType(n.T, s.name) {
					next = append(next, n)
				}
			case resolveStep:
				target, ok := u.targetOf(n)
				if ok {
					next = append(next, target)
				}
				lost = lost || !ok
			}
		}
		values = next
	}
	return values, lost
}

// targetOf returns the resource that a Reference or canonical names, where it is in the
// resource or Bundle that is being validated or Options.Resolver finds it.
func (u *run) targetOf(n fhir.Node) (fhir.Node, bool) {
	name := n.Text()
	if r, ok := n.Element().(*r4.Reference); ok {
		name = r.Reference.Text
	}
	if name == "" {
		return fhir.Node{}, false
	}
	if n, ok := u.resolved(name); ok {
		return n, true
	}
	r, err := u.Resolve(u.ctx, name)
	if err != nil || r == nil {
		return fhir.Node{}, false
	}
	return fhir.NodeOf(r), true
}

const (
	notResolved = "a reference leads to a resource that is not here"
	notCoded    = "whether a code is in the value set is not known here"
)

// both joins two verdicts that both have to hold.
func both(a, b match) match {
	switch {
	case a.verdict == open || b.verdict == out || a.verdict == in && b.verdict == unsure:
		return b
	}
	return a
}

// either joins two verdicts of which one has to hold.
func either(a, b match) match {
	switch {
	case a.verdict == open || b.verdict == in || a.verdict == out && b.verdict == unsure:
		return b
	}
	return a
}

// byValue decides by the fixed values, patterns and bindings of the definitions at each
// step of a path.
func (u *run) byValue(values []fhir.Node, at layers, rest []step) match {
	if m, is := urlOf(values, at, rest); is {
		return m
	}
	alternatives, unknown := u.expand(at)
	all := match{}
	for _, a := range alternatives {
		m := match{}
		for _, e := range a {
			m = both(m, u.byFixed(values, e, rest))
		}
		if len(rest) > 0 && m.verdict != out {
			m = both(m, u.byNext(values, a, rest))
		}
		all = either(all, m)
	}
	if all.verdict != in && unknown != "" {
		return match{verdict: unsure, why: unknown}
	}
	return all
}

// byNext is byValue behind the next step of the path.
func (u *run) byNext(values []fhir.Node, at layers, rest []step) match {
	next, lost := u.walk(values, rest[:1])
	sliced, whole := u.follow(at, rest[0])
	m := match{}
	for _, p := range sliced {
		m = either(m, u.byValue(next, p, rest[1:]))
	}
	if m.verdict == open && len(whole) > 0 {
		m = u.byValue(next, whole, rest[1:])
	}
	if m.verdict == out && lost {
		return match{verdict: unsure, why: notResolved}
	}
	return m
}

// byFixed decides by the fixed value, pattern or required binding of one definition.
func (u *run) byFixed(values []fhir.Node, e *element, rest []step) match {
	m := match{}
	for _, fixed := range []fhir.Node{e.fixed, e.pattern} {
		if fixed.T == nil {
			continue
		}
		want, _ := u.walk([]fhir.Node{fixed}, rest)
		if len(want) == 0 {
			continue
		}
		have, lost := u.walk(values, rest)
		found := match{verdict: in}
		for _, w := range want {
			if !slices.ContainsFunc(have, func(h fhir.Node) bool {
				return e.fixed.T != nil && equal(h, w) || e.fixed.T == nil && contains(h, w)
			}) {
				found.verdict = out
			}
		}
		if found.verdict == out && lost {
			found = match{verdict: unsure, why: notResolved}
		}
		m = both(m, found)
	}
	if m.verdict == open && len(rest) == 0 && e.binding != nil && e.binding.required && !e.bound {
		m.verdict = out
		for _, n := range values {
			switch u.coded(n, e.binding) {
			case inside:
				return match{verdict: in}
			case undecidable:
				m = match{verdict: unsure, why: notCoded}
			}
		}
	}
	return m
}

// urlOf decides by the url of an extension: the profiles of the slice's type name it,
// whether their definitions are known here or not.
func urlOf(values []fhir.Node, at layers, rest []step) (m match, is bool) {
	if len(rest) != 1 || rest[0] != (step{elementStep, "url"}) {
		return m, false
	}
	for _, e := range at {
		for _, t := range e.types {
			if t.code != "Extension" || len(t.profiles) == 0 {
				continue
			}
			for _, n := range values {
				if x, ok := n.Element().(*fhir.Extension); ok && e.isExtension(x.URL.Text) {
					return match{verdict: in}, true
				}
			}
			return match{verdict: out}, true
		}
	}
	return m, false
}

// byExistence decides by the cardinality of the element at the end of the path.
func (u *run) byExistence(values []fhir.Node, at layers, rest []step) match {
	alternatives, unknown := u.expand(at)
	all := match{}
	for _, a := range alternatives {
		all = either(all, u.existence(values, a, rest))
	}
	if all.verdict == open && unknown != "" {
		return match{verdict: unsure, why: unknown}
	}
	return all
}

func (u *run) existence(values []fhir.Node, at layers, rest []step) match {
	here := func(wanted bool) match {
		found, lost := u.walk(values, rest)
		switch {
		case lost && len(found) == 0:
			return match{verdict: unsure, why: notResolved}
		case wanted == (len(found) > 0):
			return match{verdict: in}
		}
		return match{verdict: out}
	}
	sliced, whole := u.follow(at, rest[0])
	definitions := []layers{whole}
	if len(whole) == 0 || len(rest) == 1 {
		definitions = append(definitions, sliced...)
	}
	required := false
	for i, p := range definitions {
		for _, e := range p {
			if e.max == 0 && (i == 0 || len(whole) == 0) {
				return here(false)
			}
			required = required || e.min > 0
		}
	}
	if len(rest) == 1 {
		if required {
			return here(true)
		}
		return match{}
	}
	next, lost := u.walk(values, rest[:1])
	m := match{}
	for _, p := range definitions {
		if len(p) > 0 {
			m = either(m, u.byExistence(next, p, rest[1:]))
		}
	}
	if m.verdict == out && lost {
		return match{verdict: unsure, why: notResolved}
	}
	return m
}

// byType decides by the type or the profile of the element at the end of the path.
func (u *run) byType(values []fhir.Node, d *discriminator, c, s *element) match {
	ends, unknown := u.ends(layers{s}, d.steps)
	whole, _ := u.ends(layers{c}, d.steps)
	if d.kind == "type" && sameTypes(ends, whole) && (len(d.steps) > 0 || len(s.types) > 1) {
		ends = nil
	}
	steps, byTarget := d.steps, false
	if n := len(steps); n > 0 && steps[n-1].kind == resolveStep {
		steps, byTarget = steps[:n-1], true
	}
	found, lost := u.walk(values, steps)
	all := match{}
	for _, p := range ends {
		m := match{}
		for _, e := range p {
			if !e.restricts() {
				continue
			}
			one := match{verdict: out}
			for _, n := range found {
				if byTarget {
					one = nearestMatch(one, u.ofTarget(n, e, d.kind == "profile"))
				} else {
					one = nearestMatch(one, u.ofType(n, e, d.kind == "profile"))
				}
			}
			m = both(m, one)
		}
		all = nearestMatch(all, m)
	}
	switch {
	case all.verdict == out && lost:
		return match{verdict: unsure, why: notResolved}
	case all.verdict == open && unknown != "":
		return match{verdict: unsure, why: unknown}
	}
	return all
}

// sameTypes reports whether a slice has the types of the whole element at the end of a
// path, and so leaves them open.
func sameTypes(slice, whole []layers) bool {
	names := func(list []layers) (all []string) {
		for _, p := range list {
			for _, e := range p {
				for _, t := range e.types {
					all = append(all, t.code)
					all = append(all, t.profiles...)
				}
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	return slices.Equal(names(slice), names(whole))
}

// nearestMatch is either; of two profiles that fail it returns the one of which fewer rules
// fail.
func nearestMatch(a, b match) match {
	if a.verdict == out && b.verdict == out {
		if a.why != "" && (b.why == "" || a.fails <= b.fails) {
			return a
		}
		return b
	}
	return either(a, b)
}

// restricts reports whether the types of a definition exclude something.
func (e *element) restricts() bool {
	return !slices.ContainsFunc(e.types, func(t typeRef) bool {
		any := t.code == "Resource" || t.code == "DomainResource" || t.code == "Element"
		for _, url := range t.profiles {
			any = any && (url == coreDefinitions+"Resource" || url == coreDefinitions+"DomainResource")
		}
		return any
	}) && len(e.types) > 0 && !e.wide
}

// ends returns the definitions at the end of a path, as alternatives.
func (u *run) ends(at layers, steps []step) (all []layers, unknown string) {
	if len(steps) == 0 {
		return []layers{at}, ""
	}
	alternatives, unknown := u.expand(at)
	for _, a := range alternatives {
		sliced, whole := u.follow(a, steps[0])
		next := sliced
		if len(whole) > 0 && !slices.ContainsFunc(sliced, func(p layers) bool { return p[0].min > 0 }) {
			next = []layers{whole}
		}
		for _, p := range next {
			found, why := u.ends(p, steps[1:])
			if all = append(all, found...); why != "" {
				unknown = why
			}
		}
	}
	return all, unknown
}

// ofType decides whether n is of a type of e and, where asked, conforms to its profiles.
func (u *run) ofType(n fhir.Node, e *element, profiles bool) match {
	all := match{}
	for _, t := range e.types {
		m := match{verdict: out}
		if u.isExactly(n.T, t.code) {
			m.verdict = in
		}
		if !profiles && m.verdict == in && len(t.profiles) > 0 {
			m = u.ofProfileType(n, t)
		}
		if profiles && m.verdict == in && len(t.profiles) > 0 {
			m = match{}
			for _, url := range t.profiles {
				m = nearestMatch(m, u.ofProfile(n, url))
			}
		}
		all = nearestMatch(all, m)
	}
	return all
}

// ofProfileType decides whether n is of the type of one of the profiles of t.
func (u *run) ofProfileType(n fhir.Node, t typeRef) match {
	m := match{}
	for _, url := range t.profiles {
		one := match{verdict: out}
		if typ, known := u.targetType(url); !known && t.code != "Resource" || known && u.isType(n.T, typ) {
			one.verdict = in
		} else if !known {
			one = match{verdict: unsure, why: "profile " + url + " " + u.v.profiles.reasonMissing(url)}
		}
		m = either(m, one)
	}
	return m
}

// ofProfile decides whether n conforms to a profile.
func (u *run) ofProfile(n fhir.Node, url string) match {
	if typ, known := u.targetType(url); known && !u.isType(n.T, typ) {
		return match{verdict: out}
	}
	p := u.v.profiles.profileOf(url)
	if p == nil {
		if u.v.profiles.isBase(url) {
			return match{verdict: in}
		}
		return match{verdict: unsure, why: "profile " + url + " " + u.v.profiles.reasonMissing(url)}
	}
	failures := u.failuresOf(n, p)
	if len(failures) == 0 {
		return match{verdict: in}
	}
	return match{verdict: out, why: firstFailure(failures), fails: len(failures)}
}

// firstFailure names the first of several failures.
func firstFailure(list []outcome.Issue) string {
	return list[0].Expression + ": " + list[0].Diagnostics
}

// ofTarget is ofType of the resource that a reference names. The reference tells its type
// even where the resource is not here.
func (u *run) ofTarget(n fhir.Node, e *element, profiles bool) match {
	if target, ok := u.targetOf(n); ok {
		return u.ofType(target, e, profiles)
	}
	r, ok := n.Element().(*r4.Reference)
	if !ok {
		return match{verdict: unsure, why: notResolved}
	}
	typ, _ := u.referenceTarget(r)
	if typ == "" {
		return match{verdict: unsure, why: notResolved}
	}
	for _, t := range e.types {
		if t.code != typ {
			continue
		}
		if profiles && slices.ContainsFunc(t.profiles, func(url string) bool { return !u.v.profiles.isBase(url) }) {
			return match{verdict: unsure, why: notResolved}
		}
		return match{verdict: in}
	}
	if e.name == "Resource" {
		return match{verdict: unsure, why: fmt.Sprintf("profile %s is not known here", strings.Join(e.types[0].profiles, ", "))}
	}
	return match{verdict: out}
}

// coded decides whether a code of n is in a value set.
func (u *run) coded(n fhir.Node, b *binding) answer {
	var codings []r4.Coding
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		codings = e.Coding
	case *r4.Coding:
		codings = []r4.Coding{*e}
	case *r4.Quantity:
		return u.checkMember(b, e.System.Text, e.Code.Text, false)
	default:
		if n.Text() == "" {
			return outside
		}
		return u.checkMember(b, "", n.Text(), true)
	}
	all := outside
	for i := range codings {
		switch u.checkMember(b, codings[i].System.Text, codings[i].Code.Text, false) {
		case inside:
			return inside
		case undecidable:
			all = undecidable
		}
	}
	return all
}
