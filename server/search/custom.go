package search

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// Definition is a SearchParameter resource, as far as search needs it.
// Spec: https://hl7.org/fhir/R4/searchparameter.html.
type Definition struct {
	URL, Code   string
	Type        fhir.SearchType
	Base        []string // resource types; Resource and DomainResource stand for all of theirs
	Expression  string   // FHIRPath; "" makes a parameter that cannot be searched by
	Description string
	Targets     []string
	Components  []Component // of a composite
}

// Component is one part of a composite parameter.
type Component struct {
	Definition string // canonical of the parameter that says its type
	Expression string // from the composite's element
}

// Custom is a Definition that was stored at run time, compiled: what it means for
// each of its resource types. It is immutable.
type Custom struct {
	Definition
	Parameters []fhir.Parameter // one for each resource type, by type
	// Warnings name parts of the definition that are not FHIRPath, and say how Kiln
	// reads them.
	Warnings   []outcome.Issue
	extractors map[string][]*extractor
}

// Keys returns the keys of the parameter's own values in the index of a resource type. Keys that it shares
// with compiled parameters are left out.
func (c *Custom) Keys(typ string) []fhir.Key {
	var keys []fhir.Key
	for _, e := range c.extractors[typ] {
		keys = append(keys, e.key)
	}
	return keys
}

// Ordered reports whether the parameter's own values of a resource type include
// dates, numbers, quantities or strings: rows, and not only terms.
func (c *Custom) Ordered(typ string) bool {
	return slices.ContainsFunc(c.extractors[typ], func(e *extractor) bool {
		return isOrdered(e.typ) || slices.ContainsFunc(e.parts, func(p *extractor) bool { return isOrdered(p.typ) })
	})
}

// Drop takes a resource type out of the parameter, before anybody else has it.
func (c *Custom) Drop(typ string) { delete(c.extractors, typ) }

// ErrComponent is the cause of an error about a composite whose component is
// defined by an unknown parameter.
var ErrComponent = errors.New("search: the parameter of a component is not known")

// extractor evaluates one branch of an expression.
type extractor struct {
	url     string // of the parameter, for errors
	typ     fhir.SearchType
	key     fhir.Key
	system  string // implicit system of a code element
	name    bool   // its strings are parts of a HumanName
	program *fhirpath.Program
	parts   []*extractor // of a composite, evaluated on each element of program
}

// MaxSteps limits the evaluation of one expression on one resource. The limit takes some milliseconds,
// a thousand times as long as an ordinary expression.
const MaxSteps = 100_000

var bounded = fhirpath.Context{MaxSteps: MaxSteps}

// Indexer indexes a value of a datatype under a key, see gen/index.Value.
type Indexer func(x *fhir.Index, t fhir.SearchType, k fhir.Key, e fhir.Element)

// Compiler compiles definitions that are stored at run time.
type Compiler struct {
	Base *Registry // the compiled parameters
	// Other finds a definition that is no compiled one by its URL, for the
	// components of composites; it may be nil.
	Other func(url string) (Definition, bool)
}

// reserved says why a code cannot be a parameter's.
func reserved(code string) string {
	if slices.Contains(resultNames, code) {
		return "the name shapes the result of every search"
	}
	for i := range len(code) {
		switch c := code[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return "in a query only letters, digits, - and _ can be a parameter's name: . : , $ | and the like have a meaning there"
		}
	}
	return ""
}

// own reports whether a code has a meaning of its own in every search, with or
// without a SearchParameter: `_id`, `_has`, `_type`, `_tag` and the like.
// Spec: https://hl7.org/fhir/R4/search.html#all.
func (c *Compiler) own(code string) bool {
	if code == "_type" || slices.Contains(commonNames, code) || fhir.RefusedParameters[code] != "" {
		return true
	}
	if !strings.HasPrefix(code, "_") {
		return false
	}
	for _, typ := range c.Base.names {
		if _, ok := c.Base.compiled[typ][code]; ok {
			return true
		}
	}
	return false
}

