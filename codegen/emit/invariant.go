package emit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
)

// Invariants prints the package invariant: for each resource type and datatype a
// file with its invariants and their functions, and the table of all of them.
func Invariants(tree Tree, m *ir.Model) error {
	files := map[string][]*ir.TypeInvariants{}
	for _, t := range m.Invariants {
		root, _, _ := strings.Cut(t.Name, ".")
		files[root] = append(files[root], t)
	}
	for root, list := range files {
		f := jen.NewFilePath(invariantPath)
		f.HeaderComment(header("the constraints of StructureDefinition/" + root))
		f.ImportName(fhirPath, "fhir")
		f.ImportName(r4Path, "r4")
		f.ImportName(constraintPath, "constraint")
		functions := map[string]*ir.Invariant{}
		for _, t := range list {
			typeInvariants(f, t)
		}
		for _, t := range list {
			for _, i := range ownAndElements(t) {
				if i.Condition == nil {
					continue
				}
				if other := functions[i.Func]; other != nil {
					return fmt.Errorf("%s: the constraints %s and %s would both be named %s", t.Name, other.Key, i.Key, i.Func)
				}
				functions[i.Func] = i
				function(f, i)
			}
		}
		if err := tree.render("invariant/"+fileName(root), f); err != nil {
			return fmt.Errorf("%s: %w", root, err)
		}
	}
	return tree.render("invariant/invariant.go", invariantTable(m))
}

func ownAndElements(t *ir.TypeInvariants) []*ir.Invariant {
	list := slices.Clone(t.Own)
	for _, e := range t.Elements {
		list = append(list, e.Own...)
	}
	return list
}

// typeInvariants prints the facts of one type.
func typeInvariants(f *jen.File, t *ir.TypeInvariants) {
	f.Var().Id(tableName(t)).Op("=").Qual(constraintPath, "Type").ValuesFunc(func(g *jen.Group) {
		g.Id("Name").Op(":").Lit(t.Name)
		if len(t.Own) > 0 {
			g.Id("Invariants").Op(":").Add(invariantFacts(t.Own))
		}
		if len(t.Elements) > 0 {
			g.Id("Elements").Op(":").Index().Qual(constraintPath, "Element").ValuesFunc(func(g *jen.Group) {
				for _, e := range t.Elements {
					g.Values(jen.Id("Name").Op(":").Lit(e.Name), jen.Id("Invariants").Op(":").Add(invariantFacts(e.Own)))
				}
			})
		}
	})
}

func tableName(t *ir.TypeInvariants) string {
	return "of" + ir.GoName(strings.Split(t.Name, ".")...)
}

func invariantFacts(list []*ir.Invariant) *jen.Statement {
	return jen.Index().Qual(constraintPath, "Invariant").ValuesFunc(func(g *jen.Group) {
		for _, i := range list {
			facts := []jen.Code{jen.Id("Key").Op(":").Lit(i.Key)}
			if i.Warning {
				facts = append(facts, jen.Id("Warning").Op(":").True())
			}
			facts = append(facts, jen.Id("Human").Op(":").Lit(i.Human))
			if i.Condition != nil {
				facts = append(facts, jen.Id("Check").Op(":").Id(i.Func))
			} else {
				facts = append(facts, jen.Id("Expression").Op(":").Lit(i.Expression))
			}
			g.Line().Values(facts...)
		}
		g.Line()
	})
}

// function prints the function of one invariant.
func function(f *jen.File, i *ir.Invariant) {
	p := printer{function: i.Func}
	body := p.condition(i.Condition, false)
	for n, expression := range p.patterns {
		f.Var().Id(patternName(i.Func, n)).Op("=").Qual(constraintPath, "NewPattern").Call(jen.Lit(expression))
	}
	f.Comment(i.Key + ": " + i.Expression)
	f.Func().Id(i.Func).Params(jen.Id("c").Op("*").Qual(constraintPath, "Context"), jen.Id("e").Qual(fhirPath, "Element")).Bool().BlockFunc(func(g *jen.Group) {
		if p.receiver && i.Receiver.Name != "" {
			g.Id("r").Op(":=").Id("e").Assert(jen.Op("*").Add(named(i.Receiver)))
		}
		if i.Resource != nil {
			g.Id("resource").Op(":=").Id("c").Dot("Resource").Dot("Element").Call().Assert(jen.Op("*").Qual(r4Path, i.Resource.Go))
		}
		g.Return(body)
	})
}

func patternName(function string, n int) string {
	if n == 0 {
		return function + "Pattern"
	}
	return fmt.Sprintf("%sPattern%d", function, n+1)
}

// printer prints a condition.
type printer struct {
	function string
	receiver bool // the typed receiver is used
	patterns []string
}

