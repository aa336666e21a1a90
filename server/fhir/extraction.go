package fhir

// Extraction numbers what a value leaves in an Index: how it is folded, hashed,
// rounded, and under which values it is found. Whoever changes that, in this
// package or in the conversions that codegen makes (gen/index/convert.go), raises
// it in the same commit. Servers of the new build then index again whatever is
// stored; without that, searches would miss in silence what the old build has
// indexed. It need not be raised for other search parameters: their tables are
// compared as well (search.Registry.Fingerprints).
const Extraction = 5

// EveryKey are the keys of a parameter's own branches and of its composites, with
// those of their parts.
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
