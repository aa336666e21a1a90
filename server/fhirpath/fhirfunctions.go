package fhirpath

import (
	"maps"
	"strings"
	"sync"

	"kiln/server/fhir"
	"kiln/server/narrative"
)

// functionTable is made at the first use; its functions look at it themselves.
var functionTable struct {
	once   sync.Once
	byName map[string]function
}

// functions returns the table of all functions.
func functions() map[string]function {
	functionTable.once.Do(fillFunctions)
	return functionTable.byName
}

func fillFunctions() {
	t := collectionFunctions()
	maps.Copy(t, environmentFunctions())
	for _, list := range []map[string]scalarDef{stringFunctions(), mathFunctions(), conversionFunctions(), fhirFunctions()} {
		for name, d := range list {
			t[name] = defineScalar(name, d)
		}
	}
	functionTable.byName = t
}

// environmentFunctions are those that need more than their input, or give
// several items.
func environmentFunctions() map[string]function {
	t := map[string]function{}
	clock := func(name string, k Kind, f func(now Value) Value) {
		t[name] = function{0, 0, func(*compiler, *invocation) (expr, static, error) {
			return clockExpr(f), kindStatic(k), nil
		}}
	}
	clock("now", DateTimeKind, func(now Value) Value { return now })
	clock("today", DateKind, func(now Value) Value { v, _ := toDate(now); return v })
	clock("timeOfDay", TimeKind, func(now Value) Value {
		return Value{kind: TimeKind, prec: now.prec, n: now.n - floorDiv(now.n, microsPerDay)*microsPerDay}
	})
	text := func(name string, low, high int, make func(in, arg expr, at int) expr) {
		t[name] = function{low, high, func(c *compiler, f *invocation) (expr, static, error) {
			if name != "extension" && !f.st.couldBe(StringKind) {
				return nil, f.st, c.fail(f.At, "%s() needs Strings, found %s", name, f.st.describe())
			}
			a, err := c.typed(f, 0, StringKind)
			st := kindStatic(StringKind).several()
			if name == "extension" {
				st = static{types: []*fhir.Type{(*fhir.Extension)(nil).Type()}, many: true}
			}
			return make(f.in, a, f.At), st, err
		}}
	}
	text("split", 1, 1, func(in, arg expr, at int) expr { return &splitExpr{in, arg, at} })
	t["join"] = function{0, 1, func(c *compiler, f *invocation) (expr, static, error) {
		if !f.st.couldBe(StringKind) {
			return nil, f.st, c.fail(f.At, "join() needs Strings, found %s", f.st.describe())
		}
		a, err := c.typed(f, 0, StringKind)
		return &joinExpr{f.in, a, f.At, c.opts.View}, kindStatic(StringKind), err
	}}
	text("toChars", 0, 0, func(in, _ expr, at int) expr { return &toCharsExpr{in, at} })
	text("extension", 1, 1, func(in, arg expr, at int) expr { return &extensionExpr{in, arg, at} })
	// HL7's SearchParameter QuestionnaireResponse.item-subject uses hasExtension(),
	// which no specification defines.
	t["hasExtension"] = function{1, 1, func(c *compiler, f *invocation) (expr, static, error) {
		a, err := c.typed(f, 0, StringKind)
		return &existsExpr{in: &extensionExpr{f.in, a, f.At}, want: true}, booleanStatic, err
	}}
	t["resolve"] = function{0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &resolveExpr{f.in, f.At}, unknownStatic(true), nil
	}}
	t["hasValue"] = function{0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &hasValueExpr{f.in}, booleanStatic, nil
	}}
	t["getValue"] = function{0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &getValueExpr{f.in}, unknownStatic(false), nil
	}}
	t["checkModifiers"] = function{0, -1, func(c *compiler, f *invocation) (expr, static, error) {
		e := &checkModifiersExpr{in: f.in, at: f.At}
		for i := range f.Args {
			a, err := c.typed(f, i, StringKind)
			if err != nil {
				return nil, f.st, err
			}
			e.known = append(e.known, a)
		}
		return e, f.st, nil
	}}
	return t
}

