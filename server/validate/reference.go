package validate

import (
	"cmp"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

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

// targets checks the type of a reference's target.
func (u *run) targets(n fhir.Node, ref *typeRef) {
	r, ok := n.Element().(*r4.Reference)
	if !ok {
		return
	}
	typ, _ := u.target(r)
	if typ == "" {
		return
	}
	var names []string
	for _, url := range ref.targets {
		name, known := u.targetType(url)
		if !known || name == typ || name == "Resource" {
			return
		}
		names = append(names, name)
	}
	u.once("expected a reference to %s, found %s", strings.Join(names, ", "), cmp.Or(r.Reference.Text, typ))
}

// targetType returns the type that a target profile is for.
func (u *run) targetType(url string) (name string, known bool) {
	if u.v.profiles.base(url) {
		url, _, _ = strings.Cut(url, "|")
		return strings.TrimPrefix(url, coreDefinitions), true
	}
	if p := u.v.profiles.of(url); p != nil {
		return p.typ, true
	}
	return "", false
}
