package patch

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// FHIRPath applies a FHIRPath Patch to a resource and returns the patched JSON,
// compact, with properties in their order and everything that is not touched as
// it was written. parameters is a Parameters resource with one "operation" for
// each step; they are applied in order, each to the result of the one before.
// A patch without operations changes nothing.
// The result is well-formed for the model; whether it is valid is for the caller
// to check.
//
// It fails with an *outcome.Error: 400 invalid for parameters that are no patch,
// 422 for one that does not fit the resource; diagnostics name the operation by
// its position from 0. Spec: https://hl7.org/fhir/R4/fhirpatch.html.
func FHIRPath(model *fhir.Model, resource, parameters []byte) ([]byte, error) {
	params, err := fhir.Decode(model, parameters)
	if err != nil {
		return nil, err
	}
	root := fhir.NodeOf(params)
	if root.T.Name != "Parameters" {
		return nil, outcome.Invalid("a FHIRPath Patch is a Parameters resource, found %s", root.T.Name)
	}
	operations := root.AppendChild(nil, "parameter")
	if len(operations) > maxOperations {
		return nil, outcome.Invalid("the patch has %d operations, more than %d", len(operations), maxOperations)
	}
	for i, n := range operations {
		op, err := readOperation(n)
		if err != nil {
			return nil, outcome.Invalid("operation %d: %v", i, err).At(fmt.Sprintf("Parameters.parameter[%d]", i))
		}
		if resource, err = op.apply(model, resource); err != nil {
			if e, ok := outcome.From(err); ok {
				return nil, e
			}
			return nil, outcome.Unprocessable([]outcome.Issue{{
				Severity: outcome.Failure, Code: outcome.CodeInvalid,
				Diagnostics: fmt.Sprintf("operation %d (%s %s): %v", i, op.kind, clip(op.path), err),
				Expression:  fmt.Sprintf("Parameters.parameter[%d]", i),
			}})
		}
	}
	return resource, nil
}

// placePath matches a path that names a place, independent of the resource's values.
var placePath = regexp.MustCompile(`^[A-Za-z]+(\.[A-Za-z]+|\[[0-9]+\])*$`)

// FHIRPathReads names the first operation of a FHIRPath Patch whose path depends on values of the resource; ""
// if each path names a place. FHIRPath reports the faults of an invalid patch.
func FHIRPathReads(model *fhir.Model, parameters []byte) string {
	params, err := fhir.Decode(model, parameters)
	if err != nil {
		return ""
	}
	for i, n := range fhir.NodeOf(params).AppendChild(nil, "parameter") {
		if op, err := readOperation(n); err == nil && !placePath.MatchString(op.path) {
			return fmt.Sprintf("operation %d: the path %s", i, clip(op.path))
		}
	}
	return ""
}

// maxOperations is the largest number of operations of a patch. Every operation decodes the resource again or
// moves the bytes behind its place, while others wait for the resource.
const maxOperations = 1000

// maxPathSteps bounds the evaluation of one path.
const maxPathSteps = 200_000

// operation is one step of a patch. Integers are -1 where absent.
type operation struct {
	kind, path, name           string
	index, source, destination int
	value                      *patchValue
}

// patchValue is the new content, as a property of JSON: the value, its extra
// (_name) for a primitive with id or extensions, and the type for a choice.
type patchValue struct {
	typ          string // "" for a backbone element
	value, extra *jsonTree
}

func childText(n fhir.Node, name string) string {
	var buf [1]fhir.Node
	if c := n.AppendChild(buf[:0], name); len(c) == 1 {
		return c[0].Text()
	}
	return ""
}

func readOperation(n fhir.Node) (operation, error) {
	op := operation{index: -1, source: -1, destination: -1}
	if name := childText(n, "name"); name != "operation" {
		return op, fmt.Errorf("its name is %q, not operation", clip(name))
	}
	for _, p := range n.AppendChild(nil, "part") {
		name := childText(p, "name")
		integer := func(to *int) error {
			i, err := strconv.Atoi(childText(p, "value"))
			if err != nil || i < 0 {
				return fmt.Errorf("%s is a valueInteger from 0", name)
			}
			*to = i
			return nil
		}
		var err error
		switch name {
		case "type":
			op.kind = childText(p, "value")
		case "path":
			op.path = childText(p, "value")
		case "name":
			op.name = childText(p, "value")
		case "index":
			err = integer(&op.index)
		case "source":
			err = integer(&op.source)
		case "destination":
			err = integer(&op.destination)
		case "value":
			op.value, err = readValue(p)
		default:
			err = fmt.Errorf("there is no part %q; parts are type, path, name, value, index, source and destination", clip(name))
		}
		if err != nil {
			return op, err
		}
	}
	need := map[string]string{"add": "name value", "insert": "value index", "delete": "", "replace": "value", "move": "source destination"}
	list, ok := need[op.kind]
	if !ok {
		return op, fmt.Errorf("type is %q, not add, insert, delete, replace or move", clip(op.kind))
	}
	if op.path == "" {
		return op, fmt.Errorf("%s needs a path", op.kind)
	}
	has := map[string]bool{"name": op.name != "", "value": op.value != nil, "index": op.index >= 0, "source": op.source >= 0, "destination": op.destination >= 0}
	for part := range strings.FieldsSeq(list) {
		if !has[part] {
			return op, fmt.Errorf("%s needs the part %s", op.kind, part)
		}
	}
	return op, nil
}

