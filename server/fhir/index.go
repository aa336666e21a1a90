package fhir

import (
	"crypto/sha256"
	"encoding/binary"
)

// SearchType is the type of a search parameter.
// Spec: https://hl7.org/fhir/R4/search.html#ptypes.
type SearchType string

// The search parameter types.
const (
	SearchNumber    SearchType = "number"
	SearchDate      SearchType = "date"
	SearchString    SearchType = "string"
	SearchToken     SearchType = "token"
	SearchReference SearchType = "reference"
	SearchComposite SearchType = "composite"
	SearchQuantity  SearchType = "quantity"
	SearchURI       SearchType = "uri"
	SearchSpecial   SearchType = "special"
)

// Key identifies a branch of a search parameter's expression as values of one search type. Parameters that share a
// branch share its entries: patient and subject of Observation both read KeyOf("reference",
// "Observation.subject"), and combo-code reads the entries of code and of component-code. A key is derived from
// its text: it needs no registry and is the same on every server and in every release.
type Key uint64

// KeyOf returns the key of a branch: the search type and the canonical FHIRPath of the branch, starting at the
// resource type. Keys for equality alone leave the first bits of a term to its value: see nearBits.
func KeyOf(typ SearchType, path string) Key {
	k := Key(hash('k', string(typ), path))
	switch typ {
	case SearchToken, SearchReference, SearchURI:
		k &= 1<<(64-nearBits) - 1
	}
	return k
}

// nearBits are the first bits of a term, by which the terms of one value lie side by side in the index of
// terms, whatever their keys are: the references to a patient of all her resources, a code in its system and
// without. There are fewer pages than 2^nearBits even among 10^9 resources. Terms of one value are told apart
// by the other 40 bits of their keys, of which two are equal among 10^4 keys with a probability of 1 in 20,000;
// terms of different values by 64 bits.
const nearBits = 24

// near is v with the first bits of another value, to lie beside it.
func (v Value) near(other Value) Value {
	const rest = 1<<(64-nearBits) - 1
	return v&rest | other&^rest
}

// A Value is the hash of something equality is asked of. XOR with a key makes a
// term: SQL can do the same (`ref # key`), which is how a chain gets from the
// rows of the target to the terms of its source.
type Value uint64

// Term is one element of a resource's term array: (key, value) in 64 bits. The
// hash is a truncated SHA-256, so no client can make two values collide by choice,
// and 10^8 different terms collide by chance with a probability of 3 in 10^4.
func (k Key) Term(v Value) int64 { return int64(uint64(k) ^ uint64(v)) }

// ValueOf is the value of a term of the key.
func (k Key) ValueOf(term int64) Value { return Value(k.Term(Value(term))) }