func (p *printer) value(v ir.Value) *jen.Statement {
	switch v := v.(type) {
	case ir.Receiver:
		p.receiver = true
		return jen.Id("r")
	case ir.ResourceValue:
		return jen.Id("resource")
	case ir.Variable:
		return jen.Id(v.Name)
	case *ir.Select:
		return p.value(v.Of).Dot(v.Field.Go)
	case ir.TextValue:
		return p.value(v.Of).Dot("Text")
	case ir.Literal:
		return jen.Lit(v.Text)
	case ir.TextAt:
		return p.runtime("Text").CallFunc(func(g *jen.Group) {
			g.Add(p.value(v.Of))
			for _, name := range v.Path {
				g.Lit(name)
			}
		})
	case ir.Concat:
		s := p.value(v.Parts[0])
		for _, part := range v.Parts[1:] {
			s.Op("+").Add(p.value(part))
		}
		return s
	case ir.PatternValue:
		p.patterns = append(p.patterns, v.Expression)
		return jen.Id(patternName(p.function, len(p.patterns)-1))
	}
	panic(fmt.Sprintf("value %T", v))
}

// element prints a value as a fhir.Element.
func (p *printer) element(v ir.Value) *jen.Statement {
	if _, ok := v.(ir.Receiver); ok {
		return jen.Id("e")
	}
	if s, ok := v.(*ir.Select); ok && s.Field.Type.Primitive && !s.Field.Repeats() {
		return jen.Op("&").Add(p.value(v))
	}
	return p.value(v)
}

func (p *printer) runtime(name string) *jen.Statement { return jen.Qual(constraintPath, name) }

// condition prints c, in parentheses where nested asks for them and c needs them.
func (p *printer) condition(c ir.Condition, nested bool) *jen.Statement {
	join := func(list []ir.Condition, op string) *jen.Statement {
		s := p.condition(list[0], true)
		for _, x := range list[1:] {
			s.Op(op).Add(p.condition(x, true))
		}
		if nested {
			return jen.Parens(s)
		}
		return s
	}
	switch c := c.(type) {
	case ir.Constant:
		return jen.Lit(bool(c))
	case ir.All:
		return join(c, "&&")
	case ir.Any:
		return join(c, "||")
	case ir.Differ:
		s := p.differ(c, "!=")
		if nested {
			return jen.Parens(s)
		}
		return s
	case ir.Not:
		return p.not(c.X)
	case *ir.Present:
		return p.present(c.X, true)
	case *ir.Some:
		list := p.value(c.List)
		if c.Part != "" {
			list = p.runtime(c.Part).Call(list)
		}
		return p.runtime("Some").Call(list, p.lambda(c.Variable, jen.Op("*").Add(named(c.List.Field.Type)), c.Body))
	case *ir.As:
		to := jen.Op("*").Add(named(c.To))
		if c.Body == ir.Constant(true) {
			return p.runtime("Is").Types(to).Call(p.element(c.X))
		}
		return p.runtime("As").Call(p.element(c.X), p.lambda(c.Variable, to, c.Body))
	case *ir.TextIs:
		return p.texts(c, "==", "||", nested)
	case *ir.Same:
		return p.value(c.X).Dot("Text").Op("==").Add(p.value(c.Y).Dot("Text"))
	case *ir.HasText:
		return p.value(c.X).Dot("Text").Op("!=").Lit("")
	case *ir.Predicate:
		if pattern, ok := c.Arg.(ir.PatternValue); ok {
			return p.value(pattern).Dot("Matches").Call(p.value(c.X).Dot("Text"))
		}
		return jen.Qual("strings", c.Func).Call(p.value(c.X).Dot("Text"), p.value(c.Arg))
	case *ir.Order:
		name := "Possible"
		if c.Certain {
			name = "Certain"
		}
		if c.Y == nil {
			return p.runtime(name+"Number").Call(p.element(c.X), jen.Lit(c.Op), jen.Lit(int(c.Number)))
		}
		return p.runtime(name).Call(p.element(c.X), jen.Lit(c.Op), p.element(c.Y))
	case *ir.Total:
		return p.total(c)
	case *ir.Share:
		return p.runtime("Share").Call(jen.Id("c"), p.value(c.X), p.value(c.Y))
	case *ir.Distinct:
		return p.runtime("Distinct").Call(jen.Id("c"), p.lambda("seen", jen.Op("*").Add(p.runtime("Seen")), c.Body))
	case *ir.Again:
		if _, ok := c.X.(ir.Concat); ok {
			return jen.Id("seen").Dot("AgainText").Call(p.value(c.X))
		}
		return jen.Id("seen").Dot("Again").Call(p.element(c.X))
	case *ir.Has:
		return p.runtime("Has").CallFunc(func(g *jen.Group) {
			g.Id("e")
			for _, name := range c.Path {
				g.Lit(name)
			}
		})
	}
	panic(fmt.Sprintf("condition %T", c))
}

func (p *printer) lambda(name string, typ *jen.Statement, body ir.Condition) *jen.Statement {
	return jen.Func().Params(jen.Id(name).Add(typ)).Bool().Block(jen.Return(p.condition(body, false)))
}

