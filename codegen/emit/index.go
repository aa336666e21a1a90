package emit

import (
	_ "embed"
	"fmt"
	"go/format"
	"go/token"
	"maps"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
	"kiln/server/fhir"
)

// convert is the part of the package index that is the same for any definitions:
// the source of package convert.
//
//go:embed convert/convert.go
var convert string

// Index prints the package index: for each resource type its parameters and its
// extractor; the tables over all of them; how datatypes are indexed.
func Index(tree Tree, m *ir.Model) error {
	for _, s := range m.Searches {
		f := jen.NewFilePath(indexPath)
		f.HeaderComment(header("SearchParameters of " + s.Type.Name))
		f.ImportName(fhirPath, "fhir")
		f.ImportName(r4Path, "r4")
		extractor(f, s)
		parameters(f, m, s)
		if err := tree.render("index/"+fileName(s.Type.Name), f); err != nil {
			return fmt.Errorf("%s: %w", s.Type.Name, err)
		}
	}
	body, err := format.Source([]byte("// " + header("codegen/emit/convert") + "\n\n" + strings.Replace(convert, "package convert", "package index", 1)))
	if err != nil {
		return fmt.Errorf("convert.go: %w", err)
	}
	tree["index/convert.go"] = body
	if err := tree.render("index/remarks.go", remarks(m)); err != nil {
		return err
	}
	if err := tree.render("index/operation.go", operations(m)); err != nil {
		return err
	}
	if err := tree.render("index/capability.go", capability(m)); err != nil {
		return err
	}
	return tree.render("index/index.go", indexTable(m))
}

// node is a step that several paths share, with the uses of its values.
type node struct {
	step       ir.Step
	ops        []op
	composites []ir.CompositeBranch
	below      []*node
}

// op indexes a value.
type op struct {
	key    fhir.Key
	typ    fhir.SearchType
	path   ir.Path
	system string
	text   string // of the branch, for the comment; "" in a composite
	// elsewhere are the elements of the value that are indexed by other ops.
	elsewhere []string
}

// at returns the node that the steps lead to.
func (n *node) at(steps []ir.Step) *node {
	for _, s := range steps {
		i := slices.IndexFunc(n.below, func(b *node) bool { return b.step == s })
		if i < 0 {
			n.below = append(n.below, &node{step: s})
			i = len(n.below) - 1
		}
		n = n.below[i]
	}
	return n
}

// extractor prints the function that indexes one resource type.
func extractor(f *jen.File, s *ir.Search) {
	root := &node{}
	for _, b := range s.Branches {
		for _, p := range b.Paths {
			n := root.at(p.Steps)
			n.ops = append(n.ops, op{key: b.Key, typ: b.Type, path: p, system: b.System, text: b.Text, elsewhere: b.Elsewhere})
		}
	}
	for _, c := range s.Composites {
		n := root.at(c.Element.Steps)
		n.composites = append(n.composites, c)
	}
	f.Comment(extractorName(s.Type) + " adds the index entries of r to x.")
	f.Func().Id(extractorName(s.Type)).Params(jen.Id("x").Op("*").Qual(fhirPath, "Index"), jen.Id("r").Op("*").Qual(r4Path, s.Type.Go)).BlockFunc(func(g *jen.Group) {
		inside(g, root, "r")
	})
}

// extractorName is not exported: one resource type is called Parameters.
func extractorName(t *ir.Type) string { return strings.ToLower(t.Go[:1]) + t.Go[1:] }