// restates reports whether a definition says of each type what its code means there
// anyway: one of R4's examples defines _id once more, and so does US Core.
func (c *Compiler) restates(d *Definition, expr *fhirpath.Expr, types []string) bool {
	if expr == nil {
		return false
	}
	paths := func(typ string, expr *fhirpath.Expr) (list []string) {
		for _, n := range fhirpath.Branches(expr.Root) {
			if root := fhirpath.RootOf(n); root == typ || c.Base.model.Resources[root] == nil {
				list = append(list, fhirpath.CanonicalPathFrom(typ, n))
			}
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	return !slices.ContainsFunc(types, func(typ string) bool {
		p, ok := c.Base.compiled[typ][d.Code]
		if !ok || p.Type != d.Type {
			return true
		}
		meant, err := fhirpath.Parse(p.Expression)
		return err != nil || !slices.Equal(paths(typ, expr), paths(typ, meant))
	})
}

// RestatesR4 reports whether R4 has a search parameter of the same code, type and values
// for each resource type of a definition.
func (c *Compiler) RestatesR4(d Definition) bool {
	types, err := c.types(d.Base, "SearchParameter.base")
	if err != nil {
		return false
	}
	for _, typ := range types {
		p, ok := c.Base.compiled[typ][d.Code]
		if !ok || !strings.HasPrefix(p.URL, "http://hl7.org/fhir/SearchParameter/") {
			return false
		}
	}
	expr, err := fhirpath.Parse(d.Expression)
	return err == nil && len(types) > 0 && c.restates(&d, expr, types)
}

// Compile checks a definition and compiles it for each of its types. It fails
// with required or invalid, 400, naming the element and in an expression the
// position, when the definition can never work. One whose parameter cannot be
// searched by (type special, no expression) compiles, and is Unsupported. A code that
// has a meaning in every search, like _id or _has, is refused, but for a definition that
// says just that: it has no Parameters and changes nothing.
func (c *Compiler) Compile(d Definition) (*Custom, error) {
	for _, e := range []struct{ name, value, what string }{
		{"code", d.Code, "the name of the parameter in queries"},
		{"url", d.URL, "the canonical URL of the parameter"},
		{"type", string(d.Type), "number, date, string, token, reference, composite, quantity, uri or special"},
		{"base", strings.Join(d.Base, ""), "the resource types that have the parameter"},
	} {
		if e.value == "" {
			return nil, outcome.New(outcome.CodeRequired, "a SearchParameter needs %s: %s", e.name, e.what).At("SearchParameter." + e.name)
		}
	}
	if why := reserved(d.Code); why != "" {
		return nil, outcome.Invalid("%q cannot be the code of a search parameter: %s", outcome.Clip(d.Code), why).At("SearchParameter.code")
	}
	switch d.Type {
	case fhir.SearchNumber, fhir.SearchDate, fhir.SearchString, fhir.SearchToken, fhir.SearchReference,
		fhir.SearchComposite, fhir.SearchQuantity, fhir.SearchURI, fhir.SearchSpecial:
	default:
		return nil, outcome.Invalid("%q is no type of search parameter: expected number, date, string, token, reference, composite, quantity, uri or special",
			outcome.Clip(string(d.Type))).At("SearchParameter.type")
	}
	types, err := c.types(d.Base, "SearchParameter.base")
	if err != nil {
		return nil, err
	}
	if _, err := c.types(d.Targets, "SearchParameter.target"); err != nil {
		return nil, err
	}
	out := &Custom{Definition: d, extractors: make(map[string][]*extractor)}
	expr, err := c.parse(d.Expression, "SearchParameter.expression")
	if err != nil {
		return nil, err
	}
	if c.own(d.Code) {
		if !c.restates(&d, expr, types) {
			return nil, outcome.Invalid("%q cannot be the code of a search parameter: FHIR gives it a meaning in every search, which a SearchParameter does not change", d.Code).At("SearchParameter.code")
		}
		return out, nil
	}
	for _, typ := range types {
		p, err := c.parameter(out, expr, typ)
		if err != nil {
			return nil, err
		}
		out.Parameters = append(out.Parameters, p)
	}
	return out, nil
}

// types are the resource types that names stand for, sorted.
func (c *Compiler) types(names []string, path string) ([]string, error) {
	var out []string
	for i, name := range names {
		switch {
		case name == "Resource":
			out = append(out, c.Base.names...)
		case name == "DomainResource":
			for _, typ := range c.Base.names {
				if c.Base.model.Resources[typ].Type().Base == name {
					out = append(out, typ)
				}
			}
		case c.Base.Has(name):
			out = append(out, name)
		default:
			return nil, outcome.Invalid("%q is no resource type of FHIR R4%s", outcome.Clip(name), outcome.DidYouMean(name, c.Base.names)).
				At(fmt.Sprintf("%s[%d]", path, i))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (c *Compiler) parse(text, path string) (*fhirpath.Expr, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	e, err := fhirpath.Parse(text)
	if err != nil {
		return nil, expressionError(err, path)
	}
	if why := outsideResource(e.Root); why != "" {
		return nil, outcome.Invalid("%s", why).At(path)
	}
	return e, nil
}

// outsideResource says why the values of an expression cannot be indexed, "" where they
// can: they depend on more than the resource. The type of a reference's target, as in
// "resolve() is Patient", stands in the reference.
func outsideResource(root fhirpath.Node) (why string) {
	typed := map[fhirpath.Node]bool{}
	fhirpath.Walk(root, func(n fhirpath.Node) bool {
		switch x := n.(type) {
		case *fhirpath.TypeOp:
			typed[x.X] = x.Op == "is"
		case *fhirpath.Call:
			switch x.Name {
			case "is":
				typed[x.Left] = true
			case "resolve":
				if !typed[n] {
					why = "resolve() reads another resource, which changes without this one: its values cannot be indexed. " +
						"A search finds them by a chain, such as subject:Patient.name; resolve() is Patient can be indexed"
				}
			case "now", "today", "timeOfDay":
				why = x.Name + "() gives another value at each search, and cannot be indexed"
			case "memberOf", "subsumes", "subsumedBy", "conformsTo":
				why = x.Name + "() depends on definitions that change without the resource, and cannot be indexed; a search has :in, :below and _profile"
			}
		}
		return why == ""
	})
	return why
}

// expressionError says where an expression is wrong.
func expressionError(err error, path string) error {
	if err == nil {
		return nil
	}
	var e *fhirpath.Error
	if !errors.As(err, &e) {
		return err
	}
	line, column := e.Position()
	what := "invalid FHIRPath expression"
	if e.Phase == fhirpath.Limit {
		what = "FHIRPath expression that costs too much"
	}
	return outcome.Invalid("%s: line %d, column %d: %s (%s)", what, line, column, e.Reason, e.Phase).At(path)
}

// replaceChoiceNames reads valueDateTime as value.ofType(dateTime) in an expression that
// starts from a type, and adds a warning.
func (c *Compiler) replaceChoiceNames(out *Custom, expr *fhirpath.Expr, input *fhir.Type, path string) *fhirpath.Expr {
	if expr == nil || input == nil {
		return expr
	}
	replaced, names := fhirpath.ReplaceChoiceNames(expr, fhirpath.Options{Model: c.Base.model, Input: input, CollectionAs: true, Variables: []string{}})
	for _, n := range names {
		issue := outcome.Issue{Severity: outcome.Warning, Code: outcome.CodeInvalid, Expression: path,
			Diagnostics: fmt.Sprintf("FHIRPath has no element %s; Kiln reads it as %s.ofType(%s)", n.Name, n.Element, n.Type)}
		if !slices.Contains(out.Warnings, issue) {
			out.Warnings = append(out.Warnings, issue)
		}
	}
	return replaced
}

// parameter compiles a definition for one resource type.
func (c *Compiler) parameter(out *Custom, expr *fhirpath.Expr, typ string) (fhir.Parameter, error) {
	d := &out.Definition
	p := fhir.Parameter{Code: d.Code, Base: typ, URL: d.URL, Type: d.Type, Description: strings.Join(strings.Fields(d.Description), " "),
		Targets: slices.Sorted(slices.Values(d.Targets))}
	if slices.Contains(p.Targets, "Resource") {
		p.Targets = nil
	}
	switch {
	case d.Type == fhir.SearchSpecial:
		p.Unsupported = fhir.RefusedSpecial
		return p, nil
	case expr == nil:
		p.Unsupported = fhir.RefusedNoExpression
		return p, nil
	}
	input := c.Base.model.Resources[typ].Type()
	var texts []string
	for _, n := range fhirpath.Branches(expr.Root) {
		root := fhirpath.RootOf(n)
		if other := c.Base.model.Resources[root]; other != nil && root != typ {
			continue
		}
		n = c.replaceChoiceNames(out, &fhirpath.Expr{Source: expr.Source, Root: n}, input, "SearchParameter.expression").Root
		texts = append(texts, n.String())
		if name := stamped(n); name != "" {
			return p, outcome.Invalid("meta.%s is given to a resource when it is stored, after its values are indexed; _lastUpdated searches by time, and a version is read at _history", name).
				At("SearchParameter.expression")
		}
		if err := c.branch(out, &p, expr.Source, n, typ); err != nil {
			return p, err
		}
	}
	if len(texts) == 0 {
		return p, outcome.Invalid("the expression says nothing of %s, which is one of the parameter's base types", typ).At("SearchParameter.expression")
	}
	p.Expression = strings.Join(texts, " | ")
	if why := unsupportedReason(&p); why != "" {
		return p, outcome.Invalid("%s", why).At("SearchParameter.component")
	}
	return p, nil
}

// stamped returns the element of meta that an expression reads and that only storing the resource sets, "" for
// none. Such an expression would index no value, or the value of the previous version.
func stamped(n fhirpath.Node) (name string) {
	fhirpath.Walk(n, func(n fhirpath.Node) bool {
		m, ok := n.(*fhirpath.Member)
		if !ok || m.Name != "versionId" && m.Name != "lastUpdated" {
			return true
		}
		meta, ok := m.Left.(*fhirpath.Member)
		if !ok || meta.Name != "meta" {
			return true
		}
		switch of := meta.Left.(type) {
		case nil, *fhirpath.Variable:
			name = m.Name
		case *fhirpath.Member:
			if of.Left == nil {
				name = m.Name
			}
		}
		return name == ""
	})
	return name
}

// branch compiles one branch of an expression and adds it to p.
func (c *Compiler) branch(out *Custom, p *fhir.Parameter, source string, n fhirpath.Node, typ string) error {
	model := c.Base.model
	input := model.Resources[typ].Type()
	program, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: source, Root: n},
		fhirpath.Options{Model: model, Input: input, CollectionAs: true, Variables: []string{}})
	if err != nil {
		return expressionError(err, "SearchParameter.expression")
	}
	// An expression that never ends does so without data, too, or is stopped by
	// the same bound when data come.
	if r, ok := input.New().(fhir.Resource); ok {
		if _, err := program.Eval(&bounded, fhir.NodeOf(r)); isLimit(err) {
			return expressionError(err, "SearchParameter.expression")
		}
	}
	path := fhirpath.CanonicalPathFrom(typ, n)
	e := &extractor{url: p.URL, typ: p.Type, program: program}
	if p.Type == fhir.SearchComposite {
		return c.composite(out, p, e, n, typ, path)
	}
	if err := converts(program, p.Type); err != nil {
		return outcome.Invalid("%s of %s: %v", outcome.Clip(n.String()), typ, err).At("SearchParameter.expression")
	}
	e.name = inName(model, input, n)
	f, _ := terminal(model, input, n)
	if p.Type == fhir.SearchToken && f != nil {
		e.system = f.Binding.System
	}
	if p.Type == fhir.SearchReference && len(p.Targets) == 0 && f != nil {
		for _, t := range f.Targets {
			if model.Resources[t] != nil {
				p.Targets = append(p.Targets, t)
			}
		}
		slices.Sort(p.Targets)
	}
	c.add(out, p, e, n, path)
	return nil
}

// add gives the extractor its key. A branch that compiled parameters have, too,
// shares their entries and needs no extractor.
func (c *Compiler) add(out *Custom, p *fhir.Parameter, e *extractor, n fhirpath.Node, path string) {
	e.key = fhir.KeyOf(p.Type, path)
	if shared, targets, ok := c.shared(p, n, path); ok {
		for _, k := range shared {
			p.Keys = appendKey(p.Keys, k)
			if c.hasWords(p.Base, k) {
				p.Words = appendKey(p.Words, k)
			}
		}
		if len(targets) > 0 {
			p.Targets = targets
		}
		return
	}
	p.Keys = appendKey(p.Keys, e.key)
	if e.hasWords() {
		p.Words = appendKey(p.Words, e.key)
	}
	list := out.extractors[p.Base]
	if !slices.ContainsFunc(list, func(o *extractor) bool { return o.key == e.key }) {
		out.extractors[p.Base] = append(list, e)
	}
}

// hasWords reports whether a compiled parameter has parts of names under k.
func (c *Compiler) hasWords(typ string, k fhir.Key) bool {
	return slices.ContainsFunc(c.Base.sorted[typ], func(o *fhir.Parameter) bool { return slices.Contains(o.Words, k) })
}

// hasWords reports whether the extractor can give parts of names: where the types of its
// values are not known before, it can.
func (e *extractor) hasWords() bool {
	if e.typ != fhir.SearchString {
		return false
	}
	types := e.program.Types()
	return e.name || len(types) == 0 || slices.ContainsFunc(types, func(name string) bool {
		short := strings.TrimPrefix(name, "FHIR.")
		return short == humanName || short == "Extension"
	})
}

// shared finds the keys of a compiled branch with the same path. Compiled ones
// leave out `where(resolve() is Patient)`, and say so in their targets.
func (c *Compiler) shared(p *fhir.Parameter, n fhirpath.Node, path string) (keys []fhir.Key, targets []string, ok bool) {
	compiled := func(k fhir.Key) bool {
		for _, o := range c.Base.sorted[p.Base] {
			if o.Unsupported == "" && o.Type == p.Type && slices.Contains(o.Keys, k) {
				return true
			}
		}
		return false
	}
	k := fhir.KeyOf(p.Type, path)
	if compiled(k) {
		return c.withParts(p.Base, k), nil, true
	}
	call, isCall := n.(*fhirpath.Call)
	if !isCall || call.Name != "where" || call.Left == nil || len(call.Args) != 1 || p.Type != fhir.SearchReference {
		return nil, nil, false
	}
	is, isType := call.Args[0].(*fhirpath.TypeOp)
	if !isType || is.Op != "is" || c.Base.model.Resources[is.Type.Name] == nil {
		return nil, nil, false
	}
	if resolve, ok := is.X.(*fhirpath.Call); !ok || resolve.Name != "resolve" || resolve.Left != nil {
		return nil, nil, false
	}
	k = fhir.KeyOf(p.Type, fhirpath.CanonicalPathFrom(p.Base, call.Left))
	_, typed := c.Base.narrowed[k] // its entries contain the type of their target
	return []fhir.Key{k}, []string{is.Type.Name}, typed && compiled(k)
}

// withParts is a key of a compiled branch, and those that have parts of its values.
func (c *Compiler) withParts(typ string, k fhir.Key) []fhir.Key {
	keys := []fhir.Key{k}
	for _, o := range c.Base.sorted[typ] {
		for i, whole := range o.PartOf {
			if whole == k {
				keys = appendKey(keys, o.Keys[i])
			}
		}
	}
	return keys
}

// composite compiles the components of one branch.
func (c *Compiler) composite(out *Custom, p *fhir.Parameter, e *extractor, n fhirpath.Node, typ, path string) error {
	model := c.Base.model
	if len(out.Components) < 2 {
		return outcome.New(outcome.CodeRequired, "a composite parameter needs two components or more, each with definition and expression").At("SearchParameter.component")
	}
	_, element := terminal(model, model.Resources[typ].Type(), n)
	self := path == typ || path == "%resource"
	if self {
		element = model.Resources[typ].Type()
	}
	branch := fhir.Composite{}
	text := path + ":"
	for i, comp := range out.Components {
		at := fmt.Sprintf("SearchParameter.component[%d]", i)
		code, partType, ok := c.defined(comp.Definition, typ)
		if !ok {
			return outcome.Invalid("component %d is defined by %q, which is no search parameter of %s", i+1, outcome.Clip(comp.Definition), typ).
				At(at + ".definition").Because(ErrComponent)
		}
		if partType == fhir.SearchComposite || partType == fhir.SearchSpecial {
			return outcome.Invalid("component %d is of type %s, which cannot be combined", i+1, partType).At(at + ".definition")
		}
		expr, err := c.parse(comp.Expression, at+".expression")
		if err != nil {
			return err
		}
		if expr == nil {
			return outcome.New(outcome.CodeRequired, "component %d has no expression", i+1).At(at + ".expression")
		}
		expr = c.replaceChoiceNames(out, expr, element, at+".expression")
		if isOrdered(partType) && !self && slices.ContainsFunc(branch.Parts, func(o fhir.Part) bool { return isOrdered(o.Type) }) {
			return outcome.Invalid("component %d is of type %s, and another one is ordered, too: of a repeating element one component may be a date, number, quantity or string", i+1, partType).At(at + ".definition")
		}
		part := fhir.Part{Code: code, Type: partType}
		if i > 0 {
			text += " &"
		}
		text += " " + string(partType) + " " + fhirpath.CanonicalPath(expr.Root)
		if self {
			// The component is a parameter of its own, of one branch or several.
			sub := &fhir.Parameter{Code: code, Base: typ, URL: p.URL, Type: partType}
			for _, m := range fhirpath.Branches(expr.Root) {
				if err := c.branch(out, sub, expr.Source, m, typ); err != nil {
					return err
				}
			}
			part.Keys = sub.Keys
		} else {
			program, err := fhirpath.CompileExpr(expr, fhirpath.Options{Model: model, Input: element, CollectionAs: true, Variables: []string{}})
			if err != nil {
				return expressionError(err, at+".expression")
			}
			if err := converts(program, partType); err != nil {
				return outcome.Invalid("%s: %v", outcome.Clip(comp.Expression), err).At(at + ".expression")
			}
			x := &extractor{url: p.URL, typ: partType, program: program, name: inName(model, element, expr.Root)}
			if f, _ := terminal(model, element, expr.Root); f != nil && partType == fhir.SearchToken {
				x.system = f.Binding.System
			}
			part.System = x.system
			e.parts = append(e.parts, x)
		}
		branch.Parts = append(branch.Parts, part)
	}
	if !self {
		branch.Key = fhir.KeyOf(fhir.SearchComposite, text)
		e.key = branch.Key
		out.extractors[typ] = append(out.extractors[typ], e)
	}
	p.Composites = append(p.Composites, branch)
	return nil
}

// defined finds the code and type of a component's definition.
func (c *Compiler) defined(canonical, typ string) (code string, t fhir.SearchType, ok bool) {
	url, _, _ := strings.Cut(canonical, "|")
	for _, p := range c.Base.sorted[typ] {
		if p.URL == url {
			return p.Code, p.Type, true
		}
	}
	if c.Other != nil {
		if d, ok := c.Other(url); ok {
			return d.Code, d.Type, true
		}
	}
	return "", "", false
}

func isLimit(err error) bool {
	var e *fhirpath.Error
	return errors.As(err, &e) && e.Phase == fhirpath.Limit
}

func appendKey(keys []fhir.Key, k fhir.Key) []fhir.Key {
	if slices.Contains(keys, k) {
		return keys
	}
	return append(keys, k)
}

// forms are the types that have a form as a search type. Of a choice one is
// enough. Spec: https://hl7.org/fhir/R4/search.html#ptypes.
var forms = map[fhir.SearchType][]string{
	fhir.SearchToken: {"boolean", "code", "string", "markdown", "id", "uri", "url", "oid", "uuid", "canonical", "integer",
		"positiveInt", "unsignedInt", "Coding", "CodeableConcept", "Identifier", "ContactPoint", "Extension"},
	fhir.SearchDate:     {"date", "dateTime", "instant", "Period", "Timing", "Extension"},
	fhir.SearchNumber:   {"integer", "positiveInt", "unsignedInt", "decimal", "Range", "Extension"},
	fhir.SearchQuantity: {"Quantity", "Age", "Count", "Distance", "Duration", "Money", "Range", "Extension"},
	fhir.SearchString: {"string", "markdown", "code", "id", "uri", "url", "canonical", "HumanName", "Address", "Annotation",
		"CodeableConcept", "Coding", "Extension"},
	fhir.SearchReference: {"uri", "url", "canonical", "oid", "uuid", "Reference", "Extension"},
	fhir.SearchURI:       {"uri", "url", "canonical", "oid", "uuid", "string", "Extension"},
}

// systemForms are the FHIR types that System types are indexed as.
var systemForms = map[string]string{
	"System.Boolean": "boolean", "System.String": "string", "System.Integer": "integer", "System.Decimal": "decimal",
	"System.Date": "date", "System.DateTime": "dateTime", "System.Time": "time",
}

// converts says why no result of the program has a form as t.
func converts(p *fhirpath.Program, t fhir.SearchType) error {
	types := p.Types()
	if len(types) == 0 {
		return nil // known at evaluation
	}
	for _, name := range types {
		short := strings.TrimPrefix(name, "FHIR.")
		if s, ok := systemForms[name]; ok {
			short = s
		}
		if slices.Contains(forms[t], short) {
			return nil
		}
	}
	return fmt.Errorf("it gives %s, which cannot be searched as %s; expected %s", strings.Join(types, " or "), t, strings.Join(forms[t], ", "))
}

// terminal follows a path of plain names through the model: the field that it
// ends in, and the type of its values; nil where that is not so simple.
func terminal(m *fhir.Model, from *fhir.Type, n fhirpath.Node) (*fhir.Field, *fhir.Type) {
	switch n := n.(type) {
	case *fhirpath.Member:
		t := from
		if n.Left == nil {
			if c := n.Name[0]; c >= 'A' && c <= 'Z' {
				return nil, from
			}
		} else {
			_, t = terminal(m, from, n.Left)
		}
		if t == nil {
			return nil, nil
		}
		f := t.Field(n.Name)
		if f == nil || f.Of == nil {
			return nil, nil
		}
		return f, f.Of.Type()
	case *fhirpath.TypeOp:
		if e := m.Datatypes[n.Type.Name]; n.Op == "as" && e != nil {
			return nil, e.Type()
		}
	case *fhirpath.Indexer:
		return terminal(m, from, n.Left)
	case *fhirpath.Call:
		switch n.Name {
		case "where", "first", "last":
			if n.Left != nil {
				return terminal(m, from, n.Left)
			}
		case "as", "ofType":
			if len(n.Args) == 1 {
				if to, ok := n.Args[0].(*fhirpath.Member); ok && m.Datatypes[to.Name] != nil {
					return nil, m.Datatypes[to.Name].Type()
				}
			}
		}
	case *fhirpath.Special:
		if n.Name == "this" {
			return nil, from
		}
	case *fhirpath.Variable:
		if n.Name == "resource" {
			return nil, from
		}
	}
	return nil, nil
}

// humanName is the datatype whose parts are found by each of their words.
const humanName = "HumanName"

// inName reports whether a path of plain names ends in an element of a HumanName.
func inName(m *fhir.Model, from *fhir.Type, n fhirpath.Node) bool {
	switch n := n.(type) {
	case *fhirpath.Member:
		of := from
		if n.Left != nil {
			_, of = terminal(m, from, n.Left)
		}
		return of != nil && of.Name == humanName
	case *fhirpath.Indexer:
		return inName(m, from, n.Left)
	case *fhirpath.Call:
		switch n.Name {
		case "where", "first", "last":
			return n.Left != nil && inName(m, from, n.Left)
		}
	}
	return false
}

// Extract adds the values of the parameters stored at run time to x, which already contains those of the
// compiled parameters. It fails with invalid, 422, if an expression cannot be evaluated on the resource: a
// search by that parameter would miss the resource.
func (r *Registry) Extract(x *fhir.Index, resource fhir.Resource) error {
	x.ParametersVersion = r.version
	list := r.extractors[x.ResourceType]
	if len(list) == 0 {
		return nil
	}
	n := fhir.NodeOf(resource)
	var failed ExtractError
	var issues []outcome.Issue
	for _, e := range list {
		if !x.Sorts(e.key) {
			continue
		}
		if err := e.extract(x, n, r.value); err != nil {
			failed.Keys = append(failed.Keys, e.key)
			issues = append(issues, outcome.Issue{Severity: outcome.Failure, Code: outcome.CodeInvalid, Expression: x.ResourceType,
				Diagnostics: fmt.Sprintf("the search parameter %s cannot be evaluated on this resource: %v", e.url, err)})
		}
	}
	if issues != nil {
		return outcome.Unprocessable(issues).Because(&failed)
	}
	return nil
}

// ExtractError is the cause of an error of Extract: the keys of the parameters
// that could not be evaluated. All others have left their entries.
type ExtractError struct{ Keys []fhir.Key }

func (e *ExtractError) Error() string {
	return fmt.Sprintf("search: %d parameters cannot be evaluated", len(e.Keys))
}

func (e *extractor) extract(x *fhir.Index, n fhir.Node, value Indexer) error {
	c, err := e.program.Eval(&bounded, n)
	if err != nil {
		return err
	}
	for _, v := range c {
		if e.parts == nil {
			e.index(x, v, value)
			continue
		}
		element, ok := v.Node()
		if !ok {
			continue
		}
		values := make([]fhirpath.Collection, len(e.parts))
		for i, part := range e.parts {
			if values[i], err = part.program.Eval(&fhirpath.Context{MaxSteps: MaxSteps, Resource: n}, element); err != nil {
				return err
			}
		}
		x.Open(e.key, len(e.parts))
		for i, part := range e.parts {
			if i > 0 {
				x.Next()
			}
			for _, v := range values[i] {
				part.index(x, v, value)
			}
		}
		x.Close()
	}
	return nil
}

func (e *extractor) index(x *fhir.Index, v fhirpath.Value, value Indexer) {
	element := v.Element()
	if element == nil {
		return
	}
	if code, ok := element.(*fhir.Code); ok && e.system != "" && e.typ == fhir.SearchToken {
		if code.Text != "" {
			x.CodeOf(e.key, e.system, code.Text)
		}
		return
	}
	if text, ok := element.(*fhir.String); ok && e.typ == fhir.SearchURI {
		x.URI(e.key, text.Text) // the expression made this string
		return
	} else if ok && e.typ == fhir.SearchString && e.name {
		x.Name(e.key, text.Text)
		return
	}
	value(x, e.typ, e.key, element)
}

// custom is the part of a Registry for parameters stored at run time.
type custom struct {
	version     int64
	extractors  map[string][]*extractor // by resource type
	value       Indexer
	notices     map[string]string      // by resource type: the warning of a search by all references
	sortIndexes map[string][]SortIndex // by resource type
	unavailable error
}

// Version is the version of the search parameters that the registry was made of;
// 0 when none was ever stored at run time.
func (r *Registry) Version() int64 { return r.version }

// Notice returns the warning of a search that uses entries of a resource type under keys, "" for none. code is the
// parameter code, or "" for all compiled references, which compartments and wildcards use.
type Notice func(typ, code string, keys []fhir.Key) string

// Extended returns the registry of version that has the parameters of customs
// too, in place of compiled ones with the same type and code. notice may be nil.
func (r *Registry) Extended(version int64, customs []*Custom, value Indexer, notice Notice) *Registry {
	next := *r
	next.types, next.sorted, next.systems = maps.Clone(r.types), maps.Clone(r.sorted), maps.Clone(r.systems)
	next.narrowed = maps.Clone(r.narrowed)
	next.custom = custom{version: version, value: value, extractors: maps.Clone(r.extractors)}
	if next.extractors == nil {
		next.extractors = make(map[string][]*extractor)
	}
	changed := make(map[string]bool)
	own := func(typ string) map[string]*fhir.Parameter {
		if !changed[typ] {
			changed[typ] = true
			next.types[typ] = maps.Clone(r.types[typ])
		}
		return next.types[typ]
	}
	for _, c := range customs {
		for i := range c.Parameters {
			p := &c.Parameters[i]
			own(p.Base)[p.Code] = p
			next.learnNarrowed(p)
			list := next.extractors[p.Base]
			for _, e := range c.extractors[p.Base] {
				if !slices.ContainsFunc(list, func(o *extractor) bool { return o.key == e.key }) {
					list = append(list[:len(list):len(list)], e)
				}
				if e.typ == fhir.SearchToken {
					next.learnSystems([]fhir.Key{e.key}, []string{e.system})
				}
			}
			if len(list) > 0 {
				next.extractors[p.Base] = list
			}
		}
	}
	if notice != nil {
		next.notices = make(map[string]string)
		for _, typ := range r.names {
			var references []fhir.Key
			for _, p := range r.compiled[typ] {
				if p.Type == fhir.SearchReference {
					references = append(references, p.Keys...)
				}
			}
			if text := notice(typ, "", references); text != "" {
				next.notices[typ] = text
			}
			for code, p := range next.types[typ] {
				if text := notice(typ, code, p.EveryKey()); text != "" {
					warned := *p
					warned.Notice = text
					own(typ)[code] = &warned
				}
			}
		}
	}
	for typ := range changed {
		next.sorted[typ] = slices.SortedFunc(maps.Values(next.types[typ]), func(a, b *fhir.Parameter) int { return strings.Compare(a.Code, b.Code) })
	}
	return &next
}

// Unavailable returns a registry that answers nothing: err says why nobody knows
// which parameters are in force.
func (r *Registry) Unavailable(err error) *Registry {
	next := *r
	next.unavailable = err
	return &next
}

// Err is why the registry answers nothing, nil for nearly all.
func (r *Registry) Err() error { return r.unavailable }

// Interpret returns the registry with branches of compiled parameters that the
// FHIRPath engine evaluates: expression, of parameter url of resource type base,
// under key.
func (r *Registry) Interpret(base, url, expression string, typ fhir.SearchType, key fhir.Key, value Indexer) (*Registry, error) {
	input := r.model.Resources[base].Type()
	expr, err := fhirpath.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", url, base, err)
	}
	program, err := fhirpath.CompileExpr(expr, fhirpath.Options{Model: r.model, Input: input, CollectionAs: true})
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", url, base, err)
	}
	next := *r
	next.value = value
	next.extractors = maps.Clone(r.extractors)
	if next.extractors == nil {
		next.extractors = make(map[string][]*extractor)
	}
	next.extractors[base] = append(slices.Clone(r.extractors[base]), &extractor{url: url, typ: typ, key: key, program: program, name: inName(r.model, input, expr.Root)})
	return &next, nil
}

// addNotice records the warning of a search by param.
func (p *parser) addNotice(param *fhir.Parameter) { p.notices = addNotice(p.notices, param.Notice) }

// Warn adds a warning that something may be missing from the matches, if there is a text.
func (q *Query) Warn(text string) { q.Notices = addNotice(q.Notices, text) }

// addNotice adds a warning to a list, once.
func addNotice(list []outcome.Issue, text string) []outcome.Issue {
	issue := outcome.Issue{Severity: outcome.Warning, Code: outcome.CodeIncomplete, Diagnostics: text}
	if text == "" || slices.Contains(list, issue) {
		return list
	}
	return append(list, issue)
}
