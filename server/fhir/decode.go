package fhir

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"kiln/server/outcome"
)

// Limits of the JSON that is read. They bound memory and stack, not content:
// nothing in R4's own package comes near them.
const (
	maxDepth  = 128     // nested objects and arrays
	maxIssues = 50      // reported of one body
	maxDigits = 400     // bytes of one number
	maxString = 1 << 20 // bytes of one string. Spec: https://hl7.org/fhir/R4/datatypes.html#string
)

// Decode reads one resource of the model from JSON. The strings of the result
// are parts of data wherever they need no unescaping: data must not change as
// long as the result is used.
//
// It fails with structure, 400, where data is not JSON or has no known
// resourceType, and with invalid, 422, one issue each with its place, for
// unknown elements, wrong JSON types, malformed primitives, repeated properties
// and empty arrays, objects or strings. Minimum cardinality and everything that
// needs more than one element to judge is left to validation.
// Spec: https://hl7.org/fhir/R4/json.html.
func Decode(m *Model, data []byte) (Resource, error) {
	in, err := Read(m, data)
	if err != nil {
		return nil, err
	}
	if len(in.Issues) > 0 {
		return nil, outcome.Unprocessable(in.Issues)
	}
	return in.Resource, nil
}

// Reading is a resource as far as its JSON is well-formed.
type Reading struct {
	Resource Resource
	Issues   []outcome.Issue // see Decode
	// Lost are the expressions of the elements that Resource lacks or has without
	// value because the JSON has them in another form.
	Lost []string
}

// Read decodes like Decode, and returns the readable part where Decode fails with 422. It fails with structure,
// 400, if data is not JSON or has no known resourceType.
func Read(m *Model, data []byte) (Reading, error) {
	if !utf8.Valid(data) {
		return Reading{}, invalidUTF8(data)
	}
	d := decoder{model: m, data: data}
	d.space()
	r := d.resource()
	if d.err == nil {
		d.space()
		if d.pos != len(data) {
			d.syntax("unexpected text after the resource")
		}
	}
	if d.err != nil {
		return Reading{}, d.err
	}
	return Reading{Resource: r, Issues: d.issues, Lost: d.lost}, nil
}

func invalidUTF8(data []byte) error {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			line, column := lineColumn(data, i)
			e := outcome.New(outcome.CodeStructure, "invalid UTF-8 at line %d, column %d", line, column)
			e.Issues[0].Line, e.Issues[0].Column = line, column
			return e
		}
		i += n
	}
	return nil
}

// prop is the meaning of one JSON property of a type.
type prop struct {
	name   string
	field  *Field
	choice Element // the type of a choice element's value
	extra  bool    // "_name": id and extensions of a primitive
}

// nameTable finds the prop of a JSON property.
type nameTable struct {
	props  []prop // in definition order, which is the usual order in a body
	byName map[string]int
}

func (t *Type) props() *nameTable {
	if n := t.names.Load(); n != nil {
		return n
	}
	n := &nameTable{byName: make(map[string]int)}
	add := func(p prop) {
		n.byName[p.name] = len(n.props)
		n.props = append(n.props, p)
	}
	element := func(name string, f *Field, of, choice Element) {
		add(prop{name: name, field: f, choice: choice})
		if k := of.Type().Kind; k.Primitive() && k != SystemStringKind && k != JSONKind {
			add(prop{name: "_" + name, field: f, choice: choice, extra: true})
		}
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		switch {
		case f.AnyResource:
			add(prop{name: f.Name, field: f})
		case f.Open: // found by prefix, see decoder.property
		case f.Choices != nil:
			for _, c := range f.Choices {
				element(f.Name+title(c.Type().Name), f, c, c)
			}
		default:
			element(f.Name, f, f.Of, nil)
		}
	}
	t.names.Store(n)
	return n
}