// visit prints the uses of the values of n. The variable from contains the value before n.
func visit(g *jen.Group, n *node, from string) {
	switch n.step.Kind {
	case ir.StepWhere:
		g.If(jen.Id(from).Dot(n.step.Field.Go).Dot("Text").Op("==").Lit(n.step.Text)).BlockFunc(func(g *jen.Group) {
			inside(g, n, from)
		})
		return
	case ir.StepHasExtension:
		g.If(jen.Id("hasExtension").Call(jen.Id(from).Dot("Extension"), jen.Lit(n.step.Text))).BlockFunc(func(g *jen.Group) {
			inside(g, n, from)
		})
		return
	case ir.StepExtension:
		name := variable("extension", from)
		g.For(jen.Id("i").Op(":=").Range().Id(from).Dot("Extension")).Block(
			jen.If(jen.Id(name).Op(":=").Op("&").Id(from).Dot("Extension").Index(jen.Id("i")), jen.Id(name).Dot("URL").Dot("Text").Op("==").Lit(n.step.Text)).BlockFunc(func(g *jen.Group) {
				inside(g, n, name)
			}),
		)
		return
	}

	field := n.step.Field
	value := jen.Id(from).Dot(field.Go)
	name := variable(field.Name, from)
	switch {
	case n.step.Kind == ir.StepFirst && field.AnyResource:
		g.If(jen.Len(value.Clone()).Op(">").Lit(0)).BlockFunc(func(g *jen.Group) {
			leaves(g, n, value.Clone().Index(jen.Lit(0)))
		})
	case n.step.Kind == ir.StepFirst:
		g.If(jen.Len(value.Clone()).Op(">").Lit(0)).BlockFunc(func(g *jen.Group) {
			g.Id(name).Op(":=").Op("&").Add(value.Clone()).Index(jen.Lit(0))
			inside(g, n, name)
		})
	case field.AnyResource && field.Repeats():
		g.For(jen.List(jen.Id("_"), jen.Id(name)).Op(":=").Range().Add(value)).BlockFunc(func(g *jen.Group) {
			leaves(g, n, jen.Id(name))
		})
	case field.Repeats():
		g.For(jen.Id("i").Op(":=").Range().Add(value.Clone())).BlockFunc(func(g *jen.Group) {
			if len(n.below)+len(n.composites) == 0 && len(n.ops) == 1 {
				leaf(g, n.ops[0], value.Clone().Index(jen.Id("i")), !field.Type.Primitive)
				return
			}
			g.Id(name).Op(":=").Op("&").Add(value.Clone()).Index(jen.Id("i"))
			inside(g, n, name)
		})
	case field.Choice():
		leaves(g, n, value)
		if len(n.below) == 0 {
			return
		}
		g.Switch(jen.Id("v").Op(":=").Add(value.Clone()).Assert(jen.Type())).BlockFunc(func(g *jen.Group) {
			for _, c := range n.below {
				g.Case(jen.Op("*").Add(named(c.step.To))).BlockFunc(func(g *jen.Group) {
					inside(g, c, "v")
				})
			}
		})
	case len(n.below)+len(n.composites) == 0:
		leaves(g, n, value)
	default:
		g.If(jen.Id(name).Op(":=").Add(value), jen.Id(name).Op("!=").Nil()).BlockFunc(func(g *jen.Group) {
			inside(g, n, name)
		})
	}
}

// inside prints the leaves, composites and steps below n, whose value is a
// pointer in the variable name.
func inside(g *jen.Group, n *node, name string) {
	leaves(g, n, jen.Id(name))
	for _, c := range n.composites {
		open := "Open"
		if c.Coded {
			open = "OpenCoded"
		}
		g.Id("x").Dot(open).Call(key(c.Key), jen.Lit(len(c.Parts))).Comment(c.Text)
		for i, part := range c.Parts {
			if i > 0 {
				g.Id("x").Dot("Next").Call()
			}
			root := &node{}
			for _, p := range part.Paths {
				q := root.at(p.Steps)
				q.ops = append(q.ops, op{typ: part.Type, path: p, system: system(p)})
			}
			from := name
			if part.OfResource {
				from = "r"
			}
			for _, b := range root.below {
				visit(g, b, from)
			}
		}
		g.Id("x").Dot("Close").Call()
	}
	for _, b := range n.below {
		visit(g, b, name)
	}
}

// system is the implicit system of the code that a path ends in.
func system(p ir.Path) string {
	if n := len(p.Steps); n > 0 && p.At.Name == "code" && p.Steps[n-1].Kind == ir.StepChild {
		return p.Steps[n-1].Field.Binding.System
	}
	return ""
}

func leaves(g *jen.Group, n *node, value *jen.Statement) {
	for _, o := range n.ops {
		leaf(g, o, value.Clone(), false)
	}
}

// leaf prints the call that indexes a value; address says that a function needs
// its address.
func leaf(g *jen.Group, o op, value *jen.Statement, address bool) {
	if address {
		value = jen.Op("&").Add(value)
	}
	var call *jen.Statement
	function := ir.Conversion(o.typ, o.path)
	switch {
	case o.path.NotFalse:
		call = g.Id("x").Dot("Boolean").Call(key(o.key), jen.Id("existsAndNotFalse").Call(value))
	case o.path.At.Primitive && o.system != "":
		call = g.Id("x").Dot("CodeOf").Call(key(o.key), jen.Lit(o.system), value.Dot("Text"))
	case o.path.At.Primitive:
		call = g.Id("x").Dot(function).Call(key(o.key), value.Dot("Text"))
	case len(o.elsewhere) > 0:
		call = g.Id(function+"Except").Call(jen.Id("x"), key(o.key), value, jen.Do(func(s *jen.Statement) {
			for i, name := range o.elsewhere {
				if i > 0 {
					s.Op("|")
				}
				s.Id(name + "Elsewhere")
			}
		}))
	default:
		call = g.Id(function).Call(jen.Id("x"), key(o.key), value)
	}
	if o.text != "" {
		call.Comment(o.text)
	}
}