// readValue reads value[x], resource, or parts that are the elements of a
// backbone element.
func readValue(p fhir.Node) (*patchValue, error) {
	for _, name := range []string{"value", "resource"} {
		c := p.AppendChild(nil, name)
		if len(c) == 0 {
			continue
		}
		v := &patchValue{typ: c[0].T.Name}
		if !c[0].T.Kind.Primitive() || c[0].Text() != "" {
			v.value = parseTree(fhir.Encode(nil, c[0].Element()))
		}
		if c[0].T.Kind.Primitive() && c[0].Extra() != nil {
			// The parameter's own _value[x] is the extra.
			v.extra = parseTree(fhir.Encode(nil, p.Element())).get("_value" + title(v.typ))
		}
		return v, nil
	}
	parts := p.AppendChild(nil, "part")
	if len(parts) == 0 {
		return nil, fmt.Errorf("the value is empty")
	}
	v := &patchValue{value: &jsonTree{kind: '{'}}
	for _, part := range parts {
		name := childText(part, "name")
		element, err := readValue(part)
		if err != nil {
			return nil, fmt.Errorf("value %s: %w", clip(name), err)
		}
		v.value.names = append(v.value.names, name)
		// The name tells a choice from a list only with the model: mark it.
		v.value.items = append(v.value.items, &jsonTree{kind: 'p', items: []*jsonTree{element.value, element.extra}, names: []string{element.typ}})
	}
	return v, nil
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// shape turns the marked parts of a backbone value into properties of type t.
func (v *patchValue) shape(t *fhir.Type) (*patchValue, error) {
	if v.value == nil || v.value.kind != '{' || v.typ != "" {
		return v, nil
	}
	out := &jsonTree{kind: '{'}
	for i, name := range v.value.names {
		part := v.value.items[i]
		if part.kind != 'p' {
			return v, nil
		}
		f, typ := fieldNamed(t, name)
		if f == nil {
			return nil, fmt.Errorf("%s has no element %q", t.Name, clip(name))
		}
		pv := &patchValue{typ: part.names[0], value: part.items[0], extra: part.items[1]}
		if typ != "" && pv.typ != typ {
			return nil, fmt.Errorf("%s is a %s, found %s", name, typ, pv.typ)
		}
		if f.Of != nil {
			var err error
			if pv, err = pv.shape(f.Of.Type()); err != nil {
				return nil, err
			}
		}
		key := propertyName(f, pv.typ)
		if !f.Repeats() {
			out.set(key, pv.value)
			out.set("_"+key, pv.extra)
			continue
		}
		insertItem(out, key, -1, pv)
	}
	return &patchValue{typ: v.typ, value: out}, nil
}

// fieldNamed finds an element by name; deceased, deceased[x] and deceasedBoolean
// name a choice, the last with its type.
func fieldNamed(t *fhir.Type, name string) (f *fhir.Field, typ string) {
	name = strings.TrimSuffix(name, "[x]")
	if f := t.Field(name); f != nil {
		return f, ""
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		rest, ok := strings.CutPrefix(name, f.Name)
		if !ok || rest == "" || !f.Choice() {
			continue
		}
		if f.Open {
			return f, strings.ToLower(rest[:1]) + rest[1:]
		}
		for _, c := range f.Choices {
			if title(c.Type().Name) == rest {
				return f, c.Type().Name
			}
		}
	}
	return nil, ""
}

// propertyName is the JSON name of a field that holds a value of type typ.
func propertyName(f *fhir.Field, typ string) string {
	if f.Choice() {
		return f.Name + title(typ)
	}
	return f.Name
}

// place is where an element stands: in a field of its parent, at an index where
// the field repeats.
type place struct {
	parent fhir.Node
	field  *fhir.Field
	index  int
	typ    *fhir.Type
}

// extraFields describe id and extension of a primitive.
var extraFields = func() map[string]*fhir.Field {
	t := (*fhir.Extension)(nil).Type()
	return map[string]*fhir.Field{"id": t.Field("id"), "extension": t.Field("extension")}
}()

// locate returns the places from root down to n.
func locate(root, n fhir.Node) []place {
	if root.Same(n) {
		return []place{}
	}
	try := func(f *fhir.Field, children []fhir.Node) []place {
		for i, c := range children {
			if below := locate(c, n); below != nil {
				return append([]place{{parent: root, field: f, index: i, typ: c.T}}, below...)
			}
		}
		return nil
	}
	if root.T.Kind.Primitive() {
		for name, f := range extraFields {
			if p := try(f, root.AppendChild(nil, name)); p != nil {
				return p
			}
		}
		return nil
	}
	for i := range root.T.Fields {
		f := &root.T.Fields[i]
		if p := try(f, root.AppendField(nil, f)); p != nil {
			return p
		}
	}
	return nil
}

// object returns the JSON object of the node at the end of path: for a primitive
// the one that holds its id and extensions, made where it is missing.
func object(t *jsonTree, path []place) *jsonTree {
	for _, p := range path {
		key := propertyName(p.field, p.typ.Name)
		if p.typ.Kind.Primitive() {
			key = "_" + key
		}
		next := t.get(key)
		if p.field.Repeats() {
			if next == nil {
				next = arrayTree(0)
				t.set(key, next)
			}
			for len(next.items) <= p.index {
				next.items = append(next.items, nullTree())
			}
			if next.items[p.index].null() {
				next.items[p.index] = &jsonTree{kind: '{'}
			}
			t = next.items[p.index]
			continue
		}
		if next == nil {
			next = &jsonTree{kind: '{'}
			t.set(key, next)
		}
		t = next
	}
	return t
}

// insertItem puts v into the array key of t at index, or at its end for -1, and
// keeps the parallel array of extras in step.
func insertItem(t *jsonTree, key string, index int, v *patchValue) {
	values, extras := t.get(key), t.get("_"+key)
	n := 0
	if values != nil {
		n = len(values.items)
	}
	if extras != nil {
		n = max(n, len(extras.items))
	}
	if index < 0 {
		index = n
	}
	put := func(list *jsonTree, name string, item *jsonTree) {
		if list == nil {
			if item == nil {
				return
			}
			list = arrayTree(n)
			t.set(name, list)
		}
		for len(list.items) < n {
			list.items = append(list.items, nullTree())
		}
		if item == nil {
			item = nullTree()
		}
		list.items = append(list.items[:index:index], append([]*jsonTree{item}, list.items[index:]...)...)
	}
	put(values, key, v.value)
	put(extras, "_"+key, v.extra)
}

// removeItem takes the item at index out of the array key and of its extras.
func removeItem(t *jsonTree, key string, index int) *patchValue {
	v := &patchValue{}
	take := func(name string) *jsonTree {
		list := t.get(name)
		if list == nil || index >= len(list.items) {
			return nil
		}
		item := list.items[index]
		list.items = append(list.items[:index:index], list.items[index+1:]...)
		if list.empty() {
			t.set(name, nil)
		}
		if item.null() {
			return nil
		}
		return item
	}
	v.value, v.extra = take(key), take("_"+key)
	return v
}

func (op *operation) apply(model *fhir.Model, resource []byte) ([]byte, error) {
	r, err := fhir.Decode(model, resource)
	if err != nil {
		return nil, err
	}
	root := fhir.NodeOf(r)
	tree := parseTree(resource)
	switch op.kind {
	case "add":
		err = op.add(model, root, tree)
	case "delete":
		err = op.remove(model, root, tree)
	case "replace":
		err = op.replace(model, root, tree)
	default:
		err = op.arrange(model, root, tree)
	}
	if err != nil {
		return nil, err
	}
	out := tree.append(make([]byte, 0, len(resource)+256))
	if _, err := fhir.Decode(model, out); err != nil {
		return nil, fmt.Errorf("the result is no %s: %w", root.T.Name, err)
	}
	return out, nil
}

// nodes evaluates an expression to elements of the resource.
func nodes(model *fhir.Model, e *fhirpath.Expr, root fhir.Node) ([]fhir.Node, error) {
	p, err := fhirpath.CompileExpr(e, fhirpath.Options{Model: model, Input: root.T})
	if err != nil {
		return nil, err
	}
	c, err := p.Eval(&fhirpath.Context{MaxSteps: maxPathSteps}, root)
	if err != nil {
		return nil, err
	}
	var list []fhir.Node
	for _, v := range c {
		n, ok := v.Node()
		if !ok {
			return nil, fmt.Errorf("the path gives a %s, not an element of the resource", v.TypeName())
		}
		list = append(list, n)
	}
	return list, nil
}

// one finds the single element that the path names.
func (op *operation) one(model *fhir.Model, root fhir.Node) (fhir.Node, []place, error) {
	e, err := fhirpath.Parse(op.path)
	if err != nil {
		return root, nil, err
	}
	list, err := nodes(model, e, root)
	if err != nil {
		return root, nil, err
	}
	if len(list) != 1 {
		return root, nil, fmt.Errorf("the path must name one element, it names %d", len(list))
	}
	at := locate(root, list[0])
	if at == nil {
		return root, nil, fmt.Errorf("the path leaves the resource")
	}
	return list[0], at, nil
}

func (op *operation) add(model *fhir.Model, root fhir.Node, tree *jsonTree) error {
	parent, at, err := op.one(model, root)
	if err != nil {
		return err
	}
	f, typ := fieldNamed(parent.T, op.name)
	if parent.T.Kind.Primitive() {
		f, typ = extraFields[op.name], ""
	}
	if f == nil {
		return fmt.Errorf("%s has no element %q", parent.T.Name, clip(op.name))
	}
	v, err := op.fit(f, typ)
	if err != nil {
		return err
	}
	var present []fhir.Node
	if parent.T.Kind.Primitive() {
		present = parent.AppendChild(nil, f.Name)
	} else {
		present = parent.AppendField(nil, f)
	}
	if len(present) > 0 && !f.Repeats() {
		return fmt.Errorf("%s is there already; replace it", op.name)
	}
	key := propertyName(f, v.typ)
	t := object(tree, at)
	if f.Repeats() {
		insertItem(t, key, -1, v)
		return nil
	}
	t.set(key, v.value)
	t.set("_"+key, v.extra)
	return nil
}

// fit returns the value as content of field f; typ is the type that the name of a choice requires.
func (op *operation) fit(f *fhir.Field, typ string) (*patchValue, error) {
	v := op.value
	if typ != "" && v.typ != typ {
		return nil, fmt.Errorf("%s is a %s, the value is a %s", op.name, typ, v.typ)
	}
	if f.Of != nil {
		t := f.Of.Type()
		if v.typ == "" {
			return v.shape(t)
		}
		if !t.Kind.Primitive() && t.Name != v.typ {
			return nil, fmt.Errorf("%s is a %s, the value is a %s", f.Name, t.Name, v.typ)
		}
		return v, nil
	}
	if f.Choice() && !f.Open {
		for _, c := range f.Choices {
			if c.Type().Name == v.typ {
				return v, nil
			}
		}
		return nil, fmt.Errorf("%s cannot be a %s", f.Name, v.typ)
	}
	if v.typ == "" {
		return nil, fmt.Errorf("the value of %s has no type", f.Name)
	}
	return v, nil
}

func (op *operation) remove(model *fhir.Model, root fhir.Node, tree *jsonTree) error {
	e, err := fhirpath.Parse(op.path)
	if err != nil {
		return err
	}
	list, err := nodes(model, e, root)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return nil // nothing to delete is no error
	}
	if len(list) > 1 {
		return fmt.Errorf("delete takes one element, the path names %d", len(list))
	}
	at := locate(root, list[0])
	if len(at) == 0 {
		return fmt.Errorf("the path must name an element inside the resource")
	}
	last := at[len(at)-1]
	t := object(tree, at[:len(at)-1])
	key := propertyName(last.field, last.typ.Name)
	if last.field.Repeats() {
		removeItem(t, key, last.index)
	} else {
		t.set(key, nil)
		t.set("_"+key, nil)
	}
	prune(tree, at[:len(at)-1])
	return nil
}

