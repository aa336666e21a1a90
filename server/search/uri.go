package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// uri reads a uri, exact and case-sensitive. `:below` also matches uris below in the path, `:above` those above;
// both step at slashes and need a URL. The version of a canonical is below the URL. For the url of
// a resource that canonicals name, `url|version` selects that version.
// Spec: https://hl7.org/fhir/R4/search.html#uri, search.html#versions.
func (p *parser) uri(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if url, version, ok := cutEscaped(v, '|'); ok && modifier == "" && version != "" {
		if keys := p.reg.versionKeys(param); keys != nil {
			return []match.Match{match.All{Clauses: []match.Clause{
				{Name: name, Value: v, Any: []match.Match{match.TermsOf(param.Keys, fhir.ValueURI(unescapeValue(url)))}},
				{Name: "version", Value: version, Any: []match.Match{match.TermsOf(keys, fhir.ValueCode(unescapeValue(version)))}},
			}}}, nil
		}
	}
	v = unescapeValue(v)
	if modifier == "above" || modifier == "below" {
		v = strings.TrimRight(v, "/")
		if !strings.Contains(v, "://") {
			return nil, badValue(name, v, "expected a URL, as :"+modifier+" steps along its path")
		}
	}
	switch modifier {
	case "":
		return []match.Match{match.TermsOf(param.Keys, fhir.ValueURI(v))}, nil
	case "below":
		return []match.Match{match.Texts{Keys: param.Keys, Op: match.URIBelow, Text: v}}, nil
	case "above":
		var values []fhir.Value
		url, _, versioned := strings.Cut(v, "|")
		if versioned {
			values = append(values, fhir.ValueURI(v))
		}
		for u := url; strings.Contains(u, "://") && !strings.HasSuffix(u, ":/"); {
			values = append(values, fhir.ValueURI(u), fhir.ValueURI(u+"/"))
			i := strings.LastIndexByte(u, '/')
			u = u[:i]
		}
		return []match.Match{match.TermsOf(param.Keys, values...)}, nil
	}
	return nil, badModifier(name, modifier, "uri", "missing", "above", "below")
}

// versionKeys are the keys of the business versions of the resources whose url param
// is; nil where it is another uri, or none of them has a version.
func (r *Registry) versionKeys(param *fhir.Parameter) []fhir.Key {
	var keys []fhir.Key
	for _, t := range r.names {
		url, ok := r.Lookup(t, "url")
		if !ok || !slices.ContainsFunc(url.Keys, func(k fhir.Key) bool { return slices.Contains(param.Keys, k) }) {
			continue
		}
		if version, ok := r.Lookup(t, "version"); ok && version.Type == fhir.SearchToken {
			keys = append(keys, version.Keys...)
		}
	}
	return keys
}
