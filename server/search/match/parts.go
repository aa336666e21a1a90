package match

import (
	"maps"
	"slices"
	"strconv"

	"kiln/server/fhir"
)

// index_date and index_quantity keep the entries of a key in parts, one for each million resources of
// a type in the order of their surrogates: an entry of resource rid has the key StoredKey. The entries
// of new resources come in no order of value, and in one order of all values nearly each of them would
// be written to a page of its own, somewhere in an index that no memory holds any more. In parts they
// go to the last one, however large the table is. A search asks every part, each at the cost of one
// descent: Writer.PartedKeys.

// partBits is how many bits of a surrogate tell resources of one part apart.
const partBits = 20

// PartSize is the number of surrogates of a part.
const PartSize = 1 << partBits

// partMask is of the parts of a type: below the 16 bits of its number, a surrogate has 48.
const partMask = 1<<(48-partBits) - 1

// part is the number of the part that has the entries of a resource, from 0 on.
func part(rid int64) int64 { return rid >> partBits & partMask }

// StoredKey is the key under which index_date and index_quantity have an entry of a resource.
func StoredKey(key fhir.Key, rid int64) int64 { return int64(key) + part(rid) }

// EntryKey is the key of an entry that is stored under another one, as StoredKey is.
func EntryKey(stored, rid int64) fhir.Key { return fhir.Key(stored - part(rid)) }

// Parts are how many parts the resource types have. More than there are do no harm. They are not changed.
type Parts struct {
	Of map[int16]int // of the types that have more than one
}

// most is the largest number of parts of some types, nil for all; 1 for nil Parts.
func (p *Parts) most(types []int16) int {
	if p == nil {
		return 1
	}
	n := 1
	for typ, of := range p.Of {
		if len(types) == 0 || slices.Contains(types, typ) {
			n = max(n, of)
		}
	}
	return n
}

// Equal reports whether p and o are the same numbers.
func (p *Parts) Equal(o *Parts) bool {
	return p == o || p != nil && o != nil && maps.Equal(p.Of, o.Of)
}

// Stored are the keys under which resources of some types, nil for all, have entries of keys.
func (p *Parts) Stored(keys []fhir.Key, types []int16) []fhir.Key {
	n := p.most(types)
	if n == 1 {
		return keys
	}
	out := make([]fhir.Key, 0, len(keys)*n)
	for _, key := range keys {
		for i := range n {
			out = append(out, key+fhir.Key(i))
		}
	}
	return out
}

// PartedKeys is Keys for rows of index_date and index_quantity of resources of some types, nil for all.
func (w *Writer) PartedKeys(x string, keys []fhir.Key, types []int16) {
	w.Keys(x, w.env.Parts.Stored(keys, types))
}

// TestPartedKeys is TestKeys for index_date and index_quantity.
func (w *Writer) TestPartedKeys(x string, keys []fhir.Key) {
	w.Write(x, ".key - (", x, ".rid >> ", strconv.Itoa(partBits), " & ", strconv.Itoa(partMask), ") = ")
	w.anyKey(keys)
}
