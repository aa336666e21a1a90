package plan

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/cache"
)

func referencesColumn(typ int16, keys []fhir.Key) cache.ColumnKey {
	return cache.ColumnKey{Type: typ, Kind: cache.References, Keys: cache.KeysOf(keys)}
}

// ListColumns returns the columns that answer comparisons with parameters of a type.
func ListColumns(typ int16, params []*fhir.Parameter) []cache.ColumnKey {
	var out []cache.ColumnKey
	for _, p := range params {
		kind, ok := kindOf(p)
		if key := (cache.ColumnKey{Type: typ, Kind: kind, Keys: cache.KeysOf(p.Keys)}); ok && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// kindOf is the kind of the column of a parameter; false where it has no order or a resource may have
// several of its values.
func kindOf(p *fhir.Parameter) (kind cache.Kind, ok bool) {
	switch p.Type {
	case fhir.SearchDate:
		kind = cache.Dates
	case fhir.SearchNumber:
		kind = cache.Numbers
	case fhir.SearchQuantity:
		kind = cache.Quantities
	default:
		return kind, false
	}
	return kind, p.Single && len(p.Keys) > 0
}

// ListCodedColumns returns the columns that answer comparisons of a composite of code and value, for each of some terms
// of the code.
func ListCodedColumns(typ int16, params []*fhir.Parameter, terms []int64) []cache.ColumnKey {
	type rows struct { // of values with codes, which several composites may share
		kind        cache.Kind
		coded, code fhir.Key
	}
	var all []rows
	for _, p := range params {
		for _, c := range p.Composites {
			kind, ok := valueKind(c, params)
			if c.Coded == 0 || !ok {
				continue
			}
			for _, code := range codeKeys(c) {
				if r := (rows{kind, c.Coded, code}); !slices.Contains(all, r) {
					all = append(all, r)
				}
			}
		}
	}
	var out []cache.ColumnKey
	for _, r := range all {
		for _, term := range terms {
			key := fhir.CompositeKey(r.coded, r.code.ValueOf(term))
			out = append(out, cache.ColumnKey{Type: typ, Kind: r.kind, Keys: cache.KeysOf([]fhir.Key{key})})
		}
	}
	return out
}

// valueKind is kindOf the part of a composite that has an order.
func valueKind(c fhir.Composite, params []*fhir.Parameter) (kind cache.Kind, ok bool) {
	for _, part := range c.Parts {
		i := slices.IndexFunc(params, func(p *fhir.Parameter) bool { return p.Code == part.Code })
		if i < 0 {
			continue
		}
		if kind, ok = kindOf(params[i]); ok {
			return kind, true
		}
	}
	return kind, false
}

// codeKeys are the keys of the parts of a composite that are tokens.
func codeKeys(c fhir.Composite) (keys []fhir.Key) {
	for _, part := range c.Parts {
		if part.Type == fhir.SearchToken {
			keys = append(keys, part.Keys...)
		}
	}
	return keys
}

// A Reference is a parameter that leads to one resource type alone.
type Reference struct {
	References cache.ColumnKey
	Target     string
}

// ListReferences returns the references that links of a type follow, for parameters with one target type.
func ListReferences(typ int16, params []*fhir.Parameter) []Reference {
	var out []Reference
	for _, p := range params {
		if p.Type == fhir.SearchReference && len(p.Targets) == 1 && len(p.Keys) > 0 {
			out = append(out, Reference{referencesColumn(typ, p.Keys), p.Targets[0]})
		}
	}
	return out
}
