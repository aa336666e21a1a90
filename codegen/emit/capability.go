package emit

import (
	"maps"
	"slices"

	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
)

// capability prints what the CapabilityStatement says beyond search.
func capability(m *ir.Model) *jen.File {
	f := jen.NewFilePath(indexPath)
	f.HeaderComment(header("the StructureDefinitions and OperationDefinitions of definitions/"))
	f.Comment("FHIRVersion is the version of FHIR that the definitions are of.")
	f.Const().Id("FHIRVersion").Op("=").Lit("4.0.1")
	f.Comment("Profiles are, for each resource type, the canonical of its definition and then")
	f.Comment("those of the profiles on it.")
	f.Var().Id("Profiles").Op("=").Map(jen.String()).Index().String().ValuesFunc(func(g *jen.Group) {
		for _, t := range slices.Sorted(maps.Keys(m.Profiles)) {
			g.Line().Lit(t).Op(":").ValuesFunc(func(g *jen.Group) {
				for _, u := range m.Profiles[t] {
					g.Lit(u)
				}
			})
		}
		g.Line()
	})
	f.Comment("Operation is what an OperationDefinition says of where it is called.")
	f.Type().Id("Operation").Struct(
		jen.Id("Code").String().Comment("without $"),
		jen.Id("URL").String(),
		jen.List(jen.Id("System"), jen.Id("Type"), jen.Id("Instance")).Bool(),
		jen.Id("AffectsState").Bool().Comment("it cannot be called by GET"),
		jen.Id("Resources").Index().String().Comment("resource types; Resource stands for all"),
	)
	f.Comment("Operations are the operations that the definitions describe, by code.")
	f.Var().Id("Operations").Op("=").Index().Id("Operation").ValuesFunc(func(g *jen.Group) {
		for _, o := range m.Operations {
			facts := []jen.Code{jen.Id("Code").Op(":").Lit(o.Code), jen.Id("URL").Op(":").Lit(o.URL)}
			for _, flag := range []struct {
				name string
				set  bool
			}{{"System", o.System}, {"Type", o.Type}, {"Instance", o.Instance}, {"AffectsState", o.AffectsState}} {
				if flag.set {
					facts = append(facts, jen.Id(flag.name).Op(":").True())
				}
			}
			if len(o.Resources) > 0 {
				facts = append(facts, jen.Id("Resources").Op(":").Add(litStrings(o.Resources)))
			}
			g.Line().Values(facts...)
		}
		g.Line()
	})
	return f
}