// key prints a key in hexadecimal.
func key(k fhir.Key) *jen.Statement {
	if k == 0 {
		return jen.Lit(0)
	}
	return jen.Id(fmt.Sprintf("%#x", uint64(k)))
}

// variable names the value of an element: the element's name, unless that would
// be a keyword or one of the names the extractors use.
func variable(element, from string) string {
	if token.IsKeyword(element) || slices.Contains([]string{"x", "r", "i", "v", "fhir", "r4", "len", "range"}, element) {
		return element + "_"
	}
	return element
}

// parameters prints the table of one resource type.
func parameters(f *jen.File, m *ir.Model, s *ir.Search) {
	f.Var().Id("parameters"+s.Type.Go).Op("=").Index().Qual(fhirPath, "Parameter").ValuesFunc(func(g *jen.Group) {
		for _, p := range s.Parameters {
			g.Line().Values(parameterFacts(m, p)...)
		}
		g.Line()
	})
}

var searchTypes = map[fhir.SearchType]string{
	fhir.SearchNumber: "SearchNumber", fhir.SearchDate: "SearchDate", fhir.SearchString: "SearchString",
	fhir.SearchToken: "SearchToken", fhir.SearchReference: "SearchReference", fhir.SearchComposite: "SearchComposite",
	fhir.SearchQuantity: "SearchQuantity", fhir.SearchURI: "SearchURI", fhir.SearchSpecial: "SearchSpecial",
}

func parameterFacts(m *ir.Model, p fhir.Parameter) []jen.Code {
	var facts []jen.Code
	add := func(name string, v jen.Code) { facts = append(facts, jen.Id(name).Op(":").Add(v)) }
	add("Code", jen.Lit(p.Code))
	add("Base", jen.Lit(p.Base))
	add("Type", jen.Qual(fhirPath, searchTypes[p.Type]))
	if len(p.Keys) > 0 {
		add("Keys", keys(p.Keys))
	}
	if len(p.PartOf) > 0 {
		add("PartOf", keys(p.PartOf))
	}
	if len(p.Words) > 0 {
		add("Words", keys(p.Words))
	}
	switch {
	case len(p.Targets) == len(m.Resources):
		add("Targets", jen.Id("anyType"))
	case len(p.Targets) > 0:
		add("Targets", litStrings(p.Targets))
	}
	if p.Single {
		add("Single", jen.True())
	}
	if len(p.Systems) > 0 {
		add("Systems", litStrings(p.Systems))
	}
	if len(p.Composites) > 0 {
		add("Composites", jen.Index().Qual(fhirPath, "Composite").ValuesFunc(func(g *jen.Group) {
			for _, c := range p.Composites {
				g.Values(compositeFacts(c)...)
			}
		}))
	}
	if p.Unsupported != "" {
		add("Unsupported", jen.Lit(p.Unsupported))
	}
	if p.Expression != "" {
		add("Expression", jen.Lit(p.Expression))
	}
	add("URL", jen.Lit(p.URL))
	if p.Description != "" {
		add("Description", jen.Lit(p.Description))
	}
	return facts
}

func compositeFacts(c fhir.Composite) []jen.Code {
	var facts []jen.Code
	if c.Key != 0 {
		facts = append(facts, jen.Id("Key").Op(":").Add(key(c.Key)))
	}
	if c.Coded != 0 {
		facts = append(facts, jen.Id("Coded").Op(":").Add(key(c.Coded)))
	}
	parts := jen.Index().Qual(fhirPath, "Part").ValuesFunc(func(g *jen.Group) {
		for _, p := range c.Parts {
			facts := []jen.Code{
				jen.Id("Code").Op(":").Lit(p.Code),
				jen.Id("Type").Op(":").Qual(fhirPath, searchTypes[p.Type]),
			}
			if len(p.Keys) > 0 {
				facts = append(facts, jen.Id("Keys").Op(":").Add(keys(p.Keys)))
			}
			if p.System != "" {
				facts = append(facts, jen.Id("System").Op(":").Lit(p.System))
			}
			g.Values(facts...)
		}
	})
	return append(facts, jen.Id("Parts").Op(":").Add(parts))
}

func keys(list []fhir.Key) *jen.Statement {
	return jen.Index().Qual(fhirPath, "Key").ValuesFunc(func(g *jen.Group) {
		for _, k := range list {
			g.Add(key(k))
		}
	})
}