// title returns name with an upper-case first letter, as a choice type is
// written in a property: valueDateTime.
func title(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

type step struct {
	name  string
	index int // -1 outside arrays
}

type decoder struct {
	model  *Model
	data   []byte
	pos    int
	depth  int
	path   []step
	issues []outcome.Issue
	lost   []string
	err    *outcome.Error
	pathed [23]step
}

// syntax ends decoding: the following bytes cannot be trusted.
func (d *decoder) syntax(format string, args ...any) {
	if d.err != nil {
		return
	}
	line, column := lineColumn(d.data, d.pos)
	d.err = outcome.New(outcome.CodeStructure, "%s at line %d, column %d", fmt.Sprintf(format, args...), line, column)
	d.err.Issues[0].Line, d.err.Issues[0].Column = line, column
	d.err.Issues[0].Expression = d.expression()
	d.pos = len(d.data)
}

// issue notes a violation by the value at the current path, which is lost, and lets
// decoding go on.
func (d *decoder) issue(at int, format string, args ...any) {
	if d.err != nil || len(d.issues) >= maxIssues {
		return
	}
	d.lost = append(d.lost, d.expression())
	d.note(at, format, args...)
}

// note notes a violation at the current path.
func (d *decoder) note(at int, format string, args ...any) {
	if d.err != nil || len(d.issues) >= maxIssues {
		return
	}
	line, column := lineColumn(d.data, at)
	d.issues = append(d.issues, outcome.Issue{
		Severity: outcome.Failure, Code: outcome.CodeInvalid,
		Diagnostics: fmt.Sprintf(format, args...), Expression: d.expression(), Line: line, Column: column,
	})
}

func lineColumn(data []byte, at int) (line, column int) {
	line, column = 1, 1
	for _, c := range data[:min(at, len(data))] {
		if c == '\n' {
			line++
			column = 1
		} else {
			column++
		}
	}
	return line, column
}

// expression is the path to the value that is being decoded.
func (d *decoder) expression() string {
	return Expression(func(yield func(string, int) bool) {
		for _, s := range d.path {
			if !yield(s.name, s.index) {
				return
			}
		}
	})
}

func (d *decoder) push(name string) {
	if d.path == nil {
		d.path = d.pathed[:0]
	}
	d.path = append(d.path, step{name, -1})
}

func (d *decoder) pop() { d.path = d.path[:len(d.path)-1] }

func (d *decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (d *decoder) next() byte {
	for i := d.pos; i < len(d.data); i++ {
		switch c := d.data[i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			d.pos = i
			return c
		}
	}
	d.pos = len(d.data)
	return 0
}

func (d *decoder) enter() bool {
	d.depth++
	if d.depth > maxDepth {
		d.syntax("nesting deeper than %d levels", maxDepth)
		return false
	}
	d.pos++
	return true
}

// resource reads an object with the element resourceType.
func (d *decoder) resource() Resource {
	if d.next() != '{' {
		switch {
		case d.pos == len(d.data):
			d.syntax("expected a resource, the body is empty or ends")
		case bytes.HasPrefix(d.data, []byte("\ufeff")):
			d.syntax("expected a resource, a JSON object, found a byte order mark, which JSON does not have (RFC 8259)")
		default:
			d.syntax("expected a resource, a JSON object")
		}
		return nil
	}
	start := d.pos
	typ, ok := d.resourceType()
	if d.err != nil {
		return nil
	}
	if !ok {
		d.syntax("resourceType is missing")
		return nil
	}
	proto, ok := d.model.Resources[typ]
	if !ok {
		d.syntax("resourceType %q is not a resource type of FHIR R4", clip(typ))
		return nil
	}
	t := proto.Type()
	r := t.New().(Resource)
	outer := d.path
	if len(d.path) == 0 {
		d.push(typ)
	}
	d.object(t, dataOf(r))
	d.path = outer
	if d.err != nil {
		return nil
	}
	r.Header().Raw = d.data[start:d.pos:d.pos]
	return r
}

func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// resourceType looks ahead for the property of that name in the object at pos
// and leaves pos where it is. It nearly always comes first.
func (d *decoder) resourceType() (string, bool) {
	saved, depth := d.pos, d.depth
	defer func() {
		if d.err == nil {
			d.pos, d.depth = saved, depth
		}
	}()
	d.pos++
	for c := d.next(); c == '"'; c = d.next() {
		key, _ := d.str()
		if d.next() != ':' {
			d.syntax("expected ':'")
			return "", false
		}
		d.pos++
		if key == "resourceType" {
			if d.next() != '"' {
				d.syntax("resourceType must be a string")
				return "", false
			}
			s, _ := d.str()
			return s, d.err == nil
		}
		d.skip()
		if d.next() != ',' {
			break
		}
		d.pos++
	}
	return "", false
}

// seen is a set of property numbers.
type seen [5]uint64

func (s *seen) add(i int) (already bool) {
	w, b := i>>6, uint64(1)<<(i&63)
	already = s[w]&b != 0
	s[w] |= b
	return already
}

// object reads the object at pos into the struct of type t at p.
func (d *decoder) object(t *Type, p unsafe.Pointer) {
	if !d.enter() {
		return
	}
	names := t.props()
	var got seen
	var open map[string]bool // property names seen of an open choice
	guess, n := 0, 0
	sawType := false
	gaps := false
	for c := d.next(); ; c = d.next() {
		if c == '}' && n == 0 {
			break
		}
		if c != '"' {
			d.syntax("expected a property name")
			return
		}
		at := d.pos
		key, escaped := d.str()
		if escaped {
			// Splice and every other reader of raw bytes may compare names as they stand.
			d.syntax("an escape in a property name")
			return
		}
		if d.next() != ':' {
			d.syntax("expected ':' after %q", clip(key))
			return
		}
		d.pos++
		n++
		d.next()
		var pr *prop
		var made prop
		if guess < len(names.props) && names.props[guess].name == key {
			pr = &names.props[guess]
		} else if i, ok := names.byName[key]; ok {
			pr, guess = &names.props[i], i
		}
		switch {
		case pr != nil:
			if got.add(guess) {
				d.push(key)
				d.syntax("property %q is repeated", clip(key))
				return
			}
			guess++
		case t.Kind == ResourceKind && key == "resourceType":
			if sawType {
				d.syntax("property %q is repeated", key)
				return
			}
			sawType = true
			d.skip()
		default:
			var ok bool
			if made, ok = d.openChoice(t, key); ok {
				if open[key] {
					d.syntax("property %q is repeated", clip(key))
					return
				}
				if open == nil {
					open = make(map[string]bool)
				}
				open[key] = true
				pr = &made
			} else {
				d.note(at, "unknown element %q in %s", clip(key), t.Name)
				d.skip()
			}
		}
		if pr != nil {
			d.push(pr.field.Name)
			d.value(pr, p, &gaps)
			if d.err != nil {
				return
			}
			d.pop()
		}
		c = d.next()
		if c == ',' {
			d.pos++
			if d.next() == '}' {
				d.syntax("a comma before '}'")
				return
			}
			continue
		}
		if c != '}' {
			d.syntax("expected ',' or '}'")
			return
		}
		break
	}
	if n == 0 {
		d.issue(d.pos, "an object must have content")
	}
	d.pos++
	d.depth--
	if gaps {
		d.checkGaps(t, p)
	}
}

// openChoice finds the datatype that a property of an open choice names:
// valueQuantity, _valueString.
func (d *decoder) openChoice(t *Type, key string) (prop, bool) {
	name, extra := strings.CutPrefix(key, "_")
	for i := range t.Fields {
		f := &t.Fields[i]
		if !f.Open {
			continue
		}
		suffix, ok := strings.CutPrefix(name, f.Name)
		if !ok || suffix == "" || suffix[0] < 'A' || suffix[0] > 'Z' {
			continue
		}
		e, ok := d.model.Datatypes[suffix]
		if !ok {
			e, ok = d.model.Datatypes[strings.ToLower(suffix[:1])+suffix[1:]]
		}
		if !ok || (extra && !e.Type().Kind.Primitive()) {
			continue
		}
		return prop{name: key, field: f, choice: e, extra: extra}, true
	}
	return prop{}, false
}

// value reads the value of a property into the field of the struct at p.
func (d *decoder) value(pr *prop, p unsafe.Pointer, gaps *bool) {
	f := pr.field
	p = unsafe.Add(p, f.Offset)
	at := d.pos
	c := d.data[min(d.pos, len(d.data)-1)]
	switch {
	case f.AnyResource && f.Repeats():
		d.array(c, func() {
			if d.next() != '{' {
				d.wrong("a resource")
				return
			}
			if r := d.resource(); r != nil {
				s := (*[]Resource)(p)
				*s = append(*s, r)
			}
		})
	case f.AnyResource:
		if c != '{' {
			d.wrong("a resource")
			return
		}
		if r := d.resource(); r != nil {
			*(*Resource)(p) = r
		}
	case pr.choice != nil:
		slot := (*Element)(p)
		t := pr.choice.Type()
		if *slot == nil {
			*slot = t.New()
		} else if (*slot).Type() != t || !t.Kind.Primitive() {
			d.issue(at, "%s[x] has more than one value", f.Name)
			d.skip()
			return
		}
		if pr.extra {
			d.extra((*Primitive)(dataOf(*slot)))
		} else {
			d.single(t, dataOf(*slot), c)
		}
	case f.Repeats():
		d.repeated(pr, p, c, gaps)
	default:
		t := f.Of.Type()
		switch {
		case pr.extra:
			d.extra((*Primitive)(p))
		case f.Offset == 0 && t.Kind == IDKind:
			// A logical id is judged where it counts: create ignores it, update
			// compares it with the URL. R4's own package has one of 67 characters.
			d.primitive(StringKind, (*Primitive)(p), c)
		case t.Kind.Primitive():
			d.primitive(t.Kind, (*Primitive)(p), c)
		case c == '{':
			e := t.New()
			*(*unsafe.Pointer)(p) = dataOf(e)
			d.object(t, dataOf(e))
		default:
			d.wrong("an object")
		}
	}
}

func (d *decoder) single(t *Type, p unsafe.Pointer, c byte) {
	switch {
	case t.Kind.Primitive():
		d.primitive(t.Kind, (*Primitive)(p), c)
	case c == '{':
		d.object(t, p)
	default:
		d.wrong("an object")
	}
}

// array reads an array and calls item at each of its values.
func (d *decoder) array(c byte, item func()) {
	if c != '[' {
		d.wrong("an array")
		return
	}
	if !d.enter() {
		return
	}
	top := len(d.path) - 1
	if d.next() == ']' {
		d.issue(d.pos, "an array must not be empty")
		d.pos++
		d.depth--
		return
	}
	for i := 0; ; i++ {
		d.path[top].index = i
		d.next()
		if len(d.issues) < maxIssues {
			item()
		} else {
			d.skip() // it is refused, and need not be kept
		}
		if d.err != nil {
			return
		}
		c := d.next()
		if c == ',' {
			d.pos++
			continue
		}
		if c != ']' {
			d.syntax("expected ',' or ']'")
			return
		}
		break
	}
	d.path[top].index = -1
	d.pos++
	d.depth--
}

func (d *decoder) repeated(pr *prop, p unsafe.Pointer, c byte, gaps *bool) {
	t := pr.field.Of.Type()
	s := (*sliceHeader)(p)
	i := 0
	d.array(c, func() {
		// A primitive may be there already: the array of its extras came first.
		var q unsafe.Pointer
		if i < s.len {
			q = unsafe.Add(s.data, uintptr(i)*t.Size)
		} else {
			q = t.Append(p)
		}
		i++
		c := d.next()
		switch {
		case t.Kind.Primitive() && c == 'n':
			d.literal("null")
			*gaps = true
		case pr.extra:
			d.extra((*Primitive)(q))
		case t.Kind.Primitive():
			d.primitive(t.Kind, (*Primitive)(q), c)
		case c == '{':
			d.object(t, q)
		default:
			d.wrong("an object")
		}
	})
	if m := pr.field.Max; m != Many && i > m {
		d.issue(d.pos, "%d values, at most %d are allowed", i, m)
	}
}

// checkGaps looks for array places that are null in both arrays of a primitive.
func (d *decoder) checkGaps(t *Type, p unsafe.Pointer) {
	for i := range t.Fields {
		f := &t.Fields[i]
		if f.Of == nil || !f.Repeats() || !f.Of.Type().Kind.Primitive() {
			continue
		}
		size := f.Of.Type().Size
		s := (*sliceHeader)(unsafe.Add(p, f.Offset))
		for j := range s.len {
			if !(*Primitive)(unsafe.Add(s.data, uintptr(j)*size)).Present() {
				d.push(f.Name)
				d.path[len(d.path)-1].index = j
				d.issue(d.pos, "null stands for a value that has extensions, and there are none")
				d.pop()
			}
		}
	}
}

// extra reads the object with id and extensions of a primitive.
func (d *decoder) extra(p *Primitive) {
	if d.next() != '{' {
		d.wrong("an object with id or extension")
		return
	}
	p.Extra = new(Extra)
	d.object(&typeExtra, unsafe.Pointer(p.Extra))
}

var typeExtra = Type{
	Name: "Element", Kind: Complex,
	Fields: []Field{
		{Name: "id", Offset: unsafe.Offsetof(Extra{}.ID), Of: (*SystemString)(nil), Max: 1},
		{Name: "extension", Offset: unsafe.Offsetof(Extra{}.Extension), Of: (*Extension)(nil), Max: Many},
	},
}

// wrong notes that the value at pos has the wrong JSON type and skips it.
func (d *decoder) wrong(want string) {
	got := "the end of the body"
	if d.pos < len(d.data) {
		switch c := d.data[d.pos]; {
		case c == '{':
			got = "an object"
		case c == '[':
			got = "an array"
		case c == '"':
			got = "a string"
		case c == 't' || c == 'f':
			got = "a boolean"
		case c == 'n':
			got = "null"
		case c == '-' || (c >= '0' && c <= '9'):
			got = "a number"
		default:
			d.syntax("expected %s", want)
			return
		}
	}
	d.issue(d.pos, "expected %s, found %s", want, got)
	d.skip()
}

// primitive reads a primitive value and checks its format.
func (d *decoder) primitive(k Kind, p *Primitive, c byte) {
	at := d.pos
	switch {
	case k == JSONKind:
		if c != '{' {
			d.wrong("an object")
			return
		}
		d.skip()
		if d.err == nil {
			p.Text = unsafe.String(&d.data[at], d.pos-at)
		}
		return
	case k == BooleanKind:
		switch {
		case c == 't' && d.literal("true"):
			p.Text = "true"
		case c == 'f' && d.literal("false"):
			p.Text = "false"
		default:
			d.wrong("true or false")
		}
		return
	case k.Number():
		if c != '-' && (c < '0' || c > '9') {
			d.wrong("a number")
			return
		}
		p.Text = d.number()
	default:
		if c != '"' {
			d.wrong("a string")
			return
		}
		var escaped bool
		p.Text, escaped = d.str()
		if d.err != nil {
			return
		}
		if p.Text == "" {
			d.issue(at, "a string must not be empty")
			return
		}
		if len(p.Text) > maxString && k != Base64BinaryKind && k != XHTMLKind {
			d.issue(at, "a string of %d bytes, at most %d are allowed", len(p.Text), maxString)
			return
		}
		if escaped && hasControl(p.Text) {
			d.issue(at, "control characters are not allowed in a string")
			return
		}
	}
	if d.err == nil && !k.Valid(p.Text) {
		d.issue(at, "%q is not a valid %s", clip(p.Text), primitiveNames[k])
		p.Text = ""
	}
}

func hasControl(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return true
		}
	}
	return false
}

