package emit

import (
	"github.com/dave/jennifer/jen"

	"kiln/codegen/ir"
)

const handlerPath = "kiln/gen/handler"

// route is a path below /Type, the method of Interactions that serves it, and
// the helper that picks it. %s stands for the resource type.
type route struct {
	pattern func(typ string) string
	method  string
	// either names the path value that is an operation when it starts with "$".
	either string
}

func at(method, path string) func(string) string {
	return func(typ string) string { return method + " /" + typ + path }
}

// routes are what every resource type is mounted with. A pattern for GET serves
// HEAD as well.
var routes = []route{
	{at("GET", ""), "SearchType", ""},
	{at("POST", ""), "Create", ""},
	{at("PUT", ""), "ConditionalUpdate", ""},
	{at("PATCH", ""), "ConditionalPatch", ""},
	{at("DELETE", ""), "ConditionalDelete", ""},
	{at("POST", "/_search"), "SearchType", ""},
	{at("GET", "/_history"), "HistoryType", ""},
	{at("GET", "/{id}"), "Read", "id"},
	{at("POST", "/{operation}"), "Operation", ""},
	{at("PUT", "/{id}"), "Update", ""},
	{at("PATCH", "/{id}"), "Patch", ""},
	{at("DELETE", "/{id}"), "Delete", ""},
	{at("GET", "/{id}/_history"), "HistoryInstance", ""},
	{at("GET", "/{id}/_history/{vid}"), "VRead", ""},
	{at("POST", "/{id}/{operation}"), "Operation", ""},
}

// instanceOperation ends the routes of a type that is no compartment.
var instanceOperation = route{at("GET", "/{id}/{operation}"), "Operation", ""}

// compartment are the routes of a type that is a compartment.
var compartment = []route{
	{at("GET", "/{id}/{type}"), "SearchCompartment", "type"},
	{at("POST", "/{id}/{type}/_search"), "SearchCompartment", ""},
}

// Handlers prints the package handler: a file for each resource type that lists
// its paths, and the interface that they call.
func Handlers(tree Tree, m *ir.Model) error {
	for _, t := range m.Resources {
		list := append([]route{}, routes...)
		if m.Compartment(t.Name) {
			list = append(list, compartment...)
		} else {
			list = append(list, instanceOperation)
		}
		f := jen.NewFilePath(handlerPath)
		f.HeaderComment(header(t.Source))
		f.Comment(t.Go + " mounts the interactions of the resource type " + t.Name + ".")
		f.Func().Id(t.Go).Params(jen.Id("mux").Op("*").Qual("net/http", "ServeMux"), jen.Id("h").Id("Interactions")).BlockFunc(func(g *jen.Group) {
			for _, r := range list {
				h := jen.Id("on").Call(jen.Lit(t.Name), jen.Id("h").Dot(r.method))
				if r.either != "" {
					h = jen.Id("either").Call(jen.Lit(r.either), jen.Lit(t.Name), jen.Id("h").Dot(r.method), jen.Id("h"))
				}
				g.Id("mux").Dot("HandleFunc").Call(jen.Lit(r.pattern(t.Name)), h)
			}
		})
		if err := tree.render("handler/"+fileName(t.Name), f); err != nil {
			return err
		}
	}
	return tree.render("handler/handler.go", interactions(m))
}

// interactions prints the code that all handlers share.
func interactions(m *ir.Model) *jen.File {
	f := jen.NewFilePath(handlerPath)
	f.HeaderComment(header("the StructureDefinitions of definitions/"))
	f.PackageComment("Package handler mounts one handler per resource type, on literal paths. What an")
	f.PackageComment("interaction does, headers and errors included, is left to Interactions.")
	params := func() *jen.Statement {
		return jen.Params(jen.Id("w").Qual("net/http", "ResponseWriter"), jen.Id("r").Op("*").Qual("net/http", "Request"), jen.Id("typ").String())
	}
	f.Comment("Interactions are what the handlers call; typ is the resource type of the path.")
	f.Comment("Path values: id, vid; operation with its leading $, where id is \"\" on the type's")
	f.Comment("level; type of a compartment search, which may be *.")
	f.Comment("Spec: https://hl7.org/fhir/R4/http.html.")
	f.Type().Id("Interactions").InterfaceFunc(func(g *jen.Group) {
		for _, m := range []string{
			"Read", "VRead", "Update", "Patch", "Delete", "HistoryInstance",
			"Create", "SearchType", "HistoryType", "ConditionalUpdate", "ConditionalPatch", "ConditionalDelete",
			"SearchCompartment", "Operation",
		} {
			g.Id(m).Add(params())
		}
	})
	f.Comment("Mount mounts the interactions of every resource type.")
	f.Func().Id("Mount").Params(jen.Id("mux").Op("*").Qual("net/http", "ServeMux"), jen.Id("h").Id("Interactions")).BlockFunc(func(g *jen.Group) {
		for _, t := range m.Resources {
			g.Id(t.Go).Call(jen.Id("mux"), jen.Id("h"))
		}
	})
	f.Comment("on is serve for one resource type.")
	f.Func().Id("on").Params(jen.Id("typ").String(), jen.Id("serve").Func().Add(params())).Qual("net/http", "HandlerFunc").Block(
		jen.Return(jen.Func().Params(jen.Id("w").Qual("net/http", "ResponseWriter"), jen.Id("r").Op("*").Qual("net/http", "Request")).Block(
			jen.Id("serve").Call(jen.Id("w"), jen.Id("r"), jen.Id("typ")),
		)),
	)
	f.Comment("either is the operation that the path value names, if it starts with $, else serve.")
	f.Func().Id("either").Params(jen.List(jen.Id("value"), jen.Id("typ")).String(), jen.Id("serve").Func().Add(params()), jen.Id("h").Id("Interactions")).Qual("net/http", "HandlerFunc").Block(
		jen.Return(jen.Func().Params(jen.Id("w").Qual("net/http", "ResponseWriter"), jen.Id("r").Op("*").Qual("net/http", "Request")).Block(
			jen.Id("name").Op(":=").Id("r").Dot("PathValue").Call(jen.Id("value")),
			jen.If(jen.Op("!").Qual("strings", "HasPrefix").Call(jen.Id("name"), jen.Lit("$"))).Block(
				jen.Id("serve").Call(jen.Id("w"), jen.Id("r"), jen.Id("typ")),
				jen.Return(),
			),
			jen.Id("r").Dot("SetPathValue").Call(jen.Id("value"), jen.Lit("")),
			jen.Id("r").Dot("SetPathValue").Call(jen.Lit("operation"), jen.Id("name")),
			jen.Id("h").Dot("Operation").Call(jen.Id("w"), jen.Id("r"), jen.Id("typ")),
		)),
	)
	return f
}