type clockExpr func(now Value) Value

func (e clockExpr) eval(m *machine) error {
	m.push(e(m.instant()))
	return nil
}

// hasValueExpr is true for one FHIR primitive with a value. A System value is none.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#functions.
type hasValueExpr struct{ in expr }

func (e *hasValueExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *hasValueExpr) test(m *machine) (tri, error) {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return unknown, err
	}
	list := m.stack[base:]
	m.stack = m.stack[:base]
	return triOf(len(list) == 1 && list[0].primitiveNode() && list[0].node.Text() != ""), nil
}

// primitiveNode reports whether v is a primitive of the model.
func (v Value) primitiveNode() bool {
	return v.kind == NodeKind && v.node.T != nil && v.node.T.Kind.Primitive()
}

// getValueExpr is the System value of one FHIR primitive that has one, else empty.
type getValueExpr struct{ in expr }

func (e *getValueExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	list := m.stack[base:]
	m.stack = m.stack[:base]
	if len(list) == 1 && list[0].primitiveNode() {
		if v, ok := list[0].system(); ok {
			m.push(v)
		}
	}
	return nil
}

// fhirFunctions are the scalar functions that FHIR adds, and type().
// Spec: https://hl7.org/fhir/R4/fhirpath.html#functions.
func fhirFunctions() map[string]scalarDef {
	return map[string]scalarDef{
		"type": {each: true, result: []Kind{TypeInfoKind},
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				if v.kind == NodeKind {
					return Value{kind: TypeInfoKind, n: 1, text: nodeTypeName(v.node.T)}, true, nil
				}
				return Value{kind: TypeInfoKind, text: v.kind.String()}, true, nil
			}},
		"htmlChecks": {result: booleanKinds,
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				s, ok := v.stringText()
				return Boolean(ok && narrative.Check(s) == nil), true, nil
			}},
		"conformsTo": {min: 1, max: 1, args: [][]Kind{stringKinds}, result: booleanKinds, apply: conformsTo},
		"memberOf":   {min: 1, max: 1, args: [][]Kind{stringKinds}, result: booleanKinds, apply: memberOf},
		"subsumes": {min: 1, max: 1, result: booleanKinds,
			apply: func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
				return subsumes(m, e, v, args[0])
			}},
		"subsumedBy": {min: 1, max: 1, result: booleanKinds,
			apply: func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
				return subsumes(m, e, args[0], v)
			}},
		"elementDefinition": {apply: needsProfiles},
		"slice":             {min: 2, max: 2, args: [][]Kind{stringKinds, stringKinds}, apply: needsProfiles},
	}
}

func needsProfiles(m *machine, e *scalar, _ Value, _ []Value) (Value, bool, error) {
	return Value{}, false, m.fail(Execution, e.at, "%s works only while a profile is applied", e.what)
}

const coreDefinitions = "http://hl7.org/fhir/StructureDefinition/"

func conformsTo(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
	profile := args[0].text
	if v.kind != NodeKind {
		return Value{}, false, m.fail(Execution, e.at, "conformsTo() needs an element, found %s", v.describe())
	}
	// The base definitions are the types of the model.
	if name, ok := strings.CutPrefix(profile, coreDefinitions); ok && m.program.types.names[name] {
		return Boolean(m.program.types.is(v.node.T, name)), true, nil
	}
	if m.ctx.Profiles != nil {
		conforms, known, err := m.ctx.Profiles.ConformsTo(m.background(), v.node, profile)
		if err != nil {
			return Value{}, false, m.wrap(e.at, "conformsTo()", err)
		}
		if known {
			return Boolean(conforms), true, nil
		}
	}
	return Value{}, false, m.fail(Execution, e.at, "conformsTo() does not know the profile %s", clip(profile))
}

