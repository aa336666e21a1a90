package validate

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

func (u *run) extensions(list []fhir.Extension) {
	for i := range list {
		n := fhir.NodeOf(&list[i])
		u.path = append(u.path, segment{"extension", i, n.T})
		u.element(n, u.v.plans.of(n.T))
		if u.lost == nil || !u.damaged() {
			u.extension(n)
		}
		u.pop()
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
	if len(u.path) < 2 || x.URL.Text == "" {
		return
	}
	if nested := u.path[len(u.path)-2].typ.Name == "Extension"; !nested && !isAbsolute(x.URL.Text) {
		// https://hl7.org/fhir/R4/extensibility.html#Extension
		u.judge("expected the absolute url of a definition, found %s", x.URL.Text)
		return
	}
	modifier := u.path[len(u.path)-1].name == "modifierExtension"
	p := u.v.profiles.of(x.URL.Text)
	if p == nil || p.typ != "Extension" {
		if modifier {
			// Without its definition the meaning of the element is not known. Spec: https://hl7.org/fhir/R4/extensibility.html#modifierExtension.
			u.judge("modifier extension %s %s", x.URL.Text, u.v.profiles.missing(x.URL.Text))
		}
		return
	}
	if (u.options.Strict || u.options.Warnings) && !u.inContext(p) {
		const text = "extension %s is not allowed here, only in %s"
		if contexts := strings.Join(p.contexts, ", "); strings.HasPrefix(p.url, coreDefinitions+"structuredefinition-") {
			// HL7's own definitions carry hundreds of these outside their context,
			// structuredefinition-normative-version on a CodeSystem first of all.
			u.report(outcome.Warning, text, p.url, contexts)
		} else {
			u.judge(text, p.url, contexts)
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