// prune removes the objects along path that became empty.
func prune(tree *jsonTree, path []place) {
	for n := len(path); n > 0; n-- {
		t := object(tree, path[:n])
		if len(t.items) > 0 {
			return
		}
		last := path[n-1]
		parent := object(tree, path[:n-1])
		key := propertyName(last.field, last.typ.Name)
		if last.typ.Kind.Primitive() {
			key = "_" + key
		}
		if !last.field.Repeats() {
			parent.set(key, nil)
			continue
		}
		list := parent.get(key)
		if last.typ.Kind.Primitive() {
			list.items[last.index] = nullTree()
		} else {
			list.items = append(list.items[:last.index:last.index], list.items[last.index+1:]...)
		}
		if list.empty() {
			parent.set(key, nil)
		}
	}
}

func (op *operation) replace(model *fhir.Model, root fhir.Node, tree *jsonTree) error {
	_, at, err := op.one(model, root)
	if err != nil {
		return err
	}
	if len(at) == 0 {
		return fmt.Errorf("the path must name an element inside the resource")
	}
	last := at[len(at)-1]
	v, err := op.fit(last.field, "")
	if err != nil {
		return err
	}
	t := object(tree, at[:len(at)-1])
	old, key := propertyName(last.field, last.typ.Name), propertyName(last.field, v.typ)
	if last.field.Repeats() {
		removeItemKeep(t, key, last.index, v)
		return nil
	}
	if old != key {
		if i := t.index(old); i >= 0 {
			t.names[i] = key
		}
		t.set("_"+old, nil)
	}
	t.set(key, v.value)
	t.set("_"+key, v.extra)
	return nil
}