func (d *decoder) literal(word string) bool {
	end := d.pos + len(word)
	if end > len(d.data) || string(d.data[d.pos:end]) != word {
		d.syntax("expected %s", word)
		return false
	}
	d.pos = end
	return true
}

// number reads a JSON number and returns it as written.
func (d *decoder) number() string {
	data, start := d.data, d.pos
	i := start
	digits := func() bool {
		from := i
		for i < len(data) && data[i] >= '0' && data[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(data) && data[i] == '-' {
		i++
	}
	zero := i < len(data) && data[i] == '0'
	whole := i
	ok := digits() && (!zero || i == whole+1)
	if ok && i < len(data) && data[i] == '.' {
		i++
		ok = digits()
	}
	if ok && i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		ok = digits()
	}
	if !ok {
		d.pos = i
		d.syntax("malformed number")
		return ""
	}
	d.pos = i
	if i-start > maxDigits {
		d.issue(start, "a number of %d characters, at most %d are allowed", i-start, maxDigits)
		return "0"
	}
	return unsafe.String(&data[start], i-start)
}

// str reads the string at pos. The result is a part of data unless the string
// has escapes.
func (d *decoder) str() (s string, escaped bool) {
	data := d.data
	start := d.pos + 1
	for i := start; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			d.pos = i + 1
			if i == start {
				return "", false
			}
			return unsafe.String(&data[start], i-start), false
		case c == '\\':
			return d.unescape(start, i), true
		case c < ' ':
			d.pos = i
			d.syntax("a control character in a string")
			return "", false
		}
	}
	d.pos = len(data)
	d.syntax("the body ends inside a string")
	return "", false
}

