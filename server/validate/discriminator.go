package validate

import (
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

type discriminator struct {
	kind    string // value, pattern, exists, type, profile
	path    string
	steps   []string // element names, extension urls as "extension:url"
	program []*fhirpath.Program
}

// discriminator compiles the path, one program for each of its prefixes: the
// definition may fix a value at any level.
func (ps *profiles) discriminator(d *r4.ElementDefinitionSlicingDiscriminator) discriminator {
	out := discriminator{kind: strings.Clone(d.Type_.Text), path: strings.Clone(d.Path.Text)}
	expr, err := fhirpath.Parse(out.path)
	if err != nil {
		return out
	}
	var prefixes []fhirpath.Node
	for n := expr.Root; n != nil; {
		prefixes = append(prefixes, n)
		switch m := n.(type) {
		case *fhirpath.Member:
			n = m.Left
		case *fhirpath.Call:
			n = m.Left
		default:
			n = nil
		}
	}
	slices.Reverse(prefixes)
	for _, n := range prefixes {
		step := ""
		switch m := n.(type) {
		case *fhirpath.Special: // $this
			continue
		case *fhirpath.Member:
			step = m.Name
		case *fhirpath.Call:
			switch {
			case m.Name == "extension" && len(m.Args) == 1:
				if l, ok := m.Args[0].(*fhirpath.Literal); ok {
					step = "extension:" + l.Text
				}
			case m.Name == "resolve":
				step = "resolve()"
			case m.Name == "ofType":
				step = "ofType()"
			}
		}
		p, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: out.path, Root: n}, fhirpath.Options{Model: ps.validator.plans.model, CollectionAs: true})
		if step == "" || err != nil {
			return discriminator{kind: out.kind, path: out.path}
		}
		out.steps, out.program = append(out.steps, step), append(out.program, p)
	}
	return out
}

