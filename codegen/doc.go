// Package codegen compiles FHIR definitions to Go.
//
//	definitions/ --definition--> samply's typed models
//	             --ir----------> Go-shaped types, decided identifiers
//	             --emit--------> gen/r4, gen/index, gen/handler, gen/invariant
//
// definition reads, ir decides, emit prints. Behaviour is not generated: what
// comes out are facts that server/fhir, server/search and server/rest work on, and
// what FHIRPath says of a type: how its search parameters are read and its
// invariants checked. Expressions that ir does not compile are listed with the
// reason (index.Interpreted, invariant.Interpreted); server/fhirpath evaluates them.
package codegen

//go:generate go run ./generate -definitions ../definitions -gen ../gen
