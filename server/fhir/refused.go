package fhir

// RefusedParameters are the search parameters of R4 that the service does not have, by
// code, with the reason. Each is refused by name in every search and is absent from
// /metadata; no SearchParameter of the run time can take its code.
var RefusedParameters = map[string]string{
	"_query":         "there are no named queries",
	"_contained":     "contained resources are not searched on their own, and only false is accepted",
	"_containedType": "contained resources are not searched on their own",
	"_score":         "results have no score",
}

// Reasons why the parameter of a SearchParameter cannot be searched
// (Parameter.Unsupported), whether it is compiled in or stored at run time.
const (
	RefusedSpecial      = "special parameters are not supported"
	RefusedNoExpression = "its definition has no expression"
)