func (d *decoder) unescape(start, i int) string {
	data := d.data
	b := append(make([]byte, 0, i-start+32), data[start:i]...)
	for i < len(data) {
		c := data[i]
		switch {
		case c == '"':
			d.pos = i + 1
			return unsafe.String(unsafe.SliceData(b), len(b))
		case c < ' ':
			d.pos = i
			d.syntax("a control character in a string")
			return ""
		case c != '\\':
			b = append(b, c)
			i++
			continue
		}
		if i+1 >= len(data) {
			break
		}
		i += 2
		switch e := data[i-1]; e {
		case '"', '\\', '/':
			b = append(b, e)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, ok := hex4(data, i)
			i += 4
			if ok && utf16.IsSurrogate(r) {
				low, lowOK := rune(0), false
				if i+1 < len(data) && data[i] == '\\' && data[i+1] == 'u' {
					low, lowOK = hex4(data, i+2)
				}
				r = utf16.DecodeRune(r, low)
				ok = lowOK && r != utf8.RuneError
				i += 6
			}
			if !ok || r == 0 {
				d.pos = min(i, len(data))
				d.syntax("an escape that is not a character (NUL and lone surrogates are none)")
				return ""
			}
			b = utf8.AppendRune(b, r)
		default:
			d.pos = i
			d.syntax("unknown escape")
			return ""
		}
	}
	d.pos = len(data)
	d.syntax("the body ends inside a string")
	return ""
}

