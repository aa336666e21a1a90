package fhir

// Extraction is the version of the rules by which a value becomes entries of an Index:
// how it is folded, hashed and rounded, under which values it is found, and where it is stored
// (match.StoredKey). A commit
// that changes these rules, in this package or in the conversions that codegen makes
// (gen/index/convert.go), raises it. Servers of the new build then index all stored
// resources again; otherwise searches would miss, in silence, resources that the old
// build has indexed. Changes of search parameters need no new number: their tables are
// compared as well (search.Registry.Fingerprints).
const Extraction = 15

// EveryKey returns the keys of a parameter's own branches, of its composites, and of their parts.
func (p *Parameter) EveryKey() []Key {
	if len(p.Composites) == 0 {
		return p.Keys
	}
	keys := append([]Key(nil), p.Keys...)
	for _, c := range p.Composites {
		for _, k := range []Key{c.Key, c.Coded} {
			if k != 0 {
				keys = append(keys, k)
			}
		}
		for _, part := range c.Parts {
			keys = append(keys, part.Keys...)
		}
	}
	return keys
}
