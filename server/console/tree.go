package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// node is a JSON value with the order of its members and its place in the text.
type node struct {
	name     string // of the member, "" of an item and of the root
	kind     byte   // { [ or v
	text     string // of a value, as it is written; of a string without quotes
	isString bool
	children []*node
	line     int // of the value in the text, from 1
}

// maxNodes is the largest number of JSON values of a resource that a page shows.
const maxNodes = 200_000

// parseTree reads a JSON text.
func parseTree(text []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	count, line, at := 0, 1, int64(0)
	here := func() int {
		next := d.InputOffset()
		line += bytes.Count(text[at:next], []byte{'\n'})
		at = next
		return line
	}
	var read func(name string) (*node, error)
	read = func(name string) (*node, error) {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		if count++; count > maxNodes {
			return nil, errors.New("the resource has too many elements")
		}
		n := &node{name: name, kind: 'v', line: here()}
		switch t := t.(type) {
		case json.Delim:
			n.kind = byte(t)
			for d.More() {
				key := ""
				if t == '{' {
					k, err := d.Token()
					if err != nil {
						return nil, err
					}
					key, _ = k.(string)
				}
				child, err := read(key)
				if err != nil {
					return nil, err
				}
				n.children = append(n.children, child)
			}
			if _, err := d.Token(); err != nil {
				return nil, err
			}
		case string:
			n.text, n.isString = t, true
		case json.Number:
			n.text = t.String()
		case bool:
			n.text = strconv.FormatBool(t)
		case nil:
			n.text = "null"
		}
		return n, nil
	}
	root, err := read("")
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return root, nil
}

// get returns a member, nil where there is none.
func (n *node) get(name string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// str returns the text of a value below n, "" where there is none. A list has its first item.
func (n *node) str(path ...string) string {
	for _, name := range path {
		n = n.first().get(name)
	}
	if n = n.first(); n == nil || n.kind != 'v' {
		return ""
	}
	return n.text
}

// first is the first item of a list, and n itself where it is no list.
func (n *node) first() *node {
	for n != nil && n.kind == '[' {
		if len(n.children) == 0 {
			return nil
		}
		n = n.children[0]
	}
	return n
}

// items are the items of a list; of one value it is that.
func (n *node) items() []*node {
	switch {
	case n == nil:
		return nil
	case n.kind == '[':
		return n.children
	}
	return []*node{n}
}

// element is a value with its FHIRPath.
type element struct {
	Path string
	Node *node
}

// flatten lists the values of a resource by their FHIRPath: Patient.name[0].given[1].
func (n *node) flatten(root string) []element {
	var out []element
	var walk func(path string, n *node)
	walk = func(path string, n *node) {
		switch n.kind {
		case '{':
			for _, c := range n.children {
				name, primitive := strings.CutPrefix(c.name, "_")
				if path == root && c.name == "resourceType" {
					continue
				}
				if primitive {
					walk(path+"."+name, c) // id and extension of a primitive value
					continue
				}
				walk(path+"."+c.name, c)
			}
		case '[':
			for i, c := range n.children {
				walk(fmt.Sprintf("%s[%d]", path, i), c)
			}
		default:
			if n.text != "null" || n.isString {
				out = append(out, element{path, n})
			}
		}
	}
	walk(root, n)
	return out
}

// lineOf is the line of the element that a FHIRPath or a JSON path of an issue names, or of the nearest element around it.
func (n *node) lineOf(expression string) int {
	at := n
	parts := strings.Split(expression, ".")
	for _, part := range parts[1:] {
		name, rest, _ := strings.Cut(part, "[")
		next := at.get(name)
		if next == nil {
			for _, c := range at.children { // value[x] is written without the type
				if strings.HasPrefix(c.name, name) && len(c.name) > len(name) && c.name[len(name)] >= 'A' && c.name[len(name)] <= 'Z' {
					next = c
				}
			}
		}
		if next == nil {
			break
		}
		at = next
		if index, err := strconv.Atoi(strings.TrimSuffix(rest, "]")); err == nil && at.kind == '[' && index < len(at.children) {
			at = at.children[index]
		} else if at.kind == '[' && len(at.children) > 0 {
			at = at.children[0]
		}
	}
	return at.line
}

// indentJSON writes a JSON text with a member a line. Other texts stay the same.
func indentJSON(text []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return b.String()
}
