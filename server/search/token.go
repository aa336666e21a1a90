package search

import (
	"maps"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// token reads `code`, `system|code`, `system|` or `|code`, without regard to
// case in the code. Spec: https://hl7.org/fhir/R4/search.html#token.
func (p *parser) token(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	switch modifier {
	case "", "not":
		values, err := tokenValues(name, v)
		if err != nil {
			return nil, err
		}
		terms := match.TermsOf(param.Keys, values...)
		t := readToken(v)
		for _, k := range param.Keys {
			// Entries name no system where all of them have the same.
			switch implicit := p.reg.systems[k]; {
			case implicit == "" || implicit != t.system:
			case t.code == "":
				terms.Values = append(terms.Values, k.Term(fhir.ValuePresent()))
			default:
				terms.Values = append(terms.Values, k.Term(fhir.ValueCode(t.code)))
			}
		}
		return []match.Match{terms}, nil
	case "text":
		// A text is compared like a string; a part anywhere in it is what people
		// look for.
		text := fhir.JoinText(unescapeValue(v))
		if text == "" {
			return nil, badValue(name, v, "expected a part of a display text")
		}
		return []match.Match{match.Texts{Keys: param.Keys, Op: match.Contains, Text: text}}, nil
	case "of-type":
		return p.ofType(param, name, v)
	case "in", "not-in":
		return p.expand(param, name, Expansion{Modifier: "in", ValueSet: unescapeValue(v)})
	case "below", "above":
		t := readToken(v)
		e := Expansion{Modifier: modifier, System: t.system, Code: t.code}
		if !t.inSystem {
			e.System = p.reg.system(param.Keys)
		}
		if e.Code == "" {
			return nil, badValue(name, v, "expected system|code")
		}
		if modifier == "below" && e.System == fhir.MIMESystem && p.reg.system(param.Keys) == fhir.MIMESystem {
			// A media type is above itself with parameters; no terminology knows them.
			// Spec: https://hl7.org/fhir/R4/search.html#mimetype.
			return []match.Match{match.TermsOf(param.Keys, fhir.ValueCode(e.Code), fhir.ValueMIMEType(e.Code))}, nil
		}
		return p.expand(param, name, e)
	}
	return nil, badModifier(name, modifier, "token", "missing", "text", "not", "of-type", "in", "not-in", "below", "above")
}

// token is a token as it is written: code, system|code, system| or |code.
type token struct {
	system, code string
	inSystem     bool // there is a |
}

func readToken(v string) token {
	system, code, ok := cutEscaped(v, '|')
	if !ok {
		system, code = "", system
	}
	return token{unescapeValue(system), unescapeValue(code), ok}
}

// tokenValues are the hashed values that a token stands for.
func tokenValues(name, v string) ([]fhir.Value, error) {
	switch t := readToken(v); {
	case !t.inSystem:
		return []fhir.Value{fhir.ValueCode(t.code)}, nil
	case t.system == "" && t.code == "":
		return nil, badValue(name, v, "expected code, system|code, system| or |code")
	case t.code == "":
		return []fhir.Value{fhir.ValueSystem(t.system)}, nil
	default:
		return []fhir.Value{fhir.ValueCoding(t.system, t.code)}, nil
	}
}

// ofType reads `system|code|value`, an identifier by its type, and `system|code`, any identifier of that type. A
// missing part is rejected. The first of two parts must be a system (a URI), because `code|value` would be
// ambiguous. The modifier is rejected for parameters that never select an Identifier.
// Spec: https://hl7.org/fhir/R4/search.html#token (of-type).
func (p *parser) ofType(param *fhir.Parameter, name, v string) ([]match.Match, error) {
	if !p.reg.givesDatatype(param, "Identifier") {
		return nil, outcome.Invalid("parameter %s: modifier \":of-type\" applies to identifiers only, and %s never gives one", outcome.Clip(name), param.Code)
	}
	parts := splitEscaped(v, '|', 0)
	for i := range parts {
		parts[i] = unescapeValue(parts[i])
	}
	switch whole := !slices.Contains(parts, ""); {
	case whole && len(parts) == 3:
		return []match.Match{match.TermsOf(param.Keys, fhir.ValueOfType(parts[0], parts[1], parts[2]))}, nil
	case whole && len(parts) == 2 && strings.Contains(parts[0], ":"):
		return []match.Match{match.TermsOf(param.Keys, fhir.ValueOfType(parts[0], parts[1], ""))}, nil
	}
	return nil, badValue(name, v, "expected type system|type code|identifier value, or type system|type code, every part with a value and the system a URI")
}

// givesDatatype reports whether a value of param can be of one of the datatypes, or that is not known before a resource
// is there. param may be of several resource types.
func (r *Registry) givesDatatype(param *fhir.Parameter, datatypes ...string) bool {
	for _, typ := range r.names {
		own := r.types[typ][param.Code]
		if own == nil || slices.ContainsFunc(own.Keys, func(k fhir.Key) bool { return !slices.Contains(param.Keys, k) }) {
			continue
		}
		expr, err := fhirpath.Parse(own.Expression)
		if err != nil {
			return true
		}
		for _, branch := range fhirpath.Branches(expr.Root) {
			program, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: expr.Source, Root: branch},
				fhirpath.Options{Model: r.model, Input: r.model.Resources[typ].Type(), CollectionAs: true})
			if err != nil {
				return true
			}
			names := program.Types()
			if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
				return name == "FHIR.Extension" || slices.Contains(datatypes, strings.TrimPrefix(name, "FHIR."))
			}) {
				return true
			}
		}
	}
	return false
}

// expand asks the terminology server for codes.
func (p *parser) expand(param *fhir.Parameter, name string, e Expansion) ([]match.Match, error) {
	if p.opt.Expand == nil {
		return nil, outcome.NotImplemented("parameter %s: terminology is disabled on this server, which :%s needs", outcome.Clip(name), e.Modifier)
	}
	if e.Modifier == "in" && e.ValueSet == "" {
		return nil, badValue(name, e.ValueSet, "expected the URL of a ValueSet")
	}
	implicit := make(map[string][]fhir.Key)
	for _, k := range param.Keys {
		system := p.reg.systems[k]
		implicit[system] = append(implicit[system], k)
	}
	var any []match.Match
	for _, system := range slices.Sorted(maps.Keys(implicit)) {
		e.Implicit = system
		codes, err := p.opt.Expand(e)
		if err != nil {
			return nil, err
		}
		if codes.Set != 0 {
			any = append(any, match.Expanded{Keys: implicit[system], Set: codes.Set})
		} else {
			any = append(any, match.TermsOf(implicit[system], codes.Values...))
		}
	}
	return any, nil
}