// indexTable prints Extract, Parameters and Compartments.
func indexTable(m *ir.Model) *jen.File {
	f := jen.NewFilePath(indexPath)
	f.HeaderComment(header("the SearchParameters and CompartmentDefinitions of definitions/"))
	f.PackageComment("Package index holds R4's search parameters, compiled: for each resource type the")
	f.PackageComment("table of its parameters and the function that extracts their values.")
	f.ImportName(fhirPath, "fhir")
	f.ImportName(r4Path, "r4")
	f.Comment("Extract adds the index entries of r and its compartments to x, which the")
	f.Comment("caller has Reset and will Finish. A type it does not know leaves nothing.")
	f.Func().Id("Extract").Params(jen.Id("x").Op("*").Qual(fhirPath, "Index"), jen.Id("r").Qual(fhirPath, "Resource")).Block(
		jen.List(jen.Id("x").Dot("ResourceType"), jen.Id("x").Dot("Resource")).Op("=").List(jen.Id("r").Dot("Type").Call().Dot("Name"), jen.Id("r")),
		jen.Switch(jen.Id("r").Op(":=").Id("r").Assert(jen.Type())).BlockFunc(func(g *jen.Group) {
			for _, s := range m.Searches {
				g.Case(jen.Op("*").Qual(r4Path, s.Type.Go)).Block(jen.Id(extractorName(s.Type)).Call(jen.Id("x"), jen.Id("r")))
			}
		}),
	)
	f.Comment("Parameters are the search parameters of every resource type, by type and code.")
	f.Var().Id("Parameters").Op("=").Qual("slices", "Concat").CallFunc(func(g *jen.Group) {
		for _, s := range m.Searches {
			g.Line().Id("parameters" + s.Type.Go)
		}
		g.Line()
	})
	f.Comment("anyType are all resource types.")
	f.Var().Id("anyType").Op("=").Index().String().ValuesFunc(func(g *jen.Group) {
		for _, t := range m.Resources {
			g.Line().Lit(t.Name)
		}
		g.Line()
	})
	f.Comment("Compartments are R4's compartments, by code.")
	f.Var().Id("Compartments").Op("=").Index().Qual(fhirPath, "Compartment").ValuesFunc(func(g *jen.Group) {
		for _, c := range m.Compartments {
			g.Line().Values(
				jen.Id("Code").Op(":").Lit(c.Code),
				jen.Id("By").Op(":").Map(jen.String()).Index().String().ValuesFunc(func(g *jen.Group) {
					for _, t := range slices.Sorted(maps.Keys(c.By)) {
						g.Line().Lit(t).Op(":").ValuesFunc(func(g *jen.Group) {
							for _, p := range c.By[t] {
								g.Lit(p)
							}
						})
					}
					g.Line()
				}),
			)
		}
		g.Line()
	})
	return f
}

// remarks prints the expressions left to the engine and those without a search.
func remarks(m *ir.Model) *jen.File {
	f := jen.NewFilePath(indexPath)
	f.HeaderComment(header("the SearchParameters of definitions/"))
	f.ImportName(fhirPath, "fhir")
	f.Comment("Remark says what was not compiled of a search parameter, and why.")
	f.Type().Id("Remark").Struct(
		jen.Id("Base").String().Comment("resource type"),
		jen.Id("Code").String(),
		jen.Id("Type").Qual(fhirPath, "SearchType"),
		jen.Id("URL").String(),
		jen.Id("Expression").String().Comment("the branch concerned, FHIRPath"),
		jen.Id("Reason").String(),
		jen.Id("Key").Qual(fhirPath, "Key").Comment("what its values are indexed under"),
	)
	list := func(comment, name string, remarks []ir.Remark) {
		for line := range strings.SplitSeq(comment, "\n") {
			f.Comment(line)
		}
		f.Var().Id(name).Op("=").Index().Id("Remark").ValuesFunc(func(g *jen.Group) {
			for _, r := range remarks {
				facts := []jen.Code{
					jen.Id("Base").Op(":").Lit(r.Base), jen.Id("Code").Op(":").Lit(r.Code),
					jen.Id("Type").Op(":").Qual(fhirPath, searchTypes[r.Type]),
					jen.Id("URL").Op(":").Lit(r.URL),
					jen.Id("Expression").Op(":").Lit(r.Expression), jen.Id("Reason").Op(":").Lit(r.Reason),
				}
				if r.Key != 0 {
					facts = append(facts, jen.Id("Key").Op(":").Add(key(r.Key)))
				}
				g.Line().Values(facts...)
			}
			if len(remarks) > 0 {
				g.Line()
			}
		})
	}
	list("Interpreted are the branches of expressions that codegen cannot compile: the\nFHIRPath engine evaluates them, and Value indexes what they give under Key.", "Interpreted", m.Interpreted)
	list("Omitted are the parameters, or branches of one, that have no entries.", "Omitted", m.Omitted)
	return f
}
