package fhir

import (
	"slices"
	"strconv"
	"strings"
)

// The generated extractors call the methods below, one for each kind of datatype. Each takes the key of the branch and
// values as text. An empty text is no value and adds nothing. Each entry also adds the key's ValuePresent.

// AnySystem stands for "in whatever system" in ValueIdentifier. No system is
// spelled like it: FHIR has no control characters.
const AnySystem = "\x01"

// composite is the state between Open and Close: the values of each part of the
// repetition being collected. While it is open, the methods add to it and ignore
// their key.
type composite struct {
	key   Key
	parts []partValues
	part  int
	pair  int // the second of two parts that are numbers, while it is closed; else -1
	open  bool
	coded bool // of the resource itself: a token is its system and code
	// systems are the systems of a coded composite's codes.
	systems []TextEntry
}

// partValues are the values of one part: hashed ones, or ordered entries whose
// Key is not set yet.
type partValues struct {
	values     []Value
	dates      []DateEntry
	numbers    []NumberEntry
	quantities []QuantityEntry
	strings    []StringEntry
	present    bool // there is a value, if only one of which nothing is kept here: a text
}

func (p *partValues) reset() {
	p.present = false
	p.values, p.dates = p.values[:0], p.dates[:0]
	p.numbers, p.quantities, p.strings = emptied(p.numbers), emptied(p.quantities), emptied(p.strings)
}

// Reset empties the index and keeps its memory and BaseURLs. It lets go of every
// string: they are parts of a request's body, which an index that waits for reuse
// would keep alive as a whole.
func (x *Index) Reset() {
	x.ResourceType, x.Resource, x.Sorters, x.Narrative = "", nil, nil, ""
	x.Within, x.Contained = nil, emptied(x.Contained)
	x.Terms, x.Targets, x.Dates = x.Terms[:0], x.Targets[:0], x.Dates[:0]
	x.Numbers, x.Quantities = emptied(x.Numbers), emptied(x.Quantities)
	x.Strings, x.Texts = emptied(x.Strings), emptied(x.Texts)
	x.composite.open, x.composite.part = false, 0
	x.composite.systems = emptied(x.composite.systems)
	for i := range x.composite.parts {
		x.composite.parts[i].reset()
	}
}

// emptied is list without its content, up to its capacity.
func emptied[T any](list []T) []T {
	clear(list[:cap(list)])
	return list[:0]
}

