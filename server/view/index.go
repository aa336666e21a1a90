package view

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// IndexTable knows which elements of a resource type the search index has, by canonical path.
type IndexTable struct {
	typ   string
	paths map[string]indexedPath
}

// indexedPath is an element of the index.
type indexedPath struct {
	search fhir.SearchType
	key    fhir.Key
	types  []string // of the element
}

// NewIndexTable reads the search parameters of a resource type. A parameter whose index is not complete
// is left out.
func NewIndexTable(model *fhir.Model, typ string, parameters []*fhir.Parameter) *IndexTable {
	t := &IndexTable{typ: typ, paths: make(map[string]indexedPath)}
	resource, ok := model.Resources[typ]
	if !ok {
		return t
	}
	for _, p := range parameters {
		if p.Notice != "" || p.Type != fhir.SearchToken && p.Type != fhir.SearchReference && p.Type != fhir.SearchURI {
			continue
		}
		e, err := fhirpath.Parse(p.Expression)
		if err != nil {
			continue
		}
		for _, branch := range fhirpath.Branches(e.Root) {
			path, ok := elementPath(typ, branch)
			key := fhir.KeyOf(p.Type, fhirpath.CanonicalPathFrom(typ, branch))
			if !ok || !slices.Contains(p.Keys, key) {
				continue
			}
			program, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: p.Expression, Root: branch}, fhirpath.Options{Model: model, Input: resource.Type(), CollectionAs: true})
			if err != nil || !program.Shape().Known() {
				continue
			}
			t.paths[path] = indexedPath{p.Type, key, typesOf(program.Shape())}
		}
	}
	return t
}

// elementPath is the canonical path of a chain of element names and choices; ok is false for every
// other expression.
func elementPath(typ string, n fhirpath.Node) (string, bool) {
	switch n := n.(type) {
	case *fhirpath.Special:
		return typ, n.Name == "this"
	case *fhirpath.Member:
		if n.Left == nil {
			if n.Name == typ || n.Name == "Resource" || n.Name == "DomainResource" {
				return typ, true
			}
			return typ + "." + n.Name, true
		}
		left, ok := elementPath(typ, n.Left)
		return left + "." + n.Name, ok
	case *fhirpath.TypeOp:
		if n.Op != "as" {
			return "", false
		}
		left, ok := elementPath(typ, n.X)
		return left + ".ofType(" + n.Type.Name + ")", ok
	case *fhirpath.Call:
		if n.Name != "ofType" && n.Name != "as" || len(n.Args) != 1 || n.Left == nil {
			return "", false
		}
		m, ok := n.Args[0].(*fhirpath.Member)
		if !ok {
			return "", false
		}
		left, ok := elementPath(typ, n.Left)
		return left + ".ofType(" + m.Name + ")", ok
	}
	return "", false
}

// fixed is an element that a where fixes to a value.
type fixed struct {
	path  string
	item  string // the path of the item that has the element
	value string
}

// Candidates are the resources that the index finds for a where.
type Candidates struct {
	// Term is in the index of each resource for which the where is true.
	Term int64
	rank int // how few resources it can be expected to have
}

// Better reports whether fewer resources can be expected of c than of d.
func (c Candidates) Better(d Candidates) bool { return c.rank > d.rank }

// Ranks of terms.
const (
	rankSystem = iota + 1
	rankCode
	rankCoding
	rankReference
)

// Candidates returns the term that resources have for which a where is true. ok is false where the
// index cannot tell: every resource has to be read.
func (t *IndexTable) Candidates(v *View, w *Where) (best Candidates, ok bool) {
	take := func(c Candidates) {
		if !ok || c.Better(best) {
			best, ok = c, true
		}
	}
	f := finder{constants: v.constants}
	own, others := f.conjuncts(t.typ, w.Expr.Root)
	for _, group := range append(others, own) {
		for i, e := range group {
			if c, found := t.single(e); found {
				take(c)
			}
			// system and code of one Coding, value and system of one Identifier
			for _, other := range group[i+1:] {
				if c, found := t.pair(e, other); found {
					take(c)
				} else if c, found := t.pair(other, e); found {
					take(c)
				}
			}
		}
	}
	return best, ok
}

// element finds the indexed element that a path is at or below, with the rest of the path.
func (t *IndexTable) element(path string) (p indexedPath, rest string, ok bool) {
	for at := path; ; {
		if p, ok := t.paths[at]; ok {
			return p, strings.TrimPrefix(path[len(at):], "."), true
		}
		i := strings.LastIndexByte(at, '.')
		if i < 0 {
			return indexedPath{}, "", false
		}
		at = at[:i]
	}
}

// only reports whether each possible type of the element is one of types.
func (p *indexedPath) only(types ...string) bool {
	return !slices.ContainsFunc(p.types, func(t string) bool { return !slices.Contains(types, t) })
}

