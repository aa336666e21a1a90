package validate

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kiln/definitions"
	"kiln/definitions/examples"
	compiled "kiln/gen/invariant"
	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// defined is an invariant as a StructureDefinition has it.
type defined struct {
	human, expression string
	warning           bool
}

// definedInvariants reads the definitions: by "type key" or "type.element key".
func definedInvariants(t *testing.T) map[string]defined {
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]defined{}
	for e, body := range lib.All("StructureDefinition") {
		r, err := fhir.Decode(r4.Model, body)
		if err != nil {
			t.Fatalf("%s: %v", e.URL, err)
		}
		sd := r.(*r4.StructureDefinition)
		if sd.Derivation.Text != "specialization" || sd.Kind.Text == "primitive-type" || sd.Kind.Text == "logical" || sd.Abstract.Text == "true" && sd.Type_.Text != domainResource {
			continue
		}
		for i := range sd.Snapshot.Element {
			d := &sd.Snapshot.Element[i]
			if d.ContentReference.Text != "" {
				continue // the type that it refers to has them
			}
			for _, c := range d.Constraint {
				if constraint.Walked[c.Key.Text] != "" || c.Expression.Text == "" {
					continue
				}
				path := strings.TrimSuffix(d.Path.Text, "[x]")
				expression := c.Expression.Text
				if e, ok := constraint.Corrected[c.Key.Text]; ok {
					expression = e
				}
				out[path+" "+c.Key.Text] = defined{c.Human.Text, expression, c.Severity.Text == "warning"}
			}
			for _, typ := range d.Type_ {
				for _, p := range typ.Profile {
					if p.Text == "http://hl7.org/fhir/StructureDefinition/SimpleQuantity" {
						out[strings.TrimSuffix(d.Path.Text, "[x]")+" sqty-1"] = defined{"The comparator is not used on a SimpleQuantity", "comparator.empty()", false}
					}
				}
			}
		}
	}
	return out
}

// TestInvariantsAreTheDefinitions compares the generated table with the
// StructureDefinitions: each constraint stands there once, with its severity.
func TestInvariantsAreTheDefinitions(t *testing.T) {
	want := definedInvariants(t)
	count := 0
	check := func(path string, list []constraint.Invariant) {
		for _, i := range list {
			count++
			d, ok := want[path+" "+i.Key]
			switch {
			case !ok:
				t.Errorf("%s: %s is in no definition", path, i.Key)
			case d.human != i.Human || d.warning != i.Warning || i.Check == nil && d.expression != i.Expression:
				t.Errorf("%s: %s differs from its definition: %+v", path, i.Key, d)
			case (i.Check == nil) == (i.Expression == ""):
				t.Errorf("%s: %s is neither compiled nor interpreted", path, i.Key)
			}
			delete(want, path+" "+i.Key)
		}
	}
	for _, typ := range compiled.All {
		check(typ.Name, typ.Invariants)
		for _, e := range typ.Elements {
			check(typ.Name+"."+e.Name, e.Invariants)
		}
	}
	for name := range want {
		typ, key, _ := strings.Cut(name, " ")
		// Every resource inherits the invariants of DomainResource.
		inherited := compiled.Of(domainResource) != nil && slices.ContainsFunc(compiled.Of(domainResource).Invariants, func(i constraint.Invariant) bool { return i.Key == key })
		if !inherited || r4.Model.Resources[typ] == nil {
			t.Errorf("%s is not in the table", name)
		}
	}
	if count < 200 {
		t.Errorf("the table has only %d invariants", count)
	}
}