func hex4(data []byte, i int) (rune, bool) {
	if i+4 > len(data) {
		return 0, false
	}
	var r rune
	for _, c := range data[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// skip reads past any JSON value.
func (d *decoder) skip() {
	switch c := d.next(); {
	case c == '"':
		d.str()
	case c == 't':
		d.literal("true")
	case c == 'f':
		d.literal("false")
	case c == 'n':
		d.literal("null")
	case c == '-' || (c >= '0' && c <= '9'):
		d.number()
	case c == '{' || c == '[':
		d.skipAll(c)
	case d.pos == len(d.data):
		d.syntax("the body ends where a value is expected")
	default:
		d.syntax("expected a value")
	}
}

func (d *decoder) skipAll(open byte) {
	if !d.enter() {
		return
	}
	closing := open + 2 // '{' and '}', '[' and ']' are two apart
	if d.next() == closing {
		d.pos++
		d.depth--
		return
	}
	for d.err == nil {
		if open == '{' {
			if d.next() != '"' {
				d.syntax("expected a property name")
				return
			}
			d.str()
			if d.next() != ':' {
				d.syntax("expected ':'")
				return
			}
			d.pos++
		}
		d.skip()
		c := d.next()
		if c == ',' {
			d.pos++
			continue
		}
		if c != closing {
			d.syntax("expected ',' or '%c'", closing)
			return
		}
		d.pos++
		d.depth--
		return
	}
}