// hash is the first eight bytes of SHA-256 over kind and parts, each part ended
// by a NUL (which cannot occur inside one).
func hash(kind byte, parts ...string) uint64 {
	var buf [256]byte
	b := append(buf[:0], kind)
	for _, p := range parts {
		b = append(b, p...)
		b = append(b, 0)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}

// The values that equality searches ask for.

// ValuePresent is in the terms of every key that has any entry: `:missing`.
func ValuePresent() Value { return Value(hash('p')) }

// ValueCode is a code in any system: `code`. Codes are folded to lower case.
// Spec: https://hl7.org/fhir/R4/search.html#token (case sensitivity).
func ValueCode(code string) Value { return Value(hash('c', Fold(code))) }

// ValueCoding is a code in a system: `system|code`; system "" is a code that has
// no system: `|code`.
func ValueCoding(system, code string) Value { return valueCoding(system, code, ValueCode(code)) }

// valueCoding is ValueCoding where the ValueCode is known.
func valueCoding(system, code string, v Value) Value {
	return Value(hash('s', system, Fold(code))).near(v)
}

// ValueSystem is any code of a system: `system|`.
func ValueSystem(system string) Value { return Value(hash('y', system)) }

// MIMESystem is the implicit system of a code that is a media type.
const MIMESystem = "urn:ietf:bcp:13"

// ValueMIMEType is a media type that has parameters, without them: `:below`.
// Spec: https://hl7.org/fhir/R4/search.html#mimetype.
func ValueMIMEType(base string) Value { return Value(hash('m', Fold(base))) }

// ValueOfType is an identifier by its type: `:of-type=system|code|value`; value
// "" is any identifier of that type.
func ValueOfType(system, code, value string) Value {
	return Value(hash('o', system, Fold(code), Fold(value))).near(ValueCode(value))
}

// ValueReference is a literal reference to a resource of this server. It also fills the column resource.ref of that
// resource. It begins with the time span of an id that NewID made: new resources and references to them are
// neighbours in the indexes, however large the indexes are. With 56 bits of hash, a span at 20,000 resources a
// second contains two equal values with a probability of 1 in 10^5.
func ValueReference(typ, id string) Value {
	h := hash('r', typ, id)
	if span, ok := minted(id); ok {
		h = h<<8>>8 | uint64(span)<<56
	}
	return Value(h)
}

// ValueTarget is a reference to any resource of a type: `:missing` of a parameter
// whose references are narrowed to that type.
func ValueTarget(typ string) Value { return Value(hash('g', typ)) }

// ValueOfTarget is v, the identifier or the URL of a reference, to a resource of a type: for a parameter whose
// references are narrowed to it; type "" is one that the reference does not say.
func ValueOfTarget(typ string, v Value) Value { return ValuePair(ValueTarget(typ), v) }

// ValueURI is a uri, a canonical, or a reference to somewhere else; exact and
// case-sensitive.
func ValueURI(uri string) Value { return Value(hash('u', uri)) }

// ValueIdentifier is the identifier of a logical reference: `:identifier`;
// system "" stands for no system, AnySystem for the form without `|`.
func ValueIdentifier(system, value string) Value { return Value(hash('i', system, Fold(value))) }

// ValueExact is a string with case and accents: `:exact`.
func ValueExact(text string) Value { return Value(hash('x', text)) }

// WordKey is the key of a name's further words: the name from each of them on (Index.Name).
func WordKey(k Key) Key { return k ^ wordMask }

var wordMask = Key(hash('w'))

// ContainedMask turns the keys and terms of a contained resource into keys and terms of the containing resource, for
// chains along way: the keys of the references from one resource to the next, beginning at the containing resource.
// The same references in another order are another path. As a key of its own, it has in the dictionary of texts
// the types of the resources at the end of the path.
// Spec: https://hl7.org/fhir/R4/search.html#contained.
func ContainedMask(way ...Key) Key {
	var mask Key
	for i, ref := range way {
		mask ^= containedStep(ref, i+1)
	}
	return mask
}

// containedStep is the part of a reference in the mask of a way that it is the depth-th of. It leaves the last
// byte of a term as it is (see ValueName).
func containedStep(ref Key, depth int) Key {
	var buf [9]byte
	binary.BigEndian.PutUint64(buf[:8], uint64(ref))
	buf[8] = byte(depth)
	return Key(hash('l', string(buf[:])) &^ lastByte)
}

// ValueContained is a reference to any resource of a type that is contained.
func ValueContained(typ string) Value { return Value(hash('z', typ)) }

// NameKey is the key of the names that a resource has of its own, by which canonicals refer to it: its url, and
// that with its version. NamingKey is the key of those that canonicals under k refer to. The last byte of the
// terms of a name tells one from the other: a resource may have both.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
var NameKey = Key(hash('a')&^lastByte | 1)

// NamingKey is described at NameKey.
func NamingKey(k Key) Key { return (k ^ namingMask) &^ lastByte }

var namingMask = Key(hash('b'))

// ValueName is a name, `url` or `url|version`. A canonical without a version names every version.
func ValueName(name string) Value { return Value(hash('a', name) &^ lastByte) }

const lastByte = 0xff

// ValuePair is two values that stand in the same repetition of a composite's
// element.
func ValuePair(a, b Value) Value {
	var buf [16]byte
	binary.BigEndian.PutUint64(buf[:8], uint64(a))
	binary.BigEndian.PutUint64(buf[8:], uint64(b))
	return Value(hash('2', string(buf[:])))
}

// Index collects the search index entries of a resource. The zero value is empty; Reset empties an Index and keeps
// its memory.
type Index struct {
	Terms      []int64 // without duplicates and sorted, after Finish
	Targets    []int64 // ValueReference of each local resource referred to; sorted, unique after Finish
	Dates      []DateEntry
	Numbers    []NumberEntry
	Quantities []QuantityEntry
	Strings    []StringEntry
	Texts      []TextEntry
	Narrative  string // the text of the narrative, folded: _text

	// BaseURLs are this server's own base URLs, without a trailing slash: an
	// absolute reference below one of them is a local one.
	BaseURLs []string
	// Narrowed are the keys of references whose types are searched for (see
	// ValueTarget); nil is every key.
	Narrowed map[Key]struct{}
	// ResourceType and Resource are the type of the indexed resource and the resource itself, for references to
	// contained resources. Reset clears them.
	ResourceType string
	Resource     Resource
	// ParametersVersion is the version of the search parameters that the index was made
	// by; 0 before any was changed at run time.
	ParametersVersion int64
	// Within are the contained resources by id: those of Resource, or its siblings if it is contained itself. It is nil
	// before the first reference to one. Contained are the referenced ones. Reset clears both.
	Within    map[string]Resource
	Contained []ContainedEntry
	// Sorters get what would be entries, see Sorter; nil for an index to be kept.
	// Reset clears them.
	Sorters []*Sorter

	composite composite
}

// ContainedEntry is a contained resource that a reference under Key points at.
type ContainedEntry struct {
	Key      Key
	Resource Resource
	Whole    bool // the entries of contained resources are in it and not beside it: Embedded
}

// DateEntry is a half-open UTC range [Low, High) in microseconds since 1970.
// OpenLow and OpenHigh are the open ends.
type DateEntry struct {
	Key       Key
	Low, High int64
}

// NumberEntry is an inclusive range of decimals as text; equal for a plain
// number, "" for an open end.
type NumberEntry struct {
	Key       Key
	Low, High string
}

// QuantityEntry is a NumberEntry with its unit; System and Code are "" where the
// quantity has none, Unit is the human form.
type QuantityEntry struct {
	Key                Key
	Low, High          string
	System, Code, Unit string
}

// StringEntry is a string as JoinText has it.
type StringEntry struct {
	Key   Key
	Text  string
	Word  bool // part of another entry, under WordKey: not needed for :contains
	Order bool // contains sort values as they are: Index.Ordered
}

// Parameter is a search parameter as one resource type sees it.
type Parameter struct {
	Code        string
	Base        string // resource type
	URL         string // canonical of the SearchParameter
	Type        SearchType
	Expression  string // the branches that concern Base, FHIRPath
	Description string
	// Keys are the branches, in order.
	Keys []Key
	// PartOf says which of Keys have parts of the values of another one: `name` reads
	// the entries of `family` and `given`, and its own key has the rest of a name. It
	// is that other key for each of Keys, 0 for a branch that has its own; nil where
	// no key is part of another.
	PartOf []Key
	// Words are the keys among Keys that index parts of names: their entries also exist under WordKey.
	Words []Key
	// Targets are the resource types a reference may point at, sorted. Of
	// several branches, the union.
	Targets []string
	// Single says that each key has at most one entry in a resource, so that
	// rows need not be counted distinct.
	Single bool
	// Systems are the implicit systems of code elements, one for each of Keys (see
	// Binding.System), nil where none has one: their entries name no system
	// (Index.CodeOf).
	Systems []string
	// Composites are the branches of a composite parameter; Keys is empty then.
	Composites []Composite
	// Unsupported is why the parameter cannot be searched, "" for nearly all. It
	// is refused by name and absent from /metadata.
	Unsupported string
	// Notice is the warning of a search by the parameter, "" for nearly all: its index is being built.
	Notice string
}

// Composite is one branch of a composite parameter.
type Composite struct {
	// Key has the entries of a branch that repeats: the components are indexed
	// together. It is 0 where the branch is the resource itself and every
	// component occurs once: then the search is the conjunction of the parts.
	Key Key
	// Coded has rows of a branch that is the resource itself and has one component
	// that is a date, a number or a quantity: under CompositeKey of the other one,
	// a code in its system. 0 where there are none.
	Coded Key
	// Parts are the components: their search types and, where Key is 0, their
	// own keys.
	Parts []Part
}

// Part is one component of a composite.
type Part struct {
	Code   string // of the parameter that defines the component
	Type   SearchType
	Keys   []Key
	System string
}

// Compartment says which parameters put a resource into a compartment.
// Spec: https://hl7.org/fhir/R4/compartmentdefinition.html.
type Compartment struct {
	Code string              // Patient, Encounter, RelatedPerson, Practitioner, Device
	By   map[string][]string // resource type -> parameter codes; "{def}" is the resource itself
}

// Open ends of a DateEntry.
const (
	OpenLow  int64 = -1e18
	OpenHigh int64 = 1e18
)

// TextEntry is one of the distinct texts of a key: the display text of a coded
// element, as JoinText has it, whose term is Key.Term(ValueText(Text)); or a uri
// as it is, whose term is Key.Term(ValueURI(Text)).
type TextEntry struct {
	Key  Key
	Text string
}

// ValueText is a display text, as JoinText has it: token `:text` and reference `:text`.
func ValueText(text string) Value { return Value(hash('t', text)) }

// UnitID is the id of a unit in the table quantity_unit.
func UnitID(system, code, unit string) int64 { return int64(hash('q', system, code, unit)) }
