package search

import (
	"slices"

	"kiln/server/fhir"
)

// everyReference adds every reference parameter of typ to an include.
func (p *parser) everyReference(in *Include, typ string) {
	whole := p.reg.notices[typ]
	p.notices = addNotice(p.notices, whole)
	for _, o := range p.reg.Parameters(typ) {
		if o.Type != fhir.SearchReference || unsupportedReason(o) != "" {
			continue
		}
		if whole == "" {
			p.addNotice(o)
		}
		for _, k := range o.Keys {
			if !slices.Contains(in.Keys, k) {
				in.Keys = append(in.Keys, k)
			}
		}
		p.canonicals(in, o)
	}
}

// canonicals adds the types that a reference of param may name by a canonical URL.
func (p *parser) canonicals(in *Include, param *fhir.Parameter) {
	for _, t := range p.reg.Targets(param) {
		if in.Target != "" && in.Target != t || slices.ContainsFunc(in.Canonicals, func(c Canonical) bool { return c.Type == t }) {
			continue
		}
		if url, ok := p.reg.canonical(t); ok {
			p.addNotice(url)
			in.Canonicals = append(in.Canonicals, Canonical{t, url.Keys})
		}
	}
}

// canonical is the parameter url of a type whose resources a canonical may name: they have a url and a version.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func (r *Registry) canonical(typ string) (url *fhir.Parameter, ok bool) {
	url, ok = r.Lookup(typ, "url")
	_, versioned := r.Lookup(typ, "version")
	return url, ok && versioned && url.Type == fhir.SearchURI
}
