package emit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
	"kiln/server/fhir"
)

// Models prints the package r4: a file for each resource and datatype and the
// table of all of them.
func Models(tree Tree, m *ir.Model) error {
	for _, t := range append(append([]*ir.Type{}, m.Resources...), m.Datatypes...) {
		f := jen.NewFilePath(r4Path)
		f.HeaderComment(header(t.Source))
		f.ImportName(fhirPath, "fhir")
		for _, s := range append([]*ir.Type{t}, t.Backbones...) {
			structure(f, s)
		}
		if err := tree.render("r4/"+fileName(t.Name), f); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	return tree.render("r4/model.go", modelTable(m))
}

// structure prints a struct, its Type and the method that returns it.
func structure(f *jen.File, t *ir.Type) {
	f.Comment(t.Go + " is the " + kindOf(t) + " " + t.Name + ". " + sentence(t.Doc))
	f.Type().Id(t.Go).StructFunc(func(g *jen.Group) {
		if t.Resource {
			g.Qual(fhirPath, "Head")
		}
		for _, e := range t.Fields {
			if t.Resource && e.Name == "id" {
				continue
			}
			g.Comment(comment(e))
			g.Id(e.Go).Add(goType(e))
		}
	})
	kind := "Complex"
	if t.Resource {
		kind = "ResourceKind"
	}
	f.Var().Id("type"+t.Go).Op("=").Qual(fhirPath, "Type").Values(
		jen.Line().Id("Name").Op(":").Lit(t.Name),
		jen.Id("Base").Op(":").Lit(t.Base),
		jen.Id("Kind").Op(":").Qual(fhirPath, kind),
		jen.Line().Id("Fields").Op(":").Index().Qual(fhirPath, "Field").ValuesFunc(func(g *jen.Group) {
			for _, e := range t.Fields {
				g.Line().Values(fieldFacts(t, e)...)
			}
			g.Line()
		}),
		jen.Line().Id("New").Op(":").Func().Params().Qual(fhirPath, "Element").Block(jen.Return(jen.New(jen.Id(t.Go)))),
		jen.Line().Id("Append").Op(":").Qual(fhirPath, "Append").Index(jen.Id(t.Go)),
		jen.Line().Id("At").Op(":").Func().Params(jen.Id("p").Qual("unsafe", "Pointer")).Qual(fhirPath, "Element").
			Block(jen.Return(jen.Parens(jen.Op("*").Id(t.Go)).Call(jen.Id("p")))),
		jen.Line().Id("Size").Op(":").Qual("unsafe", "Sizeof").Call(jen.Id(t.Go).Values()),
		jen.Line(),
	)
	f.Comment("Type describes " + t.Name + ".")
	f.Func().Params(jen.Op("*").Id(t.Go)).Id("Type").Params().Op("*").Qual(fhirPath, "Type").
		Block(jen.Return(jen.Op("&").Id("type" + t.Go)))
}

func kindOf(t *ir.Type) string {
	switch {
	case t.Resource:
		return "resource type"
	case strings.Contains(t.Name, "."):
		return "element"
	}
	return "datatype"
}

// comment is short, cardinality, types of a choice, binding.
func comment(e *ir.Field) string {
	limit := strconv.Itoa(e.Max)
	if e.Max == fhir.Many {
		limit = "*"
	}
	s := fmt.Sprintf("%s %d..%s", sentence(e.Short), e.Min, limit)
	if len(e.Choices) > 0 {
		var names []string
		for _, c := range e.Choices {
			names = append(names, c.Name)
		}
		s += ", " + strings.Join(names, " | ")
	}
	if e.Binding.ValueSet != "" {
		s += ", " + e.Binding.Strength + " " + e.Binding.ValueSet
	}
	return s
}

func goType(e *ir.Field) *jen.Statement {
	switch {
	case e.AnyResource && e.Repeats():
		return jen.Index().Qual(fhirPath, "Resource")
	case e.AnyResource:
		return jen.Qual(fhirPath, "Resource")
	case e.Choice():
		return jen.Qual(fhirPath, "Element")
	case e.Repeats():
		return jen.Index().Add(named(e.Type))
	case e.Type.Primitive:
		return named(e.Type)
	}
	return jen.Op("*").Add(named(e.Type))
}

func named(r ir.Ref) *jen.Statement {
	if r.Shared {
		return jen.Qual(fhirPath, r.Go)
	}
	return jen.Qual(r4Path, r.Go)
}

// typedNil is (*T)(nil).
func typedNil(r ir.Ref) *jen.Statement {
	return jen.Parens(jen.Op("*").Add(named(r))).Call(jen.Nil())
}

// fieldFacts are the entries of a fhir.Field; zero values are left out.
func fieldFacts(t *ir.Type, e *ir.Field) []jen.Code {
	facts := []jen.Code{jen.Id("Name").Op(":").Lit(e.Name)}
	add := func(key string, v jen.Code) {
		facts = append(facts, jen.Id(key).Op(":").Add(v))
	}
	if !t.Resource || e.Name != "id" {
		add("Offset", jen.Qual("unsafe", "Offsetof").Call(jen.Id(t.Go).Values().Dot(e.Go)))
	}
	switch {
	case e.AnyResource:
		add("AnyResource", jen.True())
	case e.Open:
		add("Open", jen.True())
	case e.Choice():
		add("Choices", jen.Index().Qual(fhirPath, "Element").ValuesFunc(func(g *jen.Group) {
			for _, c := range e.Choices {
				g.Add(typedNil(c))
			}
		}))
	default:
		add("Of", typedNil(e.Type))
	}
	if e.Min != 0 {
		add("Min", jen.Lit(e.Min))
	}
	if e.Max == fhir.Many {
		add("Max", jen.Qual(fhirPath, "Many"))
	} else {
		add("Max", jen.Lit(e.Max))
	}
	if e.Summary {
		add("Summary", jen.True())
	}
	if e.Modifier {
		add("Modifier", jen.True())
	}
	if len(e.Targets) > 0 {
		add("Targets", litStrings(e.Targets))
	}
	if b := e.Binding; b.ValueSet != "" {
		facts = append(facts, jen.Id("Binding").Op(":").Qual(fhirPath, "Binding").ValuesFunc(func(g *jen.Group) {
			g.Id("Strength").Op(":").Lit(b.Strength)
			g.Id("ValueSet").Op(":").Lit(b.ValueSet)
			if b.System != "" {
				g.Id("System").Op(":").Lit(b.System)
			}
		}))
	}
	return facts
}

// modelTable prints Model.
func modelTable(m *ir.Model) *jen.File {
	f := jen.NewFilePath(r4Path)
	f.HeaderComment(header("the StructureDefinitions of definitions/"))
	f.PackageComment("Package r4 holds the models of FHIR R4: a struct and a fhir.Type for each resource,")
	f.PackageComment("datatype and backbone element. Package fhir does the work over these tables.")
	f.ImportName(fhirPath, "fhir")
	f.Comment("Model is all types of FHIR R4.")
	f.Var().Id("Model").Op("=").Op("&").Qual(fhirPath, "Model").Values(
		jen.Line().Id("Resources").Op(":").Map(jen.String()).Qual(fhirPath, "Resource").ValuesFunc(func(g *jen.Group) {
			for _, t := range m.Resources {
				g.Line().Lit(t.Name).Op(":").Add(typedNil(ir.Ref{Go: t.Go}))
			}
			g.Line()
		}),
		jen.Line().Id("Datatypes").Op(":").Map(jen.String()).Qual(fhirPath, "Element").ValuesFunc(func(g *jen.Group) {
			for _, r := range m.DatatypeRefs() {
				g.Line().Lit(r.Name).Op(":").Add(typedNil(r))
			}
			g.Line()
		}),
		jen.Line(),
	)
	return f
}
