package validate

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// extensions validates the extensions of a primitive.
func (u *run) extensions(list []fhir.Extension, parent fhir.Node) {
	for i := range list {
		n := fhir.NodeOf(&list[i])
		u.path = append(u.path, segment{"extension", i, n.T})
		u.element(n, u.v.plans.planOf(n.T))
		if u.lost == nil || !u.isDamaged() {
			u.extension(n, parent)
		}
		u.popPath()
	}
}

// extension checks ext-1 and, where the definition of the extension is known, its
// context and its content. parent is the element that has the extension.
func (u *run) extension(n, parent fhir.Node) {
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
	if len(u.path) < 2 || x.URL.Text == "" {
		return
	}
	if nested := u.path[len(u.path)-2].typ.Name == "Extension"; !nested && !isAbsolute(x.URL.Text) {
		// https://hl7.org/fhir/R4/extensibility.html#Extension
		u.reportFailure("expected the absolute url of a definition, found %s", x.URL.Text)
		return
	}
	modifier := u.path[len(u.path)-1].name == "modifierExtension"
	p := u.v.profiles.profileOf(x.URL.Text)
	if p == nil || p.typ != "Extension" {
		if modifier {
			// Without its definition the meaning of the element is not known. Spec: https://hl7.org/fhir/R4/extensibility.html#modifierExtension.
			u.reportFailure("modifier extension %s %s", x.URL.Text, u.v.profiles.reasonMissing(x.URL.Text))
		}
		return
	}
	if (u.options.Strict || u.options.Warnings) && !u.inContext(p, n, parent) {
		const text = "extension %s is not allowed here, only in %s"
		if contexts := p.contextNames(); strings.HasPrefix(p.url, coreDefinitions+"structuredefinition-") {
			// HL7's own definitions carry hundreds of these outside their context,
			// structuredefinition-normative-version on a CodeSystem first of all.
			u.report(outcome.Warning, text, p.url, contexts)
		} else {
			u.reportFailure(text, p.url, contexts)
		}
	}
	if modifier != p.modifier {
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
			u.popPath()
		}
	}
}

// extensionContext is one StructureDefinition.context.
type extensionContext struct {
	kind       string            // element, extension, fhirpath
	expression string            // element: a type or a path, without [x]; extension: the url of one
	program    *fhirpath.Program // of kind fhirpath
}

// contextNames lists the contexts of an extension as a message shows them.
func (p *profile) contextNames() string {
	var names []string
	for _, c := range p.contexts {
		switch c.kind {
		case "extension":
			names = append(names, "the extension "+c.expression)
		case "fhirpath":
			names = append(names, "the elements of the FHIRPath expression "+c.expression)
		default:
			names = append(names, c.expression)
		}
	}
	return strings.Join(names, ", ")
}

// inContext reports whether the extension n, at the end of the path, stands in parent
// by one of the contexts of its definition.
// Spec: https://hl7.org/fhir/R4/defining-extensions.html#context.
func (u *run) inContext(p *profile, n, parent fhir.Node) bool {
	return len(p.contexts) == 0 || slices.ContainsFunc(p.contexts, func(c extensionContext) bool {
		switch c.kind {
		case "extension":
			outer, ok := parent.Element().(*fhir.Extension)
			url, part, nested := strings.Cut(c.expression, "#")
			return ok && (outer.URL.Text == url || nested && outer.URL.Text == part)
		case "fhirpath":
			return u.selects(c.program, parent)
		}
		return u.inElement(c.expression)
	})
}

// selects reports whether an expression on the resource selects an element. One that
// cannot be evaluated is taken to.
func (u *run) selects(p *fhirpath.Program, element fhir.Node) bool {
	found, err := p.Eval(&u.fp, u.fp.Resource)
	return err != nil || slices.ContainsFunc(found, func(v fhirpath.Value) bool {
		n, ok := v.Node()
		return ok && n == element
	})
}

// inElement reports whether the element above the end of the path is of a type, or has
// a path that starts at the type of any element above it.
func (u *run) inElement(context string) bool {
	parent := u.path[len(u.path)-2]
	if u.isType(parent.typ, context) || context == "BackboneElement" && strings.Contains(parent.typ.Name, ".") {
		return true
	}
	for i := range u.path[:len(u.path)-1] {
		path := u.path[i].typ.Name
		for _, s := range u.path[i+1 : len(u.path)-1] {
			path += "." + s.name
		}
		if path == context {
			return true
		}
	}
	return false
}

// part reports whether the definition of an extension has one with a relative url
// inside it.
func (p *profile) part(url string) bool {
	for _, c := range p.root.children {
		if c.name != "extension" {
			continue
		}
		for _, s := range c.slices {
			for _, f := range s.children {
				if f.name == "url" && f.fixed.T != nil && f.fixed.Text() == url {
					return true
				}
			}
		}
	}
	return false
}
