package fhir

import (
	"slices"
	"strconv"
	"strings"
)

// A Sorter finds the sort value of a resource for a token, a reference or a uri: the index has only hashes
// of these. An Index with Sorters collects no entries: it passes their values to the Sorters, so that a
// resource is sorted and found by the same values.
//
// The value is, for
//
//	token      the code, in lower case, then its system; the value of an Identifier
//	           or ContactPoint, then its system; true or false; the text of a
//	           concept without code
//	reference  Type/id, or the URL of a resource of another server; the identifier of
//	           a logical reference if there is no other
//	uri        itself
//
// Of several values the first in the requested direction counts. Only the first 128 characters of a value count,
// as with strings: the links to the next page contain them. endOfCode separates a code from its system, so that
// a code sorts before the longer codes that it begins.
//
// If an administrator has indexed the order, the index contains these values (Index.Ordered). A change of the values
// raises Extraction.
// Spec: https://hl7.org/fhir/R4/search.html#sort.
type Sorter struct {
	Keys       []Key
	Targets    []string // only references to these types count; nil is every one
	Descending bool
	// Every collects all uris and canonicals, for Values, and finds no order.
	Every bool

	all              []string
	value, text      string // text is what counts where there is no value
	found, textFound bool
}

// Reset makes the Sorter ready for the next resource.
func (s *Sorter) Reset() { s.value, s.text, s.found, s.textFound, s.all = "", "", false, false, nil }

// Values are all uris and canonicals of the resource.
func (s *Sorter) Values() []string { return s.all }

// Value returns the sort value of the resource; false for none.
func (s *Sorter) Value() (string, bool) {
	if s.found {
		return beginning(s.value), true
	}
	return beginning(s.text), s.textFound
}

// beginning is the part of a value that counts, a copy where it is not the whole:
// an order outlives the body that it was read from.
func beginning(value string) string {
	n := 0
	for i := range value {
		if n++; n > 128 {
			return strings.Clone(value[:i])
		}
	}
	return value
}

func (s *Sorter) offer(value string) {
	if !s.found || s.before(value, s.value) {
		s.value, s.found = value, true
	}
}

func (s *Sorter) offerText(text string) {
	if !s.textFound || s.before(text, s.text) {
		s.text, s.textFound = text, true
	}
}

func (s *Sorter) before(a, b string) bool { return a < b && !s.Descending || a > b && s.Descending }

// Sorts reports whether entries under k are of use: always, unless the index has
// Sorters and none is for k.
func (x *Index) Sorts(k Key) bool {
	return x.Sorters == nil || slices.ContainsFunc(x.Sorters, func(s *Sorter) bool { return slices.Contains(s.Keys, k) })
}

// endOfCode is the least character that PostgreSQL has in a text. FHIR has no control
// characters.
const endOfCode = "\x01"

// OrderKey is the key of the entries for the order by a search parameter of a resource type. keys are the keys of
// its values, targets those of Sorter. Another definition of the parameter has another key.
func OrderKey(typ, code string, keys []Key, targets []string) Key {
	parts := []string{typ, code, strings.Join(targets, ",")}
	for _, k := range slices.Sorted(slices.Values(keys)) {
		parts = append(parts, strconv.FormatUint(uint64(k), 16))
	}
	return Key(hash('d', parts...))
}

// Ordered adds the values of Sorters, one for each direction, for searches sorted by the parameter. Both are entries
// of one key, like those of a string.
func (x *Index) Ordered(k Key, ascending, descending *Sorter) {
	first, ok := ascending.Value()
	if !ok {
		return
	}
	x.present(k)
	x.addString(StringEntry{Key: k, Text: first, Order: true})
	if last, ok := descending.Value(); ok && last != first {
		x.addString(StringEntry{Key: k, Text: last, Order: true})
	}
}

// sortToken offers a code, or a value that is searched like one.
func (x *Index) sortToken(k Key, system, code string) {
	if code == "" {
		return
	}
	for _, s := range x.Sorters {
		if slices.Contains(s.Keys, k) {
			s.offer(Fold(code) + endOfCode + system)
		}
	}
}

// sortText offers a text that counts where there is no value.
func (x *Index) sortText(k Key, text string) {
	if text == "" {
		return
	}
	for _, s := range x.Sorters {
		if slices.Contains(s.Keys, k) {
			s.offerText(FoldText(text))
		}
	}
}

// sortReference offers a literal reference, without its version; typ is
// Reference.type or "". It returns the type that the reference says, or "".
func (x *Index) sortReference(k Key, reference, typ string) string {
	value := reference
	if t, id, ok := LocalReference(reference, x.BaseURLs); ok {
		value, typ = t+"/"+id, t
	} else {
		value, _ = withoutVersion(reference)
		if typ == "" {
			typ = typeInURL(value)
		}
	}
	for _, s := range x.Sorters {
		if slices.Contains(s.Keys, k) && (s.Targets == nil || slices.Contains(s.Targets, typ)) {
			s.offer(value)
		}
	}
	return typ
}

// sortLogical offers the identifier of a reference, which counts where there is no value; typ is the type that
// the reference says, or "".
func (x *Index) sortLogical(k Key, typ, value string) {
	for _, s := range x.Sorters {
		if value != "" && slices.Contains(s.Keys, k) && (s.Targets == nil || typ == "" || slices.Contains(s.Targets, typ)) {
			s.offerText(FoldText(value))
		}
	}
}

// sortURI offers a uri or canonical.
func (x *Index) sortURI(k Key, uri string) {
	for _, s := range x.Sorters {
		switch {
		case !slices.Contains(s.Keys, k):
		case s.Every:
			s.all = append(s.all, uri)
		default:
			s.offer(uri)
		}
	}
}