// removeItemKeep puts v in the place of the item at index.
func removeItemKeep(t *jsonTree, key string, index int, v *patchValue) {
	put := func(name string, item *jsonTree) {
		list := t.get(name)
		if list == nil {
			if item == nil {
				return
			}
			n := 0
			if other := t.get(strings.TrimPrefix(name, "_")); other != nil {
				n = len(other.items)
			}
			list = arrayTree(max(n, index+1))
			t.set(name, list)
		}
		for len(list.items) <= index {
			list.items = append(list.items, nullTree())
		}
		if item == nil {
			item = nullTree()
		}
		list.items[index] = item
		if list.empty() {
			t.set(name, nil)
		}
	}
	put(key, v.value)
	put("_"+key, v.extra)
}

// arrange is insert and move: the path names a list.
func (op *operation) arrange(model *fhir.Model, root fhir.Node, tree *jsonTree) error {
	at, f, n, err := op.list(model, root)
	if err != nil {
		return err
	}
	if !f.Repeats() {
		return fmt.Errorf("%s is no list", f.Name)
	}
	t := object(tree, at)
	if op.kind == "insert" {
		v, err := op.fit(f, "")
		if err != nil {
			return err
		}
		if op.index > n {
			return fmt.Errorf("index %d is behind the end of a list of %d", op.index, n)
		}
		insertItem(t, propertyName(f, v.typ), op.index, v)
		return nil
	}
	if op.source >= n || op.destination >= n {
		return fmt.Errorf("source %d and destination %d must lie in a list of %d", op.source, op.destination, n)
	}
	key := f.Name
	before := t.get(key)
	v := removeItem(t, key, op.source)
	if t.get(key) == nil && before != nil {
		t.set(key, before) // only nulls are left; the order of properties stays
	}
	insertItem(t, key, op.destination, v)
	return nil
}