// TestInterpretedIsShort lists what codegen leaves to the engine: what appears here
// anew was compiled before.
func TestInterpretedIsShort(t *testing.T) {
	want := []string{
		"cid-0",  // the type has no name: always empty
		"cnt-3",  // toString()
		"csd-1",  // descendants()
		"ctm-1",  // resolve()
		"eld-2",  // iif(), toInteger()
		"eld-3",  // toInteger()
		"ig-1",   // every item of one list looked for in another
		"ig-2",   // as above
		"md-1",   // toInteger()
		"que-2",  // descendants()
		"sdf-8",  // startsWith() of a computed text
		"sdf-8a", // as above
		"sdf-9",  // children()
		"tim-9",  // `in` of an element that repeats
	}
	var got []string
	for _, i := range compiled.Interpreted {
		if i.Reason == "" {
			t.Errorf("%s has no reason", i.Key)
		}
		got = append(got, i.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("interpreted are %v, expected %v", got, want)
	}
}

// TestCompiledInvariantsAgree evaluates every compiled invariant on every element
// of every HL7 example, and of variants of them, and beside it the expression of
// the definition by the FHIRPath engine: both say the same.
func TestCompiledInvariantsAgree(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	definitions := definedInvariants(t)
	programs := map[string]*fhirpath.Program{}
	program := func(path, key string) *fhirpath.Program {
		d, ok := definitions[path+" "+key]
		if !ok {
			t.Fatalf("%s has no definition of %s", path, key)
		}
		p, ok := programs[d.expression]
		if !ok {
			var err error
			if p, err = fhirpath.Compile(d.expression, fhirpath.Options{Model: r4.Model, CollectionAs: true}); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			programs[d.expression] = p
		}
		return p
	}
	evaluated, broken := map[string]int{}, map[string]int{}
	resources := 0

	var known constraint.Context
	check := func(name string, resource, n fhir.Node, path string, list []constraint.Invariant, owner string) {
		for i := range list {
			c := &list[i]
			if c.Check == nil {
				continue
			}
			known.Reset()
			known.Resource = resource
			got := c.Check(&known, n.Element())
			want, err := program(owner, c.Key).Holds(&fhirpath.Context{Context: context.Background(), Resource: resource, RootResource: resource}, n)
			if known.Err != nil || err != nil || got != want {
				t.Errorf("%s: %s of %s: compiled %v (%v), interpreted %v (%v)\n%s", name, c.Key, path, got, known.Err, want, err, fhir.Encode(nil, n.Element()))
			}
			evaluated[owner+" "+c.Key]++
			if !want {
				broken[owner+" "+c.Key]++
			}
		}
	}
	var walk func(name string, resource, n fhir.Node)
	walk = func(name string, resource, n fhir.Node) {
		if n.T.Kind == fhir.ResourceKind {
			resource = n
			if n.T.Base == domainResource {
				check(name, resource, n, n.T.Name, compiled.Of(domainResource).Invariants, domainResource)
			}
		}
		own := compiled.Of(n.T.Name)
		if own != nil {
			check(name, resource, n, n.T.Name, own.Invariants, n.T.Name)
		}
		for i := range n.T.Fields {
			f := &n.T.Fields[i]
			for _, c := range n.AppendField(nil, f) {
				if own != nil {
					for _, e := range own.Elements {
						if e.Name == f.Name {
							check(name, resource, c, n.T.Name+"."+f.Name, e.Invariants, n.T.Name+"."+f.Name)
						}
					}
				}
				walk(name, resource, c)
			}
		}
	}
	judge := func(b []byte) {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			return
		}
		resources++
		n := fhir.NodeOf(r)
		walk(n.T.Name+"/"+r.Header().ID.Text, n, n)
	}
	random := rand.New(rand.NewPCG(1, 2))

	// 1. What HL7 wrote, and the same with mistakes.
	m := mutator{random: random, known: map[string][]property{}}
	for _, b := range all {
		m.learn(b)
	}
	for _, b := range all {
		judge(b)
		for range 8 {
			b = m.mutate(b)
			judge(b)
		}
	}

	// 2. Resources made of the elements and texts of the invariants.
	words := wordsOf(t, definitions)
	for _, typ := range slices.Sorted(maps.Keys(r4.Model.Resources)) {
		if words[typ] == nil {
			continue
		}
		g := generator{random: random, words: words[typ]}
		for range 250 {
			judge(g.resource(r4.Model.Resources[typ].Type()))
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(r4.Model.Datatypes)) {
		datatype := r4.Model.Datatypes[typ].Type()
		if words[typ] == nil || datatype.Kind.Primitive() {
			continue
		}
		g := generator{random: random, words: words[typ]}
		for range 250 {
			value := g.object(datatype, 0)
			judge(append(append([]byte(`{"resourceType":"Basic","extension":[{"url":"http://x","value`+strings.ToUpper(typ[:1])+typ[1:]+`":`), value...), "}]}"...))
		}
	}

	for _, typ := range compiled.All {
		for _, i := range typ.Invariants {
			if i.Check != nil && broken[typ.Name+" "+i.Key] == 0 {
				t.Logf("%s of %s is broken by no resource", i.Key, typ.Name)
			}
		}
	}
	t.Logf("%d resources, %d invariants evaluated, %d of them broken at least once", resources, len(evaluated), len(broken))
	if resources < 20000 || len(evaluated) < 200 || len(broken) < 200 {
		t.Errorf("%d resources, %d invariants evaluated, %d of them broken at least once", resources, len(evaluated), len(broken))
	}
}

// words are the elements and texts that the invariants of one definition mention.
type words struct {
	elements map[string]bool
	texts    []string
}

func wordsOf(t *testing.T, all map[string]defined) map[string]*words {
	out := map[string]*words{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path, _, _ := strings.Cut(name, " ")
		root, _, _ := strings.Cut(path, ".")
		w := out[root]
		if w == nil {
			w = &words{elements: map[string]bool{"value": true, "code": true, "system": true}, texts: []string{"x", "Name", "http://unitsofmeasure.org"}}
			out[root] = w
		}
		for _, e := range strings.Split(path, ".") {
			w.elements[e] = true
		}
		expr, err := fhirpath.Parse(all[name].expression)
		if err != nil {
			t.Fatal(err)
		}
		fhirpath.Walk(expr.Root, func(n fhirpath.Node) bool {
			switch n := n.(type) {
			case *fhirpath.Member:
				w.elements[n.Name] = true
			case *fhirpath.Literal:
				if n.Kind == fhirpath.StringLiteral && !slices.Contains(w.texts, n.Text) {
					w.texts = append(w.texts, n.Text)
				}
			}
			return true
		})
	}
	return out
}

// generator writes random resources of such elements.
type generator struct {
	random *rand.Rand
	words  *words
}

func (g generator) pick(list ...string) string { return list[g.random.IntN(len(list))] }

func (g generator) resource(t *fhir.Type) []byte {
	b := g.object(t, 0)
	return append([]byte(`{"resourceType":"`+t.Name+`",`), b[1:]...)
}

func (g generator) object(t *fhir.Type, depth int) []byte {
	b := []byte(`{"id":"` + g.pick("a", "b", "c") + `"`)
	for i := range t.Fields {
		f := &t.Fields[i]
		if !g.words.elements[f.Name] || f.Name == "id" || depth > 5 || g.random.IntN(5) < 2 {
			continue
		}
		name, typ := f.Name, (*fhir.Type)(nil)
		switch {
		case f.AnyResource:
		case f.Open:
			name, typ = f.Name+"String", (*fhir.String)(nil).Type()
		case f.Choice():
			typ = f.Choices[g.random.IntN(len(f.Choices))].Type()
			name += strings.ToUpper(typ.Name[:1]) + typ.Name[1:]
		default:
			typ = f.Of.Type()
		}
		if !f.Repeats() {
			if typ != nil && typ.Kind.Primitive() && typ.Kind != fhir.SystemStringKind && g.random.IntN(8) == 0 {
				b = append(b, `,"_`+name+`":{"extension":[{"url":"http://x","valueCode":"`+g.pick("u", "v")+`"}]}`...)
				continue
			}
			b = append(append(b, `,"`+name+`":`...), g.value(typ, depth)...)
			continue
		}
		b = append(b, `,"`+name+`":[`...)
		for j := range 1 + g.random.IntN(3) {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(b, g.value(typ, depth)...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func (g generator) value(t *fhir.Type, depth int) []byte {
	if t == nil {
		typ := g.pick("Composition", "MessageHeader", "Patient")
		return []byte(`{"resourceType":"` + typ + `","id":"i","meta":{"` + g.pick("versionId", "source") + `":"` + g.pick("1", "2") + `"}}`)
	}
	var s string
	switch t.Kind {
	case fhir.Complex:
		return g.object(t, depth+1)
	case fhir.BooleanKind:
		return []byte(g.pick("true", "false"))
	case fhir.IntegerKind, fhir.PositiveIntKind, fhir.UnsignedIntKind:
		return []byte(g.pick("1", "2", "3"))
	case fhir.DecimalKind:
		return []byte(g.pick("0", "-1", "1.0", "2.50", "101"))
	case fhir.DateKind:
		s = g.pick("2020", "2020-05", "2020-05-05", "2019")
	case fhir.DateTimeKind:
		s = g.pick("2020", "2020-05", "2020-05-05", "2020-05-05T10:00:00Z", "2020-05-05T10:00:00+02:00", "2019")
	case fhir.InstantKind:
		s = g.pick("2020-05-05T10:00:00Z", "2020-05-05T10:00:00+02:00")
	case fhir.TimeKind:
		s = "10:00:00"
	case fhir.Base64BinaryKind:
		s = "eA=="
	case fhir.IDKind:
		s = g.pick("a", "b")
	default:
		s = g.words.texts[g.random.IntN(len(g.words.texts))]
	}
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`"x"`)
	}
	return b
}

// mutator changes resources in some places: elements are left out, said twice,
// given the text of another one, nothing but an extension instead of a value, or a
// sibling that another resource of the type has.
type mutator struct {
	random *rand.Rand
	known  map[string][]property // of objects by resource type and path
}

type property struct {
	key   string
	value json.RawMessage
}

// place is one property of an object.
type place struct {
	object    map[string]any
	path, key string
}

// places walks over a resource, in a fixed order.
func places(b []byte) (root map[string]any, list []place, texts []string) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if dec.Decode(&root) != nil {
		return nil, nil, nil
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if typ, ok := v["resourceType"].(string); ok {
				path = typ
			}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				if k == "resourceType" || k == "text" && path != "Composition.section" {
					continue
				}
				list = append(list, place{v, path, k})
				walk(path+"."+k, v[k])
			}
		case []any:
			for _, x := range v {
				walk(path, x)
			}
		case string:
			texts = append(texts, v)
		}
	}
	walk("", root)
	return root, list, texts
}

