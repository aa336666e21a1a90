package search

import (
	"strings"

	"kiln/server/fhir"
)

// uri reads a uri, exact and with regard to case. `:below` takes what lies below
// in the path as well, `:above` what lies above; both step at slashes and need a
// URL. Spec: https://hl7.org/fhir/R4/search.html#uri.
func (p *parser) uri(param *fhir.Parameter, name, modifier, v string) ([]Match, error) {
	v = unescape(v)
	if modifier == "above" || modifier == "below" {
		v = strings.TrimRight(v, "/")
		if !strings.Contains(v, "://") {
			return nil, badValue(name, v, "expected a URL, as :"+modifier+" steps along its path")
		}
	}
	switch modifier {
	case "":
		return []Match{termsOf(param.Keys, fhir.ValueURI(v))}, nil
	case "below":
		return []Match{Texts{Keys: param.Keys, Op: URIBelow, Text: v}}, nil
	case "above":
		var values []fhir.Value
		for u := v; strings.Contains(u, "://") && !strings.HasSuffix(u, ":/"); {
			values = append(values, fhir.ValueURI(u), fhir.ValueURI(u+"/"))
			i := strings.LastIndexByte(u, '/')
			u = u[:i]
		}
		return []Match{termsOf(param.Keys, values...)}, nil
	}
	return nil, badModifier(name, modifier, "uri", "missing", "above", "below")
}
