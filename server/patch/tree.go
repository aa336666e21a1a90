package patch

import "bytes"

// jsonTree is a JSON value that can be edited and keeps the order of properties
// and the lexeme of everything that is not edited.
type jsonTree struct {
	kind  byte   // '{', '[' or 0 for a scalar
	raw   []byte // of a scalar, as written
	names []string
	items []*jsonTree
}

// jsonParser reads JSON that has been checked before.
type jsonParser struct {
	data []byte
	pos  int
}

func parseTree(data []byte) *jsonTree {
	p := jsonParser{data: data}
	return p.value()
}

func (p *jsonParser) skip() byte {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\n', '\r', ',', ':':
			p.pos++
		default:
			return p.data[p.pos]
		}
	}
	return 0
}

func (p *jsonParser) value() *jsonTree {
	switch c := p.skip(); c {
	case '{':
		t := &jsonTree{kind: '{'}
		p.pos++
		for p.skip() == '"' {
			name := p.str()
			t.names = append(t.names, string(name[1:len(name)-1]))
			t.items = append(t.items, p.value())
		}
		p.pos++
		return t
	case '[':
		t := &jsonTree{kind: '['}
		p.pos++
		for c := p.skip(); c != ']' && c != 0; c = p.skip() {
			t.items = append(t.items, p.value())
		}
		p.pos++
		return t
	case '"':
		return &jsonTree{raw: p.str()}
	}
	start := p.pos
	for p.pos < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:]}"), p.data[p.pos]) < 0 {
		p.pos++
	}
	return &jsonTree{raw: p.data[start:p.pos]}
}

func (p *jsonParser) str() []byte {
	start := p.pos
	for p.pos++; p.pos < len(p.data) && p.data[p.pos] != '"'; p.pos++ {
		if p.data[p.pos] == '\\' {
			p.pos++
		}
	}
	p.pos = min(p.pos+1, len(p.data))
	return p.data[start:p.pos]
}

// append writes the tree as compact JSON.
func (t *jsonTree) append(b []byte) []byte {
	switch t.kind {
	case '{':
		b = append(b, '{')
		for i, item := range t.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = append(b, t.names[i]...)
			b = append(b, '"', ':')
			b = item.append(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i, item := range t.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.append(b)
		}
		return append(b, ']')
	}
	return append(b, t.raw...)
}

func (t *jsonTree) index(name string) int {
	for i, n := range t.names {
		if n == name {
			return i
		}
	}
	return -1
}

func (t *jsonTree) get(name string) *jsonTree {
	if t == nil {
		return nil
	}
	if i := t.index(name); i >= 0 {
		return t.items[i]
	}
	return nil
}

// set replaces a property or adds it behind the others; nil removes it.
func (t *jsonTree) set(name string, value *jsonTree) {
	i := t.index(name)
	switch {
	case value == nil && i < 0:
	case value == nil:
		t.names = append(t.names[:i:i], t.names[i+1:]...)
		t.items = append(t.items[:i:i], t.items[i+1:]...)
	case i >= 0:
		t.items[i] = value
	default:
		t.names = append(t.names, name)
		t.items = append(t.items, value)
	}
}

func nullTree() *jsonTree      { return &jsonTree{raw: []byte("null")} }
func (t *jsonTree) null() bool { return t.kind == 0 && string(t.raw) == "null" }
func arrayTree(n int) *jsonTree {
	t := &jsonTree{kind: '['}
	for range n {
		t.items = append(t.items, nullTree())
	}
	return t
}

// empty reports whether an array holds nothing but nulls.
func (t *jsonTree) empty() bool {
	for _, item := range t.items {
		if !item.null() {
			return false
		}
	}
	return true
}