// Finish adds the entries without an expression, sorts all entries and drops duplicates.
func (x *Index) Finish() {
	if x.ResourceType == "Location" && x.Resource != nil {
		for _, n := range NodeOf(x.Resource).AppendChild(nil, "position") {
			x.Position(PositionKey, n.childText("latitude"), n.childText("longitude"))
		}
	}
	if x.Resource != nil {
		if url, version := CanonicalOf(x.Resource); url != "" {
			x.Terms = append(x.Terms, NameKey.Term(ValueName(url)), NameKey.Term(ValueName(url+"|"+version)))
		}
		for _, n := range NodeOf(x.Resource).AppendChild(nil, "text") {
			for _, div := range n.AppendChild(nil, "div") {
				x.Narrative = narrativeText(div.Text())
			}
		}
	}
	slices.Sort(x.Terms)
	x.Terms = slices.Compact(x.Terms)
	slices.Sort(x.Targets)
	x.Targets = slices.Compact(x.Targets)
	slices.SortFunc(x.Texts, func(a, b TextEntry) int {
		if a.Key != b.Key {
			if a.Key < b.Key {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Text, b.Text)
	})
	x.Texts = slices.Compact(x.Texts)
	x.Dates = unique(x.Dates)
	x.Numbers = unique(x.Numbers)
	x.Quantities = unique(x.Quantities)
	x.Strings = unique(x.Strings)
}

// CanonicalOf is the canonical URL of a resource with its version, "" where it has none.
func CanonicalOf(r Resource) (url, version string) {
	n := NodeOf(r)
	if url = n.childText("url"); url != "" {
		version = n.childText("version")
	}
	return url, version
}

// unique drops repeated entries and keeps the order. The lists are short.
func unique[T comparable](list []T) []T {
	if len(list) > 64 {
		seen := make(map[T]struct{}, len(list))
		return slices.DeleteFunc(list, func(e T) bool {
			_, again := seen[e]
			seen[e] = struct{}{}
			return again
		})
	}
	out := list[:0]
	for _, e := range list {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// add leaves one term, or one value of the open part.
func (x *Index) add(k Key, v Value) {
	if x.composite.open {
		p := x.partValues()
		p.values = append(p.values, v)
		return
	}
	x.Terms = append(x.Terms, k.Term(v))
}

// present notes that k has an entry. Finish drops the repetitions.
func (x *Index) present(k Key) {
	if x.composite.open {
		x.partValues().present = true
		return
	}
	x.Terms = append(x.Terms, k.Term(present))
}

var present = ValuePresent()

func (x *Index) partValues() *partValues { return &x.composite.parts[x.composite.part] }

// Code indexes a code, or a string or boolean searched as a token: `code`.
func (x *Index) Code(k Key, code string) {
	if code == "" {
		return
	}
	switch {
	case x.Sorters != nil:
		x.sortToken(k, "", code)
		return
	case x.composite.open && x.composite.coded:
		x.inSystem(k, "", code, ValueCode(code))
		return
	}
	x.add(k, ValueCode(code))
	x.present(k)
}

// CodeOf indexes a code whose binding implies its system. Every entry of the key has that system, so none contains
// it: a search for `system|code` looks for the code, one for `system|` for any code. A media type with
// parameters is also found by the type before them: `:below`.
func (x *Index) CodeOf(k Key, system, code string) {
	if x.Sorters != nil || x.composite.open {
		x.Coding(k, system, code, "")
		return
	}
	x.Code(k, code)
	if system == MIMESystem && x.Sorters == nil {
		if base, _, ok := strings.Cut(code, ";"); ok {
			x.add(k, ValueMIMEType(strings.TrimSpace(base)))
		}
	}
}

// Boolean indexes "true" or "false".
func (x *Index) Boolean(k Key, text string) { x.Code(k, text) }

// Coding indexes one coding of a Coding or CodeableConcept, or a code whose
// system is known: `code`, `system|code`, `system|`, `|code`, and its display for
// :text.
func (x *Index) Coding(k Key, system, code, display string) {
	x.systemAndCode(k, system, code)
	x.TokenText(k, display)
}

func (x *Index) systemAndCode(k Key, system, code string) {
	if x.Sorters != nil {
		x.sortToken(k, system, code)
		return
	}
	if code != "" {
		x.inSystem(k, system, code, x.code(k, code))
		x.present(k)
	}
	if system != "" {
		x.present(k)
		if !x.composite.open {
			x.add(k, ValueSystem(system))
		}
	}
}

// code leaves a code in whatever system, and returns its value.
func (x *Index) code(k Key, code string) Value {
	v := ValueCode(code)
	if !x.composite.open || !x.composite.coded {
		x.add(k, v)
	}
	return v
}

// inSystem leaves a code with its system; v is its ValueCode.
func (x *Index) inSystem(k Key, system, code string, v Value) {
	x.add(k, valueCoding(system, code, v))
	if c := &x.composite; c.open && c.coded {
		c.systems = append(c.systems, TextEntry{CompositeKey(c.key, v), system})
	}
}

// TokenText indexes CodeableConcept.text, Coding.display or Identifier.type.text
// for :text.
func (x *Index) TokenText(k Key, text string) {
	if text == "" {
		return
	}
	if x.composite.open {
		x.present(k)
		return
	}
	if x.Sorters != nil {
		x.sortText(k, text)
		return
	}
	text = JoinText(text)
	if text == "" {
		return
	}
	x.Terms = append(x.Terms, k.Term(ValueText(text)))
	x.Texts = append(x.Texts, TextEntry{k, text})
	x.present(k)
}

// Identifier indexes `value`, `system|value`, `system|` and `|value`.
func (x *Index) Identifier(k Key, system, value string) { x.systemAndCode(k, system, value) }

// OfType indexes one coding of an identifier's type with its value: :of-type.
func (x *Index) OfType(k Key, typeSystem, typeCode, value string) {
	if typeCode == "" || value == "" || x.composite.open || x.Sorters != nil {
		return
	}
	x.add(k, ValueOfType(typeSystem, typeCode, value))
	x.add(k, ValueOfType(typeSystem, typeCode, ""))
	x.present(k)
}

// ContactPoint indexes `value`, `system|value` (phone, email, …), `use|value`
// (home, work, …; the meaning that R4 gives the system of a ContactPoint) and
// `|value`, which asks for no system in particular.
// Spec: https://hl7.org/fhir/R4/search.html#token.
func (x *Index) ContactPoint(k Key, system, use, value string) {
	if value == "" {
		return
	}
	if x.Sorters != nil {
		x.sortToken(k, system, value)
		return
	}
	v := x.code(k, value)
	if system != "" {
		x.inSystem(k, system, value, v)
	}
	if use != "" && use != system {
		x.inSystem(k, use, value, v)
	}
	x.present(k)
}

// Reference indexes Reference.reference; typ is Reference.type or "". A literal
// reference to a resource of this server, versioned or not, becomes its
// ValueReference and a target; an absolute URL of somewhere else and a urn are
// indexed as they are; of `#id` only that it is there, and its type. It returns the type
// that the reference says, or "".
// Spec: https://hl7.org/fhir/R4/search.html#reference.
func (x *Index) Reference(k Key, reference, typ string) string {
	if reference == "" {
		return typ
	}
	x.present(k)
	if reference[0] == '#' {
		if t := x.contained(k, reference[1:]); t != "" {
			return t
		}
		return typ
	}
	if x.Sorters != nil {
		return x.sortReference(k, reference, typ)
	}
	if t, id, ok := LocalReference(reference, x.BaseURLs); ok {
		v := ValueReference(t, id)
		x.add(k, v)
		x.target(k, t)
		x.Targets = append(x.Targets, int64(v))
		return t
	}
	base, versioned := withoutVersion(reference)
	if typ == "" {
		typ = typeInURL(base)
	}
	x.target(k, typ)
	x.ofTarget(k, typ, ValueURI(reference))
	if versioned {
		x.ofTarget(k, typ, ValueURI(base))
	}
	return typ
}

// contained notes that a reference under k points at the contained resource with an id, and returns its type.
// Spec: https://hl7.org/fhir/R4/references.html#contained.
func (x *Index) contained(k Key, id string) string {
	if x.Within == nil {
		x.Within = make(map[string]Resource)
		for _, n := range NodeOf(x.Resource).AppendChild(nil, "contained") {
			if r, ok := n.Element().(Resource); ok {
				x.Within[r.Header().ID.Text] = r
			}
		}
	}
	r := x.Within[id]
	if r == nil || id == "" {
		return ""
	}
	x.target(k, r.Type().Name)
	if !x.composite.open && x.Sorters == nil {
		x.Contained = append(x.Contained, ContainedEntry{Key: k, Resource: r})
	}
	return r.Type().Name
}

// Embedded indexes a resource that is embedded instead of referenced, for chains like those to contained resources.
func (x *Index) Embedded(k Key, r Resource) {
	if x.composite.open || x.Sorters != nil {
		return
	}
	x.present(k)
	x.target(k, r.Type().Name)
	x.Contained = append(x.Contained, ContainedEntry{Key: k, Resource: r, Whole: true})
}

// AddContained adds the finished index y of a contained resource, for chains along the reference ref to it. depth
// is the position of the reference in the path, from 1.
func (x *Index) AddContained(ref Key, depth int, y *Index) {
	mask := containedStep(ref, depth)
	x.Terms = append(x.Terms, ref.Term(ValueContained(y.ResourceType)))
	for _, t := range y.Terms {
		x.Terms = append(x.Terms, t^int64(mask))
	}
	x.Targets = append(x.Targets, y.Targets...)
	for _, e := range y.Dates {
		e.Key ^= mask
		x.Dates = append(x.Dates, e)
	}
	for _, e := range y.Numbers {
		e.Key ^= mask
		x.Numbers = append(x.Numbers, e)
	}
	for _, e := range y.Quantities {
		e.Key ^= mask
		x.Quantities = append(x.Quantities, e)
	}
	for _, e := range y.Strings {
		e.Key ^= mask
		x.Strings = append(x.Strings, e)
	}
	x.Texts = append(x.Texts, TextEntry{mask, y.ResourceType})
	for _, e := range y.Texts {
		e.Key ^= mask
		x.Texts = append(x.Texts, e)
	}
}

// target notes that a reference under k points at a resource of type typ: the
// presence of a parameter that is narrowed to that type, `patient` of `subject`.
func (x *Index) target(k Key, typ string) {
	if typ != "" && !x.composite.open && x.narrowed(k) {
		x.Terms = append(x.Terms, k.Term(ValueTarget(typ)))
	}
}

// ofTarget leaves the identifier or the URL of a reference to a resource of type typ, "" where it does not say.
func (x *Index) ofTarget(k Key, typ string, v Value) {
	x.add(k, v)
	if !x.composite.open && x.narrowed(k) {
		x.Terms = append(x.Terms, k.Term(ValueOfTarget(typ, v)))
	}
}

func (x *Index) narrowed(k Key) bool {
	_, ok := x.Narrowed[k]
	return ok || x.Narrowed == nil
}

// LogicalReference indexes Reference.identifier of a reference to a resource of type typ or "", for :identifier. The
// type of a reference without one can come from its other elements.
func (x *Index) LogicalReference(k Key, typ, system, value string) {
	if system == "" && value == "" {
		return
	}
	if x.Sorters != nil {
		x.sortLogical(k, typ, value)
		return
	}
	x.present(k)
	if x.composite.open {
		return
	}
	x.target(k, typ)
	if value != "" {
		x.ofTarget(k, typ, ValueIdentifier(system, value))
		x.ofTarget(k, typ, ValueIdentifier(AnySystem, value))
	}
	if system != "" {
		x.ofTarget(k, typ, ValueIdentifier(system, ""))
	}
}

// Canonical indexes a canonical as it is, without its fragment and version, as a name of its target, and, if it is
// one, as a literal reference.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func (x *Index) Canonical(k Key, canonical string) {
	if canonical == "" {
		return
	}
	x.present(k)
	if canonical[0] == '#' {
		return
	}
	if x.Sorters != nil {
		x.sortURI(k, canonical)
		return
	}
	x.add(k, ValueURI(canonical))
	url, _, fragment := strings.Cut(canonical, "#")
	if fragment {
		x.add(k, ValueURI(url))
	}
	if !x.composite.open {
		x.Terms = append(x.Terms, NamingKey(k).Term(ValueName(url)))
		if strings.Contains(url, "|") { // :below steps along versions
			x.Texts = append(x.Texts, TextEntry{k, url})
		}
	}
	if i := strings.IndexByte(url, '|'); i >= 0 {
		url = url[:i]
		x.add(k, ValueURI(url))
	}
	if t, id, ok := LocalReference(url, x.BaseURLs); ok {
		v := ValueReference(t, id)
		x.add(k, v)
		x.Targets = append(x.Targets, int64(v))
	}
	if !x.composite.open {
		x.Texts = append(x.Texts, TextEntry{k, url})
	}
}

// CanonicalURI indexes a canonical for a parameter of type uri: as it is, without its fragment, and without its version.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func (x *Index) CanonicalURI(k Key, canonical string) {
	if x.Sorters == nil {
		if url, _, fragment := strings.Cut(canonical, "#"); fragment && url != "" {
			x.add(k, ValueURI(canonical))
			canonical = url
		}
		if url, _, versioned := strings.Cut(canonical, "|"); versioned {
			x.add(k, ValueURI(url))
		}
	}
	x.URI(k, canonical)
}

// URI indexes a uri: exact, and for :above and :below its text among the
// distinct texts of the key.
func (x *Index) URI(k Key, uri string) {
	if uri == "" {
		return
	}
	if x.Sorters != nil {
		x.sortURI(k, uri)
		return
	}
	x.present(k)
	x.add(k, ValueURI(uri))
	if !x.composite.open {
		x.Texts = append(x.Texts, TextEntry{k, uri})
	}
}

// String indexes a string: by JoinText for its start, its order and :contains; as it
// is for :exact.
func (x *Index) String(k Key, text string) {
	if x.exact(k, text) {
		x.text(k, JoinText(text))
	}
}

// Name indexes a part of a HumanName: a string that is found by the start of any word
// in it, too: servers should search the parts of a family name independently.
// Spec: https://hl7.org/fhir/R4/search.html#string.
func (x *Index) Name(k Key, text string) {
	if !x.exact(k, text) {
		return
	}
	folded := FoldText(text)
	x.text(k, joined(folded))
	for _, w := range furtherWords(folded) {
		x.word(k, w)
	}
}

// exact leaves a string as it is, for :exact; false where it leaves no entries at all.
func (x *Index) exact(k Key, text string) bool {
	if text == "" || x.Sorters != nil {
		return false
	}
	x.present(k)
	if !x.composite.open {
		x.Terms = append(x.Terms, k.Term(ValueExact(text)))
	}
	return true
}

// text leaves a text by which a string is found, or one of the open part.
func (x *Index) text(k Key, text string) { x.addString(StringEntry{Key: k, Text: text}) }

// word leaves a text by which a string is found beside its own.
func (x *Index) word(k Key, text string) {
	x.addString(StringEntry{Key: WordKey(k), Text: text, Word: true})
}

func (x *Index) addString(e StringEntry) {
	if x.composite.open {
		p := x.partValues()
		p.strings = append(p.strings, e)
		return
	}
	x.Strings = append(x.Strings, e)
}

// Date indexes a date, dateTime or instant at its own precision. A text that is
// no date is left out; validation has refused it before.
func (x *Index) Date(k Key, text string) {
	if text == "" {
		return
	}
	low, high, err := ParseDate(text)
	if err != nil {
		return
	}
	x.date(k, low, high)
}

// Period indexes from the first instant of start to the last of end; an absent
// one is an open end. Spec: https://hl7.org/fhir/R4/search.html#date.
func (x *Index) Period(k Key, start, end string) {
	low, high := OpenLow, OpenHigh
	bounds := 0
	if l, _, err := ParseDate(start); start != "" && err == nil {
		low, bounds = l, bounds+1
	}
	if _, h, err := ParseDate(end); end != "" && err == nil {
		high, bounds = h, bounds+1
	}
	if bounds == 0 || low >= high {
		return
	}
	x.date(k, low, high)
}

func (x *Index) date(k Key, low, high int64) {
	if x.composite.open {
		p := x.partValues()
		p.dates = append(p.dates, DateEntry{Low: low, High: high})
		return
	}
	x.present(k)
	x.Dates = append(x.Dates, DateEntry{k, low, high})
}

// Number indexes an integer or decimal.
func (x *Index) Number(k Key, text string) { x.NumberRange(k, text, text) }

// NumberRange indexes a range of numbers; an absent end is open.
func (x *Index) NumberRange(k Key, low, high string) {
	low, high = number(low), number(high)
	if low == "" && high == "" {
		return
	}
	if x.composite.open {
		p := x.partValues()
		p.numbers = append(p.numbers, NumberEntry{Low: low, High: high})
		return
	}
	x.present(k)
	x.Numbers = append(x.Numbers, NumberEntry{k, low, high})
}

// PositionKey is the key of the position of a Location: near.
var PositionKey = KeyOf(SearchSpecial, "Location.position")

// Position indexes a place in degrees, WGS84: a row of numbers, of which the low end is
// the latitude and the high end the longitude. A place that is on no map is left out.
// Spec: https://hl7.org/fhir/R4/location.html#search.
func (x *Index) Position(k Key, latitude, longitude string) {
	within := func(text string, most float64) bool {
		d, err := strconv.ParseFloat(number(text), 64)
		return err == nil && d >= -most && d <= most
	}
	if x.Sorters != nil || !within(latitude, 90) || !within(longitude, 180) {
		return
	}
	x.present(k)
	x.Numbers = append(x.Numbers, NumberEntry{k, latitude, longitude})
}

// number returns text where it is a decimal that can be indexed, else "".
func number(text string) string {
	if text == "" {
		return ""
	}
	if len(text) < 18 && !strings.ContainsAny(text, "eE+") && decimalSyntax(text) {
		return text
	}
	if _, err := ParseDecimal(text); err != nil {
		return ""
	}
	return text
}

// Quantity indexes a Quantity, Money or what specialises them, in its own unit.
// A comparator makes the value an open range: "<5" lies below 5.
// Spec: https://hl7.org/fhir/R4/search.html#quantity.
func (x *Index) Quantity(k Key, value, comparator, system, code, unit string) {
	low, high := value, value
	if comparator != "" {
		d, err := ParseDecimal(value)
		if err != nil {
			return
		}
		switch comparator {
		case "<":
			low, high = "", justBelow(d)
		case "<=":
			low = ""
		case ">":
			low, high = justAbove(d), ""
		case ">=":
			high = ""
		}
	}
	x.QuantityRange(k, low, high, system, code, unit)
}

// QuantityRange indexes a Range or a Ratio read as one; an absent end is open.
func (x *Index) QuantityRange(k Key, low, high, system, code, unit string) {
	low, high = number(low), number(high)
	if low == "" && high == "" {
		return
	}
	e := QuantityEntry{Key: k, Low: low, High: high, System: system, Code: code, Unit: unit}
	if x.composite.open {
		p := x.partValues()
		p.quantities = append(p.quantities, e)
		return
	}
	x.present(k)
	x.Quantities = append(x.Quantities, e)
}

// Open begins one repetition of a composite's element that has n parts. Until
// Close the other methods collect values of the current part; Next goes to the
// next part.
func (x *Index) Open(k Key, n int) {
	c := &x.composite
	c.key, c.part, c.open, c.coded = k, 0, true, false
	for len(c.parts) < n {
		c.parts = append(c.parts, partValues{})
	}
	c.parts = c.parts[:n]
	for i := range c.parts {
		c.parts[i].reset()
	}
}

// OpenCoded is Open for a composite of the resource itself (Composite.Coded): of a
// token only the code in its system counts. Which systems a code comes in is left
// among the texts, under CompositeKey of the code, for searches that name none.
func (x *Index) OpenCoded(k Key, n int) {
	x.Open(k, n)
	x.composite.coded, x.composite.systems = true, emptied(x.composite.systems)
}

// Next goes to the next part of the open repetition.
func (x *Index) Next() { x.composite.part++ }

// Close ends the repetition and leaves its entries: for every combination of the
// parts' hashed values one term (CompositeValue), or, when one part is ordered,
// one row of that type under CompositeKey; of two numbers, one row that has the
// first as its low end and the second as its high end, whichever is larger. A
// repetition with an empty part leaves nothing.
func (x *Index) Close() {
	c := &x.composite
	c.open, c.part = false, 0
	ordered, whole := -1, true
	c.pair = -1
	for i := range c.parts {
		p := &c.parts[i]
		if len(p.values) > 0 {
			continue
		}
		switch any := len(p.dates)+len(p.numbers)+len(p.quantities)+len(p.strings) > 0; {
		case any && ordered < 0:
			ordered = i
		case c.pair < 0 && len(p.numbers) > 0 && len(c.parts[ordered].numbers) > 0:
			c.pair = i
		case any || p.present:
			whole = false
		default:
			return
		}
	}
	if !c.coded {
		x.present(c.key)
	}
	if !whole {
		return
	}
	if c.coded {
		x.Texts = append(x.Texts, c.systems...)
	}
	x.combine(0, ordered, 0, false)
}

// combine walks the combinations of hashed values from part i on; v is the value
// so far.
func (x *Index) combine(i, ordered int, v Value, any bool) {
	c := &x.composite
	if i == len(c.parts) {
		x.leave(ordered, v)
		return
	}
	if i == ordered || i == c.pair {
		x.combine(i+1, ordered, v, any)
		return
	}
	for _, w := range c.parts[i].values {
		if any {
			w = ValuePair(v, w)
		}
		x.combine(i+1, ordered, w, true)
	}
}

func (x *Index) leave(ordered int, v Value) {
	c := &x.composite
	if ordered < 0 {
		x.Terms = append(x.Terms, c.key.Term(v))
		return
	}
	k := CompositeKey(c.key, v)
	p := &c.parts[ordered]
	for _, e := range p.dates {
		e.Key = k
		x.Dates = append(x.Dates, e)
	}
	for _, e := range p.numbers {
		e.Key = k
		if c.pair < 0 {
			x.Numbers = append(x.Numbers, e)
			continue
		}
		for _, second := range c.parts[c.pair].numbers {
			x.Numbers = append(x.Numbers, NumberEntry{Key: k, Low: e.Low, High: second.High})
		}
	}
	for _, e := range p.quantities {
		e.Key = k
		x.Quantities = append(x.Quantities, e)
	}
	for _, e := range p.strings {
		if e.Key = k; e.Word {
			e.Key = WordKey(k)
		}
		x.Strings = append(x.Strings, e)
	}
}

// CompositeKey is the key of the ordered rows of a composite: the composite's
// own key with the hashed value of its other part (or the ValuePair of several,
// left to right) mixed in, so that one row and one index answer both parts.
func CompositeKey(k Key, v Value) Key { return Key(k.Term(v)) }

// LocalReference reads a literal reference to a resource of this server:
// "Type/id", "Type/id/_history/4", or either below one of the base URLs.
func LocalReference(reference string, baseURLs []string) (typ, id string, ok bool) {
	if strings.Contains(reference, ":") {
		local := false
		for _, base := range baseURLs {
			if rest, found := strings.CutPrefix(reference, base); found && strings.HasPrefix(rest, "/") {
				reference, local = rest[1:], true
				break
			}
		}
		if !local {
			return "", "", false
		}
	}
	typ, id, ok = strings.Cut(reference, "/")
	if !ok {
		return "", "", false
	}
	if i := strings.IndexByte(id, '/'); i >= 0 {
		if !strings.HasPrefix(id[i:], "/_history/") {
			return "", "", false
		}
		id = id[:i]
	}
	if !resourceTypeSyntax(typ) || !ValidID(id) {
		return "", "", false
	}
	return typ, id, true
}

// withoutVersion cuts "/_history/…" off a reference to another server, and says
// whether there was one.
func withoutVersion(reference string) (string, bool) {
	if i := strings.LastIndex(reference, "/_history/"); i > 0 {
		return reference[:i], true
	}
	return reference, false
}

// typeInURL is the resource type in "https://other.example/fhir/Patient/1", or "".
func typeInURL(url string) string {
	url, _, _ = strings.Cut(url, "?")
	i := strings.LastIndexByte(url, '/')
	if i < 0 {
		return ""
	}
	typ := url[strings.LastIndexByte(url[:i], '/')+1 : i]
	if !resourceTypeSyntax(typ) || !ValidID(url[i+1:]) {
		return ""
	}
	return typ
}

func resourceTypeSyntax(s string) bool {
	if s == "" || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
