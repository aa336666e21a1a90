package sandbox

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/dop251/goja"
)

// parse makes a value of JSON, as JSON.parse does. A __proto__ in it is a property like
// others.
//
// JSON.parse of goja takes most of the time of a short script: jsonReader does the same for what
// is common, in a fourth of it, and leaves the rest to JSON.parse.
func (r *run) parse(text []byte) (goja.Value, error) {
	if len(text) == 0 {
		return goja.Undefined(), nil
	}
	p := jsonReader{vm: r.vm, text: text}
	if v, ok := p.value(); ok && p.space() == 0 && p.at == len(text) {
		return v, nil
	}
	return r.parseJSON(goja.Undefined(), r.vm.ToValue(string(text)))
}

// parseResource is parse of a resource, which is known to be JSON: a member of more than some
// bytes is read when the script first asks for it. Most ask for few.
func (r *run) parseResource(text []byte) (goja.Value, error) {
	p := jsonReader{vm: r.vm, text: text, later: r.later}
	if v, ok := p.value(); ok && p.space() == 0 && p.at == len(text) {
		return v, nil
	}
	return r.parse(text)
}

// later defines a member of o whose JSON is read when it is first asked for. Until then it
// is an accessor, which nobody sees who does not look at property descriptors. Of a frozen or
// sealed object it stays one, and to assign to it is a TypeError.
func (r *run) later(o *goja.Object, name string, text []byte) error {
	var value goja.Value
	get := func(goja.FunctionCall) goja.Value {
		if value == nil {
			v, err := r.parse(text)
			if err != nil {
				panic(err)
			}
			value = v
			_ = define(o, name, v) // a frozen object keeps the accessor
		}
		return value
	}
	set := func(c goja.FunctionCall) goja.Value {
		if define(c.This.ToObject(r.vm), name, c.Argument(0)) != nil {
			panic(r.vm.NewTypeError("%s is a member of a frozen or sealed object", name))
		}
		return goja.Undefined()
	}
	return o.DefineAccessorProperty(name, r.vm.ToValue(get), r.vm.ToValue(set), goja.FLAG_TRUE, goja.FLAG_TRUE)
}

// define gives an object a property as JSON.parse does.
func define(o *goja.Object, name string, v goja.Value) error {
	return o.DefineDataProperty(name, v, goja.FLAG_TRUE, goja.FLAG_TRUE, goja.FLAG_TRUE)
}

// jsonReader reads JSON. Its functions report success; they fail on text that is no JSON, and on rare JSON.
type jsonReader struct {
	vm    *goja.Runtime
	text  []byte
	at    int
	depth int
	// later, where it is set, defines the large members of the outermost object.
	later func(o *goja.Object, name string, text []byte) error
}

// readLater is the size from which a member is read later, in bytes: below it the accessor
// takes as long.
const readLater = 160

// maxDepth is the largest nesting depth of a jsonReader.
const maxDepth = 200

// space skips white space and returns the byte behind it, 0 at the end.
func (p *jsonReader) space() byte {
	for ; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (p *jsonReader) value() (goja.Value, bool) {
	switch c := p.space(); c {
	case '{':
		return p.object()
	case '[':
		return p.array()
	case '"':
		s, ok := p.string()
		return p.vm.ToValue(s), ok
	case 't':
		return p.vm.ToValue(true), p.word("true")
	case 'f':
		return p.vm.ToValue(false), p.word("false")
	case 'n':
		return goja.Null(), p.word("null")
	default:
		return p.number()
	}
}

func (p *jsonReader) object() (goja.Value, bool) {
	if p.depth++; p.depth > maxDepth {
		return nil, false
	}
	o := p.vm.NewObject()
	p.at++
	for first := true; ; first = false {
		switch c := p.space(); {
		case c == '}' && first:
			p.at++
			p.depth--
			return o, true
		case c != '"':
			return nil, false
		}
		name, ok := p.string()
		if !ok || p.space() != ':' {
			return nil, false
		}
		p.at++
		if part := p.large(); part != nil {
			if p.later(o, name, part) != nil {
				return nil, false
			}
		} else if v, ok := p.value(); !ok || define(o, name, v) != nil {
			return nil, false
		}
		c := p.space()
		p.at++
		switch c {
		case ',':
		case '}':
			p.depth--
			return o, true
		default:
			return nil, false
		}
	}
}

// large steps over an object or array that is to be read later, and returns it; nil for any
// other value.
func (p *jsonReader) large() []byte {
	if c := p.space(); p.later == nil || p.depth > 1 || c != '{' && c != '[' {
		return nil
	}
	start, depth, inString := p.at, 0, false
	for at := start; at < len(p.text); at++ {
		switch c := p.text[at]; {
		case inString:
			switch c {
			case '\\':
				at++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth > 0 {
				continue
			}
			if at+1-start < readLater {
				return nil
			}
			p.at = at + 1
			return p.text[start:p.at]
		}
	}
	return nil
}

func (p *jsonReader) array() (goja.Value, bool) {
	if p.depth++; p.depth > maxDepth {
		return nil, false
	}
	var items []any
	p.at++
	for {
		if c := p.space(); c == ']' && items == nil {
			break
		}
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		items = append(items, v)
		c := p.space()
		if c == ']' {
			break
		}
		if c != ',' {
			return nil, false
		}
		p.at++
	}
	p.at++
	p.depth--
	return p.vm.NewArray(items...), true
}

// string reads a string from its first quotation mark on.
func (p *jsonReader) string() (string, bool) {
	start := p.at
	plain := true
	for p.at++; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; {
		case c == '\\':
			plain = false
			p.at++
		case c < ' ':
			return "", false
		case c == '"':
			p.at++
			if s := p.text[start+1 : p.at-1]; plain {
				return string(s), utf8.Valid(s)
			}
			var s string
			err := json.Unmarshal(p.text[start:p.at], &s)
			return s, err == nil
		}
	}
	return "", false
}

func (p *jsonReader) number() (goja.Value, bool) {
	start := p.at
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; (c < '0' || c > '9') && c != '-' && c != '.' && c != 'e' && c != 'E' && c != '+' {
			break
		}
	}
	text := p.text[start:p.at]
	if !json.Valid(text) { // strconv reads more than JSON has
		return nil, false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	return p.vm.ToValue(f), err == nil
}

func (p *jsonReader) word(word string) bool {
	if len(p.text)-p.at < len(word) || string(p.text[p.at:p.at+len(word)]) != word {
		return false
	}
	p.at += len(word)
	return true
}