// not prints the negation of c.
func (p *printer) not(c ir.Condition) *jen.Statement {
	switch c := c.(type) {
	case *ir.Present:
		return p.present(c.X, false)
	case *ir.TextIs:
		return p.texts(c, "!=", "&&", true)
	case *ir.HasText:
		return p.value(c.X).Dot("Text").Op("==").Lit("")
	case ir.Differ:
		return jen.Parens(p.differ(c, "=="))
	case *ir.Same:
		return p.value(c.X).Dot("Text").Op("!=").Add(p.value(c.Y).Dot("Text"))
	case *ir.Total:
		return jen.Op("!").Parens(p.total(c))
	}
	return jen.Op("!").Add(p.condition(c, true))
}

// differ prints a comparison of two conditions, each in parentheses: == and !=
// bind as tight within them.
func (p *printer) differ(c ir.Differ, op string) *jen.Statement {
	return jen.Parens(p.condition(c.X, false)).Op(op).Parens(p.condition(c.Y, false))
}

func (p *printer) texts(c *ir.TextIs, op, join string, nested bool) *jen.Statement {
	s := jen.Null()
	for i, text := range c.In {
		if i > 0 {
			s.Op(join)
		}
		s.Add(p.value(c.X)).Dot("Text").Op(op).Lit(text)
	}
	if nested && len(c.In) > 1 {
		return jen.Parens(s)
	}
	return s
}

// present prints whether an element is there, or is not.
func (p *printer) present(s *ir.Select, there bool) *jen.Statement {
	switch {
	case s.Field.Repeats() && there:
		return jen.Len(p.value(s)).Op(">").Lit(0)
	case s.Field.Repeats():
		return jen.Len(p.value(s)).Op("==").Lit(0)
	case s.Field.Type.Primitive && there:
		return p.value(s).Dot("Present").Call()
	case s.Field.Type.Primitive:
		return jen.Op("!").Add(p.value(s)).Dot("Present").Call()
	case there:
		return p.value(s).Op("!=").Nil()
	}
	return p.value(s).Op("==").Nil()
}

func (p *printer) total(c *ir.Total) *jen.Statement {
	s := jen.Null()
	for i, of := range c.Of {
		if i > 0 {
			s.Op("+")
		}
		if of.Field.Repeats() {
			s.Len(p.value(of))
		} else {
			s.Add(p.runtime("Count").Call(p.present(of, true)))
		}
	}
	return s.Op(c.Op).Lit(c.Number)
}

// invariantTable prints the table of all types and the list of interpreted constraints.
func invariantTable(m *ir.Model) *jen.File {
	f := jen.NewFilePath(invariantPath)
	f.HeaderComment(header("the constraints of the StructureDefinitions of definitions/"))
	f.PackageComment("Package invariant holds R4's invariants, compiled: for each type the table of its")
	f.PackageComment("constraints and the functions that check them.")
	f.ImportName(constraintPath, "constraint")
	f.Comment("Of returns the invariants of a type or backbone element, nil where it has none.")
	f.Comment("Those of every resource with contained resources stand under DomainResource.")
	f.Func().Id("Of").Params(jen.Id("name").String()).Op("*").Qual(constraintPath, "Type").Block(
		jen.List(jen.Id("i"), jen.Id("ok")).Op(":=").Qual("slices", "BinarySearchFunc").Call(jen.Id("All"), jen.Id("name"),
			jen.Func().Params(jen.Id("t").Op("*").Qual(constraintPath, "Type"), jen.Id("name").String()).Int().Block(
				jen.Return(jen.Qual("strings", "Compare").Call(jen.Id("t").Dot("Name"), jen.Id("name"))))),
		jen.If(jen.Op("!").Id("ok")).Block(jen.Return(jen.Nil())),
		jen.Return(jen.Id("All").Index(jen.Id("i"))),
	)
	f.Comment("All are the types that have invariants, by name.")
	f.Var().Id("All").Op("=").Index().Op("*").Qual(constraintPath, "Type").ValuesFunc(func(g *jen.Group) {
		for _, t := range m.Invariants {
			g.Line().Op("&").Id(tableName(t))
		}
		g.Line()
	})
	var left []*ir.Invariant
	for _, t := range m.Invariants {
		for _, i := range ownAndElements(t) {
			if i.Condition == nil && !slices.ContainsFunc(left, func(o *ir.Invariant) bool { return o.Key == i.Key && o.Expression == i.Expression }) {
				left = append(left, i)
			}
		}
	}
	slices.SortFunc(left, func(a, b *ir.Invariant) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Expression, b.Expression))
	})
	f.Comment("Interpreted are the invariants that codegen cannot compile, with what stands in")
	f.Comment("the way: the FHIRPath engine evaluates them.")
	f.Var().Id("Interpreted").Op("=").Index().Struct(jen.List(jen.Id("Key"), jen.Id("Expression"), jen.Id("Reason")).String()).ValuesFunc(func(g *jen.Group) {
		for _, i := range left {
			g.Line().Values(jen.Lit(i.Key), jen.Lit(i.Expression), jen.Lit(i.Reason))
		}
		if len(left) > 0 {
			g.Line()
		}
	})
	return f
}
