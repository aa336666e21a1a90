package fhir

import "unsafe"

// Encode appends e to dst as compact JSON and returns it: elements in definition
// order, decimals and dates as they were read, strings with the escapes that
// JSON demands and no others. Encoding allocates nothing when dst is large
// enough. Spec: https://hl7.org/fhir/R4/json.html.
func Encode(dst []byte, e Element) []byte {
	n := NodeOf(e)
	if n.T == nil {
		return append(dst, "null"...)
	}
	return n.encode(dst)
}

func (n Node) encode(dst []byte) []byte {
	if n.T.Kind.Primitive() {
		return appendPrimitive(dst, n.T.Kind, (*Primitive)(n.p).Text)
	}
	dst = append(dst, '{')
	start := len(dst)
	if n.T.Kind == ResourceKind {
		dst = append(dst, `"resourceType":"`...)
		dst = append(dst, n.T.Name...)
		dst = append(dst, '"')
	}
	for i := range n.T.Fields {
		dst = n.encodeField(dst, start, &n.T.Fields[i])
	}
	return append(dst, '}')
}

// property starts a property of the object whose content begins at start.
func property(dst []byte, start int, prefix, name, suffix string) []byte {
	if len(dst) > start {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	dst = append(dst, prefix...)
	dst = append(dst, name...)
	if suffix != "" {
		c := suffix[0]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		dst = append(append(dst, c), suffix[1:]...)
	}
	return append(dst, '"', ':')
}

func (n Node) encodeField(dst []byte, start int, f *Field) []byte {
	p := unsafe.Add(n.p, f.Offset)
	switch {
	case f.AnyResource && f.Repeats():
		s := *(*[]Resource)(p)
		if len(s) == 0 {
			return dst
		}
		dst = append(property(dst, start, "", f.Name, ""), '[')
		for i, r := range s {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = Encode(dst, r)
		}
		return append(dst, ']')
	case f.AnyResource:
		if r := *(*Resource)(p); r != nil {
			dst = Encode(property(dst, start, "", f.Name, ""), r)
		}
		return dst
	case f.Choice():
		e := *(*Element)(p)
		if e == nil {
			return dst
		}
		return NodeOf(e).encodeValue(dst, start, f.Name, e.Type().Name)
	case f.Repeats():
		return encodeRepeated(dst, start, f, (*sliceHeader)(p))
	}
	t := f.Of.Type()
	if t.Kind.Primitive() {
		return Node{t, p}.encodeValue(dst, start, f.Name, "")
	}
	if q := *(*unsafe.Pointer)(p); q != nil {
		return Node{t, q}.encodeValue(dst, start, f.Name, "")
	}
	return dst
}

// encodeValue writes the property or, for a primitive, the pair of properties
// that holds n.
func (n Node) encodeValue(dst []byte, start int, name, suffix string) []byte {
	if !n.T.Kind.Primitive() {
		return n.encode(property(dst, start, "", name, suffix))
	}
	v := (*Primitive)(n.p)
	if v.Text != "" {
		dst = appendPrimitive(property(dst, start, "", name, suffix), n.T.Kind, v.Text)
	}
	if v.Extra != nil {
		dst = v.Extra.encode(property(dst, start, "_", name, suffix))
	}
	return dst
}

func encodeRepeated(dst []byte, start int, f *Field, s *sliceHeader) []byte {
	if s.len == 0 {
		return dst
	}
	t := f.Of.Type()
	at := func(i int) Node { return Node{t, unsafe.Add(s.data, uintptr(i)*t.Size)} }
	values, extras := true, false
	if t.Kind.Primitive() {
		values = false
		for i := range s.len {
			v := (*Primitive)(at(i).p)
			values = values || v.Text != ""
			extras = extras || v.Extra != nil
		}
	}
	if values {
		dst = append(property(dst, start, "", f.Name, ""), '[')
		for i := range s.len {
			if i > 0 {
				dst = append(dst, ',')
			}
			if n := at(i); t.Kind.Primitive() && n.Text() == "" {
				dst = append(dst, "null"...)
			} else {
				dst = n.encode(dst)
			}
		}
		dst = append(dst, ']')
	}
	if extras {
		dst = append(property(dst, start, "_", f.Name, ""), '[')
		for i := range s.len {
			if i > 0 {
				dst = append(dst, ',')
			}
			if x := at(i).Extra(); x == nil {
				dst = append(dst, "null"...)
			} else {
				dst = x.encode(dst)
			}
		}
		dst = append(dst, ']')
	}
	return dst
}

func (x *Extra) encode(dst []byte) []byte { return Node{&typeExtra, unsafe.Pointer(x)}.encode(dst) }

func appendPrimitive(dst []byte, k Kind, text string) []byte {
	if k == BooleanKind || k == JSONKind || k.Number() {
		return append(dst, text...)
	}
	return AppendString(dst, text)
}

// AppendString appends parts as one JSON string with its quotes.
func AppendString(dst []byte, parts ...string) []byte {
	dst = append(dst, '"')
	for _, s := range parts {
		dst = appendEscaped(dst, s)
	}
	return append(dst, '"')
}

const hexDigits = "0123456789abcdef"

func appendEscaped(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, s[from:]...)
}