// single is the term of one element with a value.
func (t *IndexTable) single(f fixed) (Candidates, bool) {
	p, rest, ok := t.element(f.path)
	if !ok || f.value == "" {
		return Candidates{}, false
	}
	switch p.search {
	case fhir.SearchReference:
		typ, id, relative := strings.Cut(f.value, "/")
		if p.only("Reference") && rest == "reference" && relative && fhirpath.ReferenceType(f.value) == typ && fhir.ValidID(id) {
			return Candidates{p.key.Term(fhir.ValueReference(typ, id)), rankReference}, true
		}
	case fhir.SearchURI:
		if rest == "" && p.only("uri", "url", "canonical", "oid", "uuid") && !strings.HasPrefix(f.value, "#") {
			return Candidates{p.key.Term(fhir.ValueURI(f.value)), rankReference}, true
		}
	case fhir.SearchToken:
		switch {
		case rest == "" && p.only("code", "boolean", "id", "string", "uri"),
			rest == "code" && p.only("Coding"), rest == "coding.code" && p.only("CodeableConcept"), rest == "value" && p.only("Identifier"):
			return Candidates{p.key.Term(fhir.ValueCode(f.value)), rankCode}, true
		case rest == "system" && p.only("Coding", "Identifier"), rest == "coding.system" && p.only("CodeableConcept"):
			return Candidates{p.key.Term(fhir.ValueSystem(f.value)), rankSystem}, true
		}
	}
	return Candidates{}, false
}

// pair is the term of a system and a code of one item.
func (t *IndexTable) pair(system, code fixed) (Candidates, bool) {
	p, rest, ok := t.element(system.path)
	_, other, also := t.element(code.path)
	if !ok || !also || p.search != fhir.SearchToken || system.value == "" || code.value == "" {
		return Candidates{}, false
	}
	base := strings.TrimSuffix(system.path, ".system")
	switch {
	case rest == "system" && other == "code" && p.only("Coding"), rest == "coding.system" && other == "coding.code" && p.only("CodeableConcept"),
		rest == "system" && other == "value" && p.only("Identifier"):
		if system.item == base && code.item == base && (code.path == base+".code" || code.path == base+".value") {
			return Candidates{p.key.Term(fhir.ValueCoding(system.value, code.value)), rankCoding}, true
		}
	}
	return Candidates{}, false
}

// finder finds the elements that an expression fixes.
type finder struct{ constants map[string]fhirpath.Value }

// conjuncts returns the elements that a true expression fixes. base is the path of $this. own are elements of
// $this itself. others are elements of items that exist by the expression, a list for each item.
func (f *finder) conjuncts(base string, n fhirpath.Node) (own []fixed, others [][]fixed) {
	switch n := n.(type) {
	case *fhirpath.Binary:
		switch n.Op {
		case "and":
			left, leftOthers := f.conjuncts(base, n.Left)
			right, rightOthers := f.conjuncts(base, n.Right)
			return append(left, right...), append(leftOthers, rightOthers...)
		case "=":
			path, value := n.Left, n.Right
			text, ok := f.literal(value)
			if !ok {
				path, value = value, path
				text, ok = f.literal(value)
			}
			at, element := elementPathFrom(base, path)
			if ok && element {
				return []fixed{{at, base, text}}, nil
			}
		}
	case *fhirpath.Call:
		if n.Name != "exists" || n.Left == nil {
			return nil, nil
		}
		in, condition := n.Left, fhirpath.Node(nil)
		if len(n.Args) == 1 {
			condition = n.Args[0]
		} else if where, ok := in.(*fhirpath.Call); ok && where.Name == "where" && len(where.Args) == 1 && where.Left != nil {
			in, condition = where.Left, where.Args[0]
		}
		at, ok := elementPathFrom(base, in)
		if ok && condition != nil {
			item, groups := f.conjuncts(at, condition)
			return nil, append(groups, item)
		}
	}
	return nil, nil
}

// elementPathFrom is elementPath below base.
func elementPathFrom(base string, n fhirpath.Node) (string, bool) {
	typ, rest, below := strings.Cut(base, ".")
	if fhirpath.RootOf(n) == typ && below {
		return "", false
	}
	path, ok := elementPath(typ, n)
	if !ok || !below {
		return path, ok
	}
	return base + strings.TrimPrefix(path, typ), ok && rest != ""
}

// literal is the text of a string, a Boolean or a constant.
func (f *finder) literal(n fhirpath.Node) (string, bool) {
	switch n := n.(type) {
	case *fhirpath.Literal:
		return n.Text, n.Kind == fhirpath.StringLiteral || n.Kind == fhirpath.BooleanLiteral
	case *fhirpath.Variable:
		v, ok := f.constants[n.Name]
		switch n.Name {
		case "sct":
			return "http://snomed.info/sct", true
		case "loinc":
			return "http://loinc.org", true
		case "ucum":
			return "http://unitsofmeasure.org", true
		}
		if !ok || v.Kind() != fhirpath.NodeKind {
			return "", false
		}
		return v.String(), true
	}
	return "", false
}
