package validate

import (
	"context"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// bundleScope is a Bundle that the current element is in.
type bundleScope struct {
	bundle *r4.Bundle
	entry  int // the entry that the current element is in
	// resources has the resource of each entry by fullUrl; where an entry has none, by
	// type and id. Made when the first reference is looked up.
	resources map[string]fhir.Resource
}

// inEntry notes which entry of the innermost Bundle is being validated.
func (u *run) inEntry(field string, index int) {
	if field == "entry" && len(u.bundles) > 0 {
		u.bundles[len(u.bundles)-1].entry = index
	}
}

// rootOf is %rootResource inside a resource: the resource that contains it.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#variables.
func (u *run) rootOf(n fhir.Node) fhir.Node {
	root := u.fp.RootResource
	if root.T == nil || root.Same(n) {
		return n
	}
	base := len(u.nodes)
	u.nodes = root.AppendChild(u.nodes, "contained")
	defer func() { u.nodes = u.nodes[:base] }()
	for _, c := range u.nodes[base:] {
		if c.Same(n) {
			return root
		}
	}
	return n
}

// bundle checks the fullUrl of a Bundle's entries.
// Spec: https://hl7.org/fhir/R4/bundle-definitions.html#Bundle.entry.fullUrl.
func (u *run) bundle(n fhir.Node) {
	b, ok := n.Element().(*r4.Bundle)
	if !ok || !u.options.Strict && !u.options.Warnings {
		return
	}
	for i := range b.Entry {
		e := &b.Entry[i]
		u.path = append(u.path, segment{"entry", i, fhir.NodeOf(e).T})
		u.fullURL(b, e)
		u.popPath()
	}
}

func (u *run) fullURL(b *r4.Bundle, e *r4.BundleEntry) {
	url := e.FullURL.Text
	if url == "" {
		if e.Resource != nil && needsFullURL(b.Type_.Text, e) {
			u.reportFailure("fullUrl is required of a resource in a Bundle of type %s: found none", b.Type_.Text)
		}
		return
	}
	u.path = append(u.path, segment{"fullUrl", -1, e.FullURL.Type()})
	defer u.popPath()
	switch {
	case !isAbsolute(url):
		u.reportFailure("expected an absolute URL, found %s", url)
		return
	case strings.HasPrefix(url, "urn:uuid:") && !fhir.UUIDKind.Valid(url):
		u.reportFailure("expected urn:uuid: and a UUID in small letters, found %s", url)
		return
	case !u.name(url):
		return
	}
	if e.Resource == nil || (b.Type_.Text == "transaction" || b.Type_.Text == "batch") && e.Request != nil && e.Request.Method.Text == "POST" {
		return // the id of a resource to create is ignored
	}
	id := e.Resource.Header().ID.Text
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") || id == "" {
		return
	}
	if !strings.HasSuffix(url, "/"+id) {
		u.reportFailure("fullUrl must not disagree with the id of the resource: expected a URL that ends in /%s, found %s", id, url)
	} else if typ := e.Resource.Type().Name; fhirpath.ReferenceType(url) != "" && u.v.plans.model.Resources[fhirpath.ReferenceType(url)] != nil && fhirpath.ReferenceType(url) != typ {
		u.reportFailure("fullUrl must not disagree with the type of the resource: expected a URL that ends in %s/%s, found %s", typ, id, url)
	}
}

// name judges a URI that names by a UUID or an OID, and reports whether it may stand. Their
// scheme is urn. Spec: https://hl7.org/fhir/R4/datatypes.html#uri, RFC 4122 §3, RFC 3061.
func (u *run) name(uri string) bool {
	switch {
	case strings.HasPrefix(uri, "urn:uuid:") && !fhir.UUIDKind.Valid(strings.ToLower(uri)), strings.HasPrefix(uri, "uuid:"):
		u.reportFailure("expected urn:uuid: and a UUID, found %s", uri)
	case strings.HasPrefix(uri, "urn:oid:") && !fhir.OIDKind.Valid(uri), strings.HasPrefix(uri, "oid:"):
		u.reportFailure("expected urn:oid: and an OID, found %s", uri)
	default:
		return true
	}
	return false
}

// needsFullURL reports whether an entry with a resource and without fullUrl is against the
// rule: a resource to create has none yet, and results of an operation may have no
// identity.
func needsFullURL(typ string, e *r4.BundleEntry) bool {
	switch typ {
	case "transaction", "batch":
		return false
	case "document", "message", "collection":
		return true
	}
	return e.Resource.Header().ID.Text != "" && (e.Search == nil || e.Search.Mode.Text != "outcome") && e.Response == nil
}

// resolved returns the resource that a reference names inside the resource or Bundle
// that is being validated, and whether it is there.
// Spec: https://hl7.org/fhir/R4/bundle.html#references.
func (u *run) resolved(reference string) (fhir.Node, bool) {
	if id, ok := strings.CutPrefix(reference, "#"); ok {
		root := u.fp.RootResource
		if id == "" || root.T == nil {
			return root, root.T != nil
		}
		c, ok := u.containedByID(root)[id]
		return c, ok
	}
	reference, _, _ = strings.Cut(reference, "/_history/")
	for i := len(u.bundles) - 1; i >= 0 && reference != ""; i-- {
		if r := u.bundles[i].find(reference); r != nil {
			return fhir.NodeOf(r), true
		}
	}
	return fhir.Node{}, false
}

// containedByID are the resources that root contains: the first of each id.
func (u *run) containedByID(root fhir.Node) map[string]fhir.Node {
	if u.within.of == root {
		return u.within.byID
	}
	base := len(u.nodes)
	u.nodes = root.AppendChild(u.nodes, "contained")
	byID := make(map[string]fhir.Node, len(u.nodes)-base)
	for _, c := range u.nodes[base:] {
		if r, ok := c.Element().(fhir.Resource); ok {
			if id := r.Header().ID.Text; byID[id].T == nil {
				byID[id] = c
			}
		}
	}
	u.nodes = u.nodes[:base]
	u.within = within{root, byID}
	return byID
}

// within is the last result of containedByID.
type within struct {
	of   fhir.Node
	byID map[string]fhir.Node
}

// find returns the resource of the entry that a reference in the current entry names: a
// relative one below the base of the current entry's fullUrl.
func (at *bundleScope) find(reference string) fhir.Resource {
	if at.resources == nil {
		at.resources = make(map[string]fhir.Resource, len(at.bundle.Entry))
		for i := range at.bundle.Entry {
			e := &at.bundle.Entry[i]
			if e.Resource == nil {
				continue
			}
			name := e.FullURL.Text
			if name == "" {
				name = e.Resource.Type().Name + "/" + e.Resource.Header().ID.Text
			}
			if at.resources[name] == nil {
				at.resources[name] = e.Resource
			}
		}
	}
	if !isAbsolute(reference) {
		// http://server/fhir/Patient/1 -> http://server/fhir/
		if own := strings.Split(at.bundle.Entry[at.entry].FullURL.Text, "/"); len(own) > 2 {
			reference = strings.Join(own[:len(own)-2], "/") + "/" + reference
		}
	}
	return at.resources[reference]
}

// Resolve answers resolve() in an invariant: from the resource and the Bundle first, then
// by Options.Resolver.
func (u *run) Resolve(ctx context.Context, reference string) (fhir.Resource, error) {
	if n, ok := u.resolved(reference); ok {
		if r, ok := n.Element().(fhir.Resource); ok {
			return r, nil
		}
	}
	if u.options.Resolver == nil {
		return nil, nil
	}
	return u.options.Resolver.Resolve(ctx, reference)
}
