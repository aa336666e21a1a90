package emit

import (
	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
	"kiln/server/fhir"
)

// operations prints the parameters of the OperationDefinitions.
func operations(m *ir.Model) *jen.File {
	f := jen.NewFilePath(indexPath)
	f.HeaderComment(header("the OperationDefinitions of definitions/"))
	f.Comment("Operations are the operations that the definitions describe, by code.")
	f.Var().Id("Operations").Op("=").Index().Qual(fhirPath, "OperationDefinition").ValuesFunc(func(g *jen.Group) {
		for i := range m.Operations {
			g.Line().Values(operation(&m.Operations[i])...)
		}
		g.Line()
	})
	return f
}

func operation(o *fhir.OperationDefinition) []jen.Code {
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
	for _, list := range []struct {
		name       string
		parameters []fhir.OperationParameter
	}{{"In", o.In}, {"Out", o.Out}} {
		if len(list.parameters) > 0 {
			facts = append(facts, jen.Id(list.name).Op(":").Add(operationParameters(list.parameters)))
		}
	}
	return facts
}

func operationParameters(list []fhir.OperationParameter) *jen.Statement {
	return jen.Index().Qual(fhirPath, "OperationParameter").ValuesFunc(func(g *jen.Group) {
		for _, p := range list {
			facts := []jen.Code{jen.Id("Name").Op(":").Lit(p.Name)}
			if p.Min > 0 {
				facts = append(facts, jen.Id("Min").Op(":").Lit(p.Min))
			}
			facts = append(facts, jen.Id("Max").Op(":").Lit(p.Max))
			if p.Type != "" {
				facts = append(facts, jen.Id("Type").Op(":").Lit(p.Type))
			}
			if len(p.Parts) > 0 {
				facts = append(facts, jen.Id("Parts").Op(":").Add(operationParameters(p.Parts)))
			}
			g.Line().Values(facts...)
		}
		g.Line()
	})
}