func (u *run) discriminates(n fhir.Node, d *discriminator, e *element) bool {
	switch d.kind {
	case "value", "pattern":
		return u.byValue(n, d.steps, d.program, e)
	case "exists":
		values := u.at(n, d, len(d.steps))
		for _, def := range below(e, d.steps) {
			switch {
			case def.max == 0:
				return len(values) == 0
			case def.min > 0:
				return len(values) > 0
			}
		}
		return false
	case "type":
		if len(d.steps) > 0 && d.steps[len(d.steps)-1] == "resolve()" {
			return u.byTarget(n, d, e)
		}
		for _, value := range u.at(n, d, len(d.steps)) {
			for _, def := range below(e, d.steps) {
				if u.allowed(value, def) != nil {
					return true
				}
			}
		}
		return false
	case "profile":
		found := u.at(n, d, len(d.steps))
		if len(found) == 0 && len(d.steps) > 0 && d.steps[len(d.steps)-1] == "resolve()" {
			return u.byTarget(n, d, e)
		}
		for _, value := range found {
			for _, def := range below(e, d.steps) {
				for _, t := range def.types {
					if len(t.profiles)+len(t.targets) == 0 && value.T.Name == t.code {
						return true // a type alone names its base definition
					}
					for _, url := range append(slices.Clone(t.profiles), t.targets...) {
						if u.v.profiles.base(url) {
							if u.is(value.T, strings.TrimPrefix(url, coreDefinitions)) {
								return true
							}
						} else if p := u.v.profiles.of(url); p != nil && u.conforms(value, p) {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// byTarget tells by the type of a reference's target, which the reference names: the
// target itself need not be here.
func (u *run) byTarget(n fhir.Node, d *discriminator, e *element) bool {
	for _, value := range u.at(n, d, len(d.steps)-1) {
		r, ok := value.Element().(*r4.Reference)
		if !ok {
			continue
		}
		typ, _ := u.target(r)
		for _, def := range below(e, d.steps) {
			for _, t := range def.types {
				for _, url := range t.targets {
					if name, _ := u.targetType(url); typ != "" && name == typ {
						return true
					}
				}
			}
		}
	}
	return false
}

// at evaluates the first steps of a discriminator's path.
func (u *run) at(n fhir.Node, d *discriminator, steps int) []fhir.Node {
	if steps == 0 {
		return []fhir.Node{n}
	}
	if steps > len(d.program) {
		return nil
	}
	c, err := d.program[steps-1].Eval(&u.fp, n)
	if err != nil {
		return nil
	}
	var out []fhir.Node
	for _, v := range c {
		if node, ok := v.Node(); ok {
			out = append(out, node)
		}
	}
	return out
}

// byValue looks for the level of the path at which the slice fixes a value, and
// compares there. An extension is distinguished by its url, which its profile fixes.
func (u *run) byValue(n fhir.Node, steps []string, programs []*fhirpath.Program, e *element) bool {
	d := discriminator{steps: steps, program: programs}
	for level := len(steps); level >= 0; level-- {
		decided := false
		for _, def := range below(e, steps[:level]) {
			if def.fixed.T == nil && def.pattern.T == nil && (def.binding == nil || !def.binding.required || level < len(steps)) {
				continue
			}
			decided = true
			for _, value := range u.at(n, &d, level) {
				switch {
				case def.fixed.T != nil && equal(value, def.fixed), def.fixed.T == nil && def.pattern.T != nil && contains(value, def.pattern):
					return true
				case def.fixed.T == nil && def.pattern.T == nil && u.coded(value, def.binding):
					return true
				}
			}
		}
		if decided {
			return false
		}
	}
	if len(steps) == 1 && steps[0] == "url" {
		if x, ok := n.Element().(*fhir.Extension); ok {
			for _, t := range e.types {
				for _, url := range t.profiles {
					if url, _, _ = strings.Cut(url, "|"); x.URL.Text == url {
						return true
					}
				}
			}
		}
	}
	return false
}

// undecided returns the first discriminator of e by value whose path leads to nothing
// that slice s fixes: values of the slice cannot be told from others then.
// Spec: https://hl7.org/fhir/R4/profiling.html#discriminator.
func undecided(e, s *element) (path string, is bool) {
	for _, d := range e.slicing.discriminators {
		if d.kind != "value" && d.kind != "pattern" {
			continue
		}
		decides := d.path == "url" && slices.ContainsFunc(s.types, func(t typeRef) bool { return len(t.profiles) > 0 })
		if len(d.steps) == 0 && d.path != "$this" {
			return d.path, !decides
		}
		for level := len(d.steps); level >= 0 && !decides; level-- {
			decides = slices.ContainsFunc(below(s, d.steps[:level]), func(x *element) bool {
				return x.fixed.T != nil || x.pattern.T != nil || x.binding != nil && x.binding.required && level == len(d.steps)
			})
		}
		if !decides {
			return d.path, true
		}
	}
	return "", false
}

// coded reports whether a code of n is in a value set.
func (u *run) coded(n fhir.Node, b *binding) bool {
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		for i := range e.Coding {
			if u.coding(b, e.Coding[i].System.Text, e.Coding[i].Code.Text, false) == inside {
				return true
			}
		}
		return false
	case *r4.Coding:
		return u.coding(b, e.System.Text, e.Code.Text, false) == inside
	}
	return n.Text() != "" && u.coding(b, "", n.Text(), true) == inside
}

// below returns the definitions that steps lead to from e, slices included.
func below(e *element, steps []string) []*element {
	list := []*element{e}
	for _, step := range steps {
		if step == "ofType()" || step == "resolve()" {
			continue
		}
		name, url, extension := strings.Cut(step, ":")
		var next []*element
		for _, x := range list {
			for _, c := range x.children {
				if c.name != name {
					continue
				}
				for _, s := range c.slices {
					if !extension || sliceOf(s, url) {
						next = append(next, s)
					}
				}
				if !extension {
					next = append(next, c)
				}
			}
		}
		list = next
	}
	return list
}

// sliceOf reports whether s is the slice of an extension with that url.
func sliceOf(s *element, url string) bool {
	for _, t := range s.types {
		if slices.Contains(t.profiles, url) {
			return true
		}
	}
	return false
}