// codings calls visit for the system and code of a code, string, Coding or
// CodeableConcept.
func codings(v Value, visit func(system, code string) (more bool, err error)) error {
	if s, ok := v.stringText(); ok {
		_, err := visit("", s)
		return err
	}
	if v.kind != NodeKind {
		return nil
	}
	list := []fhir.Node{v.node}
	if v.node.T.Name == "CodeableConcept" {
		list = v.node.AppendChild(nil, "coding")
	}
	for _, n := range list {
		text := func(name string) string {
			if c := n.AppendChild(nil, name); len(c) == 1 {
				return c[0].Text()
			}
			return ""
		}
		if code := text("code"); code != "" {
			if more, err := visit(text("system"), code); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

func memberOf(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
	if m.ctx.Terminology == nil {
		return Value{}, false, m.fail(Execution, e.at, "memberOf() needs a terminology service, there is none here")
	}
	result := unknown
	err := codings(v, func(system, code string) (bool, error) {
		member, known, err := m.ctx.Terminology.MemberOf(m.background(), system, code, args[0].text)
		if err != nil {
			return false, m.wrap(e.at, "memberOf()", err)
		}
		if known && result != yes {
			result = triOf(member)
		}
		return result != yes, nil
	})
	return Boolean(result == yes), result != unknown, err
}

func subsumes(m *machine, e *scalar, general, special Value) (Value, bool, error) {
	if m.ctx.Terminology == nil {
		return Value{}, false, m.fail(Execution, e.at, "%s needs a terminology service, there is none here", e.what)
	}
	result := unknown
	err := codings(general, func(gs, gc string) (bool, error) {
		err := codings(special, func(ss, sc string) (bool, error) {
			if gs != ss {
				if result == unknown {
					result = no
				}
				return true, nil
			}
			does, known, err := m.ctx.Terminology.Subsumes(m.background(), gs, gc, sc)
			if err != nil {
				return false, m.wrap(e.at, e.what, err)
			}
			if known && result != yes {
				result = triOf(does)
			}
			return result != yes, nil
		})
		return result != yes, err
	})
	return Boolean(result == yes), result != unknown, err
}

// checkModifiersExpr is checkModifiers(url…): the input, or an error where it has
// a modifier extension of another url.
type checkModifiersExpr struct {
	in    expr
	known []expr
	at    int
}

func (e *checkModifiersExpr) eval(m *machine) error {
	known := map[string]bool{}
	for _, k := range e.known {
		s, err := m.text(k, e.at, "checkModifiers()")
		if err != nil {
			return err
		}
		known[s] = true
	}
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	for _, v := range m.stack[base:] {
		if v.kind != NodeKind {
			continue
		}
		for _, x := range v.node.AppendChild(nil, "modifierExtension") {
			if x, ok := x.Element().(*fhir.Extension); ok && !known[x.URL.Text] {
				return m.fail(Execution, e.at, "checkModifiers() found the modifier extension %s", clip(x.URL.Text))
			}
		}
	}
	return nil
}

// resolveExpr is resolve(): what References, canonicals and uris point at.
type resolveExpr struct {
	in expr
	at int
}

func (e *resolveExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	end := len(m.stack)
	for i := base; i < end; i++ {
		ref := referenceOf(m.stack[i])
		if ref == "" {
			continue
		}
		n, ok, err := m.resolve(ref, e.at)
		if err != nil {
			return err
		}
		if ok {
			m.push(Value{node: n})
		}
	}
	m.slide(base, end)
	return nil
}

// referenceOf is the text of a Reference, canonical, uri or String.
func referenceOf(v Value) string {
	if s, ok := v.stringText(); ok {
		return s
	}
	if v.kind == NodeKind && v.node.T != nil && v.node.T.Name == "Reference" {
		var buf [1]fhir.Node
		if c := v.node.AppendChild(buf[:0], "reference"); len(c) == 1 {
			return c[0].Text()
		}
	}
	return ""
}

func (m *machine) resolve(ref string, at int) (fhir.Node, bool, error) {
	if err := m.spend(10, at); err != nil {
		return fhir.Node{}, false, err
	}
	root := m.rootResource()
	if id, ok := strings.CutPrefix(ref, "#"); ok {
		if id == "" {
			return root, root.T != nil, nil
		}
		for _, n := range root.AppendChild(nil, "contained") {
			if r, ok := n.Element().(fhir.Resource); ok && r.Header().ID.Text == id {
				return n, true, nil
			}
		}
		return fhir.Node{}, false, nil
	}
	if n, ok := m.inBundle(ref); ok {
		return n, true, nil
	}
	if m.ctx.Resolver == nil {
		return fhir.Node{}, false, nil
	}
	r, err := m.ctx.Resolver.Resolve(m.background(), ref)
	if err != nil {
		return fhir.Node{}, false, m.wrap(at, "resolve()", err)
	}
	return fhir.NodeOf(r), r != nil, nil
}

// inBundle finds an entry by its fullUrl, or by type and id.
func (m *machine) inBundle(ref string) (fhir.Node, bool) {
	root := m.rootResource()
	if root.T == nil || root.T.Name != "Bundle" {
		return fhir.Node{}, false
	}
	var buf [1]fhir.Node
	for _, e := range root.AppendChild(nil, "entry") {
		res := e.AppendChild(buf[:0], "resource")
		if len(res) == 0 {
			continue
		}
		n := res[0]
		if url := e.AppendChild(nil, "fullUrl"); len(url) == 1 && (url[0].Text() == ref || strings.HasSuffix(url[0].Text(), "/"+ref)) {
			return n, true
		}
		if r, ok := n.Element().(fhir.Resource); ok && r.Header().ID.Text != "" && ref == n.T.Name+"/"+r.Header().ID.Text {
			return n, true
		}
	}
	return fhir.Node{}, false
}

func (e *resolvesToExpr) eval(m *machine) error { return m.pushTest(e) }

// test looks at the text of the reference and asks the resolver only where that
// does not name a type.
func (e *resolvesToExpr) test(m *machine) (tri, error) {
	v, ok, err := m.one(e.resolve.in, e.resolve.at, "is")
	if err != nil || !ok {
		return unknown, err
	}
	ref := referenceOf(v)
	if typ := ReferenceType(ref); typ != "" {
		if t, ok := m.program.types.types[typ]; ok {
			return triOf(m.program.types.is(t, e.want.fhir)), nil
		}
	}
	if ref != "" {
		n, ok, err := m.resolve(ref, e.resolve.at)
		if err != nil || ok {
			return triOf(ok && m.program.types.matches(Value{node: n}, e.want)), err
		}
	}
	// Reference.type, where there is nothing else to go by.
	if v.kind == NodeKind && v.node.T != nil && v.node.T.Name == "Reference" {
		if c := v.node.AppendChild(nil, "type"); len(c) == 1 {
			if t, ok := m.program.types.types[c[0].Text()]; ok {
				return triOf(m.program.types.is(t, e.want.fhir)), nil
			}
		}
	}
	return unknown, nil
}

// ReferenceType is the resource type that a literal reference names: "Patient"
// for Patient/1, http://x/fhir/Patient/1/_history/2; "" where it names none.
func ReferenceType(ref string) string {
	ref, _, _ = strings.Cut(ref, "?")
	ref, _, _ = strings.Cut(ref, "/_history/")
	i := strings.LastIndexByte(ref, '/')
	if i < 0 {
		return ""
	}
	j := strings.LastIndexByte(ref[:i], '/') + 1
	typ := ref[j:i]
	if !upper(typ) {
		return ""
	}
	for k := range len(typ) {
		if !letter(typ[k]) {
			return ""
		}
	}
	return typ
}
