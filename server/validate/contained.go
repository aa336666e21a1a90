package validate

import (
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// id checks the id of a contained resource, by which others refer to it. The
// id of the resource itself is given by the request.
func (u *run) id(n fhir.Node) {
	if r, ok := n.Element().(fhir.Resource); ok && r.Header().ID.Text != "" && !fhir.ValidID(r.Header().ID.Text) {
		u.path = append(u.path, segment{"id", -1, r.Header().ID.Type()})
		u.report(outcome.Failure, "%q is not a valid id: expected 1 to 64 letters, digits, - and .", r.Header().ID.Text)
		u.popPath()
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
		u.popPath()
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