func (m *mutator) learn(b []byte) {
	_, list, _ := places(b)
	for _, p := range list {
		if value, err := json.Marshal(p.object[p.key]); err == nil && len(value) < 1000 {
			m.known[p.path] = append(m.known[p.path], property{p.key, value})
		}
	}
}

func (m *mutator) mutate(b []byte) []byte {
	root, list, texts := places(b)
	if len(list) == 0 {
		return b
	}
	for range 1 + m.random.IntN(3) {
		p := list[m.random.IntN(len(list))]
		if others := m.known[p.path]; len(others) > 0 && m.random.IntN(2) == 0 {
			other := others[m.random.IntN(len(others))]
			p.object[other.key] = other.value
			continue
		}
		switch v := p.object[p.key].(type) {
		case []any:
			if m.random.IntN(2) == 0 && len(v) > 0 {
				p.object[p.key] = append(v, v[m.random.IntN(len(v))])
				continue
			}
		case string:
			switch m.random.IntN(4) {
			case 0:
				p.object[p.key] = texts[m.random.IntN(len(texts))]
				continue
			case 1:
				p.object[p.key] = v[:min(len(v), 4)] // a date known to the year
				continue
			case 2:
				if !strings.HasPrefix(p.key, "_") && p.key != "id" && p.key != "url" {
					delete(p.object, p.key)
					p.object["_"+p.key] = map[string]any{"extension": []any{map[string]any{"url": "http://x", "valueCode": "unknown"}}}
					continue
				}
			}
		case json.Number:
			p.object[p.key] = json.Number([]string{"0", "-1", "1", "2.50", "1000"}[m.random.IntN(5)])
			continue
		}
		delete(p.object, p.key)
	}
	out, err := json.Marshal(root)
	if err != nil {
		return b
	}
	return out
}
