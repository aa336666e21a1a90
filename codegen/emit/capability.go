package emit

import (
	"maps"
	"slices"

	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
)

// capability prints the facts of the CapabilityStatement beside search.
func capability(m *ir.Model) *jen.File {
	f := jen.NewFilePath(indexPath)
	f.HeaderComment(header("the StructureDefinitions of definitions/"))
	f.Comment("FHIRVersion is the version of FHIR that the definitions are of.")
	f.Const().Id("FHIRVersion").Op("=").Lit("4.0.1")
	f.Comment("Profiles are, for each resource type, the canonical of its definition and then")
	f.Comment("its profiles.")
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
	return f
}