// list finds the list that the path names: the parent's place, the field, and
// how many items it has. A path that ends with a name finds an empty list too.
func (op *operation) list(model *fhir.Model, root fhir.Node) ([]place, *fhir.Field, int, error) {
	e, err := fhirpath.Parse(op.path)
	if err != nil {
		return nil, nil, 0, err
	}
	if m, ok := e.Root.(*fhirpath.Member); ok && m.Left != nil {
		parents, err := nodes(model, &fhirpath.Expr{Source: e.Source, Root: m.Left}, root)
		if err != nil {
			return nil, nil, 0, err
		}
		if len(parents) == 1 && !parents[0].T.Kind.Primitive() {
			if f := parents[0].T.Field(m.Name); f != nil {
				return locate(root, parents[0]), f, len(parents[0].AppendField(nil, f)), nil
			}
		}
	}
	list, err := nodes(model, e, root)
	if err != nil {
		return nil, nil, 0, err
	}
	if len(list) == 0 {
		return nil, nil, 0, fmt.Errorf("the path names no list")
	}
	first := locate(root, list[0])
	if len(first) == 0 {
		return nil, nil, 0, fmt.Errorf("the path names no list")
	}
	last := first[len(first)-1]
	all := list
	if !last.parent.T.Kind.Primitive() {
		all = last.parent.AppendField(nil, last.field)
	}
	if len(all) != len(list) {
		return nil, nil, 0, fmt.Errorf("the path names %d of the %d items of a list", len(list), len(all))
	}
	for i := range all {
		if !all[i].Same(list[i]) {
			return nil, nil, 0, fmt.Errorf("the path names items of several lists")
		}
	}
	return first[:len(first)-1], last.field, len(all), nil
}

// clip bounds text of a request in a message.
func clip(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
